#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DLIO (dlio-benchmark of PyPI, unmodified) on ext4 and on a mount of the same files packed: RetinaNet profile.

  sudo tests/bench/run dlio [--files 2400] [--scale 20] [--epochs 5] [--most 8] [--memory-mib N]

The profile: JPEG files of 323 KB, batches of 24, a step of 0.04755 s, AU of at least 85%.  A step takes --scale times as
long here, because each core decodes some hundred such files a second.  Every rank of MPI is one emulated accelerator;
their number grows until AU is too low.  Everything runs in one memory cgroup.  --memory-mib is its limit; without it, it
is a fifth of the data and 640 MiB and 448 MiB an accelerator, for the processes.  Needs root and torch.
DLIO imports tensorflow without use under PyTorch, so its environment has an empty module of that name.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("DDPFS_BUILD", HERE.parents[1] / "build"))
sys.path.insert(0, str(HERE / "compare"))

import cgroup  # noqa: E402

PACKAGES = ["mpich", "mpi4py", "h5py", "hydra-core", "omegaconf", "pandas", "psutil", "pydftracer==1.0.2", "PyYAML"]
STEP_SECONDS, BATCH, FILE_BYTES, AU = 0.04755, 24, 322957, 85
RECORD_BYTES = 579000  # of pixels: as JPEG, DLIO's random grey images have 0.56 of it


def skip(why):
    print(f"dlio: skipped: {why}")
    raise SystemExit(0)


def environment():
    """The bin folder of a virtual environment with DLIO, which takes torch, numpy and Pillow from this interpreter's."""
    place = BUILD / "dlio-venv"
    if (place / "ready").exists():
        return place / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
    pip = [place / "bin/pip", "install", "-q", "--disable-pip-version-check"]
    for command in (pip + ["--no-deps", "dlio-benchmark==2.0.0"], pip + PACKAGES):
        if subprocess.run(command, capture_output=True, text=True).returncode:
            skip("pip does not get dlio-benchmark 2.0.0 and its packages")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    (site / "torch_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "tensorflow.py").touch()
    (place / "ready").touch()
    return place / "bin"


def command(a, bin_dir, data, out, ranks, **workflow):
    options = {
        "framework": "pytorch", "model": "retinanet", "reader.data_loader": "pytorch", "dataset.format": "jpeg",
        "dataset.data_folder": data, "dataset.num_files_train": a.files, "dataset.num_files_eval": 1,
        "dataset.num_subfolders_train": 0, "dataset.num_subfolders_eval": 0, "dataset.num_samples_per_file": 1,
        "dataset.record_length": RECORD_BYTES, "dataset.record_length_stdev": 0, "reader.batch_size": BATCH,
        "reader.read_threads": a.workers, "reader.sample_shuffle": "seed", "train.epochs": a.epochs,
        "train.computation_time": STEP_SECONDS * a.scale, "train.seed": 123, "output.folder": out,
        "workflow.evaluation": False, "workflow.checkpoint": False, **workflow}
    return [bin_dir / "mpiexec", "-n", str(ranks), bin_dir / "dlio_benchmark", "workload=default",
            *(f"++workload.{name}={value}" for name, value in options.items()), f"hydra.run.dir={out}/hydra"]


def train(a, cg, bin_dir, name, data, place, ranks):
    """Runs DLIO with so many accelerators, prints a row and returns AU in percent."""
    out = place / f"out-{name}-{ranks}"
    cg.resize(a.memory_mib << 20 if a.memory_mib else a.files * FILE_BYTES // 5 + ((640 + 448 * ranks) << 20))
    before = cg.counters()
    with open(place / "log", "w") as log:
        cg.run("/reader", command(a, bin_dir, data, out, ranks, **{"workflow.train": True}), stdout=log, stderr=log)
    took = {key: value - before[key] for key, value in cg.counters().items()}
    metric = json.loads((out / "summary.json").read_text())["metric"]
    au = metric["train_au_mean_percentage"]
    print(f"{name:6} {ranks:12} {au:7.1f}% {metric['train_throughput_mean_samples_per_second']:10.1f} "
          f"{took['cpu']:8.1f} {took['dev_bytes'] / 1e6:10.0f}", flush=True)
    return au


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("files", 2400), ("epochs", 5), ("most", 8), ("workers", 2), ("memory-mib", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--scale", type=float, default=20)
    a = parser.parse_args()
    if os.geteuid() != 0:
        skip("needs root (cgroups, dropping caches)")
    if subprocess.run([sys.executable, "-c", "import torch, PIL"], capture_output=True).returncode:
        skip("torch and Pillow are not installed")
    bin_dir = environment()
    place = Path(tempfile.mkdtemp(prefix="ddpfs-bench.", dir=os.environ.get("DDPFS_BENCH_DIR")))
    data, mnt, most = place / "data", place / "mnt", {}
    cg = cgroup.Cgroup(place, 8 << 30, None)
    try:
        with open(place / "log", "w") as log:
            subprocess.run(command(a, bin_dir, data, place / "out", 1, **{"workflow.generate_data": True,
                           "workflow.train": False}), check=True, stdout=log, stderr=log)
        subprocess.run([BUILD / "tools/mkshard", "pack", data, place / "set"], check=True, stdout=subprocess.DEVNULL)
        mnt.mkdir()
        print(f"DLIO, RetinaNet profile, a step {a.scale:g} times as long: {STEP_SECONDS * a.scale:.3f} s\n"
              f"{'':6} {'accelerators':>12} {'AU':>8} {'samples/s':>10} {'CPU s':>8} {'device MB':>10}")
        for name in ("ext4", "ddpfs"):
            for ranks in range(1, a.most + 1):
                if name == "ddpfs":
                    memory = max(64 << 20, a.files * FILE_BYTES // 5)
                    cg.run("/daemon", [BUILD / "tools/ddpfs", "mount", place / "set", mnt, "-o",
                                       f"layout=tree,view=all,memory={memory}"])
                try:
                    au = train(a, cg, bin_dir, name, mnt if name == "ddpfs" else data, place, ranks)
                finally:
                    if name == "ddpfs":
                        subprocess.run(["umount", mnt], check=True)
                if au < AU:
                    break
                most[name] = ranks
        for name in ("ext4", "ddpfs"):
            print(f"{name}: {most.get(name, 0)} accelerators with AU of at least {AU}%")
    except subprocess.CalledProcessError:
        sys.stderr.write((place / "log").read_text()[-3000:])
        raise
    finally:
        cg.done()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
