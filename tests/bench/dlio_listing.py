#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DLIO (as in dlio.py) on a directory of a million files: seconds from its start to its end, of which it trains one step.

  sudo tests/bench/run dlio_listing [--files 1000000] [--reps 3]

DLIO lists the directory, sorts the paths and shuffles them before it reads the first file.  The files are one JPEG of a few
hundred bytes, on ext4 and packed.  Caches are dropped before each run.  `list` is the time of the listing alone, as
DLIO asks for it (os.listdir)."""

import argparse
import dataclasses
import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dlio

LIST = "import os, sys, time; t = time.monotonic(); n = len(os.listdir(sys.argv[1])); print(n, time.monotonic() - t)"


def make_files(folder, count):
    from PIL import Image

    folder.mkdir(parents=True)
    jpeg = io.BytesIO()
    Image.new("L", (16, 16)).save(jpeg, format="JPEG")
    digits = len(str(count))
    for i in range(count):
        (folder / f"img_{i:0{digits}}_of_{count}.jpeg").write_bytes(jpeg.getvalue())
    (folder.parent / "valid").mkdir()
    return len(jpeg.getvalue())


def drop_caches():
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


def runs(a, bin_dir, data, place):
    """Medians of the seconds of a listing and of a run of DLIO."""
    listed, trained = [], []
    for rep in range(a.reps):
        drop_caches()
        said = subprocess.run([sys.executable, "-c", LIST, data / "train"], check=True, capture_output=True, text=True)
        names, seconds = said.stdout.split()
        assert int(names) == a.files
        listed.append(float(seconds))
        drop_caches()
        with open(place / "log", "w") as log:
            start = time.monotonic()
            subprocess.run(dlio.command(a, bin_dir, data, place / f"out-{data.name}-{rep}", 1, **{
                "workflow.train": True, "train.total_training_steps": 1}), check=True, stdout=log, stderr=log)
            trained.append(time.monotonic() - start)
    return statistics.median(listed), statistics.median(trained)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--reps", type=int, default=3)
    a = parser.parse_args()
    if os.geteuid() != 0:
        dlio.skip("needs root (dropping caches)")
    if subprocess.run([sys.executable, "-c", "import torch, PIL"], capture_output=True).returncode:
        dlio.skip("torch and Pillow are not installed")
    bin_dir = dlio.environment()
    place = Path(tempfile.mkdtemp(prefix="ddpfs-bench.", dir=os.environ.get("DDPFS_BENCH_DIR")))
    data, mnt = place / "ext4", place / "ddpfs"
    try:
        size = make_files(data / "train", a.files)
        a.profile = dataclasses.replace(dlio.PROFILES["retinanet"], file_bytes=size, record_bytes=256)
        a.shrink, a.scale, a.workers, a.epochs = 1, 1, 2, 1
        subprocess.run([dlio.BUILD / "tools/mkshard", "pack", data, place / "set"], check=True, stdout=subprocess.DEVNULL)
        mnt.mkdir()
        print(f"{a.files} JPEG files of {size} bytes in one directory, medians of {a.reps}\n"
              f"{'':6} {'list s':>8} {'DLIO s':>8}", flush=True)
        took = {"ext4": runs(a, bin_dir, data, place)}
        subprocess.run([dlio.BUILD / "tools/ddpfs", "mount", place / "set", mnt, "-o", "layout=tree,view=all"], check=True)
        try:
            took["ddpfs"] = runs(a, bin_dir, mnt, place)
        finally:
            subprocess.run(["umount", mnt], check=True)
        for name, (listed, trained) in took.items():
            print(f"{name:6} {listed:8.2f} {trained:8.1f}")
        for what, k in (("list", 0), ("DLIO", 1)):
            print(f"{what}: on the mount / on ext4 {took['ddpfs'][k] / took['ext4'][k]:.2f}")
    except subprocess.CalledProcessError:
        sys.stderr.write((place / "log").read_text()[-3000:] if (place / "log").exists() else "")
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
