#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DLIO (dlio-benchmark of PyPI, unmodified) on ext4 and on a mount of the same files packed: three profiles.

  sudo tests/bench/run dlio [--profile retinanet|resnet50|unet3d] [--files N] [--scale X] [--shrink N] [--epochs 5]
                            [--least 1] [--most 8] [--workers 2] [--memory-mib N] [--delay-us N] [--exec]

PROFILES has the profiles.  A step takes --scale times as long here, because DLIO's processes need some of this machine's
few cores for each file.  --shrink makes each file, and the time of a step, so many times smaller, for small disks: the
bytes a second of an accelerator stay the same.  Every rank of MPI is one emulated accelerator; their number grows until
AU is too low.  --least is the first number, and smaller ones are taken to pass.  Everything runs in one memory cgroup.
--memory-mib is its limit; without it, it is a fifth of the data, and for the processes 640 MiB, 448 MiB an accelerator
and two files a worker.  --delay-us adds a mount of which each read is so much later.  --exec: on a mount, DLIO's Python
has the hook of `ddpfs exec`, which announces what its DataLoaders draw.  Needs root and torch.
DLIO imports tensorflow without use under PyTorch, so its environment has an empty module of that name.
"""
import argparse
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("DDPFS_BUILD", HERE.parents[1] / "build"))
sys.path.insert(0, str(HERE / "compare"))

import bar  # noqa: E402
import cgroup  # noqa: E402

DELAY_ENVIRON = "DDPFS_TEST_READ_DELAY_US"
PACKAGES = ["mpich", "mpi4py", "h5py", "hydra-core", "omegaconf", "pandas", "psutil", "pydftracer==1.0.2", "PyYAML"]


@dataclasses.dataclass
class Profile:
    title: str
    model: str  # DLIO's word
    files: int  # without --files
    scale: float  # without --scale
    format: str
    file_bytes: int
    record_bytes: int  # of what DLIO puts into a file
    stdev_bytes: int
    batch: int  # files a step
    step_s: float
    au: int  # percent; a run with less does not pass
    item_bytes: int = 0  # of what the trainer gets of each file; 0: all


PROFILES = {
    # MLPerf Storage 3.0, B200.  As JPEG, DLIO's random grey images have 0.56 of their pixels.
    "retinanet": Profile("RetinaNet", "retinanet", 2400, 20, "jpeg", 322957, 579000, 0, 24, 0.04755, 85),
    # DLIO's resnet50_h100.yaml: files of 1,251 samples of 114,660 bytes, 400 samples a step of 0.224 s.  Under PyTorch,
    # DLIO would load the whole file for each sample.  So here a file is loaded once, and is a step of 1,251 samples.
    "resnet50": Profile("ResNet-50 (whole files)", "resnet50", 96, 4, "npz", 1251 * 114660, 1251 * 114660, 0, 1,
                        0.224 * 1251 / 400, 90, item_bytes=150528),
    # DLIO's unet3d_h100.yaml
    "unet3d": Profile("3D U-Net", "unet3d", 168, 4, "npz", 146600628, 146600628, 68341808, 7, 0.323, 90,
                      item_bytes=2097152),
}


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


def step_s(a):
    return a.profile.step_s * a.scale / a.shrink


def data_bytes(a):
    return a.files * a.profile.file_bytes // a.shrink


def memory_bytes(a, ranks):
    """The limit of the cgroup.  A worker has the file that it loads, in two copies at worst."""
    processes = (640 + 448 * ranks << 20) + 2 * ranks * a.workers * a.profile.file_bytes // a.shrink
    return a.memory_mib << 20 if a.memory_mib else data_bytes(a) // 5 + processes


def command(a, bin_dir, data, out, ranks, **workflow):
    p = a.profile
    files = a.files // ranks * ranks  # DLIO 2.0.0 ends with an IndexError if a rank has fewer files than another
    options = {
        "framework": "pytorch", "model": p.model, "reader.data_loader": "pytorch", "dataset.format": p.format,
        "dataset.data_folder": data, "dataset.num_files_train": files, "dataset.num_files_eval": 0,
        "dataset.num_subfolders_train": 0, "dataset.num_subfolders_eval": 0, "dataset.num_samples_per_file": 1,
        "dataset.record_length": p.record_bytes // a.shrink,
        "dataset.record_length_stdev": p.stdev_bytes // a.shrink, "dataset.record_length_resize": p.item_bytes,
        "reader.batch_size": p.batch, "reader.read_threads": a.workers, "reader.sample_shuffle": "seed",
        "train.epochs": a.epochs, "train.computation_time": step_s(a), "train.seed": 123, "output.folder": out,
        "workflow.evaluation": False, "workflow.checkpoint": False, **workflow}
    # `-m mpi4py`: if a rank fails, all ranks end.
    return [bin_dir / "mpiexec", "-n", str(ranks), bin_dir / "python", "-m", "mpi4py", bin_dir / "dlio_benchmark",
            "workload=default", *(f"++workload.{name}={value}" for name, value in options.items()),
            f"hydra.run.dir={out}/hydra"]


def train(a, cg, bin_dir, name, data, place, ranks, env=None):
    """Runs DLIO with so many accelerators, prints a row and returns AU in percent.  @env: more of the environment."""
    out = place / f"out-{name}-{ranks}"
    cg.resize(memory_bytes(a, ranks))
    before = cg.counters()
    with open(place / "log", "w") as log:
        cg.run("/reader", command(a, bin_dir, data, out, ranks, **{"workflow.train": True}), stdout=log, stderr=log,
               env={**os.environ, **(env or {})})
    took = {key: value - before[key] for key, value in cg.counters().items()}
    metric = json.loads((out / "summary.json").read_text())["metric"]
    au = metric["train_au_mean_percentage"]
    print(f"{name:6} {ranks:12} {au:7.1f}% {metric['train_throughput_mean_samples_per_second']:10.1f} "
          f"{took['cpu']:8.1f} {took['dev_bytes'] / 1e6:10.0f}", flush=True)
    return au


def mounted(a, cg, bin_dir, name, place, ranks, delay_us):
    """train() on a new mount, and what that says of the order."""
    mnt, memory = place / "mnt", max(64 << 20, data_bytes(a) // 5)
    cg.run("/daemon", [BUILD / "tools/ddpfs", "mount", place / "set", mnt, "-o", f"layout=tree,view=all,memory={memory}"],
           env={**os.environ, DELAY_ENVIRON: str(delay_us)} if delay_us else None)
    try:
        hook = {"PYTHONPATH": HERE.parents[1] / "gpu_stage/python/exec", "DDPFS_MOUNT": mnt, "DDPFS_VIEW": "all"}
        au = train(a, cg, bin_dir, name, mnt, place, ranks, hook if a.exec else None)
        said = json.loads(subprocess.run([BUILD / "tools/ddpfs", "stat", "--json", mnt], check=True,
                                         capture_output=True).stdout)
        print(f"{'':6} order: {said['order_note']}; {said['misses']} of {said['opens']} opens missed",
              flush=True)
    finally:
        subprocess.run(["umount", mnt], check=True)
    return au


def show_bars(most, au):
    """@most: the accelerators that pass on each; @au: percent on each, by accelerators."""
    ext4 = most["ext4"]
    if not ext4:
        print("no accelerator passes on ext4, so there is nothing to compare with")
        return
    bar.show("accelerators that pass, of ext4's", most["ddpfs"] / ext4, 1.5, "x", above=True)
    bar.show(f"AU with {ext4} accelerators, ext4's number", au["ddpfs"][ext4] / 100, 0.95, "", above=True)
    if "delay" in most:
        bar.show("accelerators that pass with delay, of ext4's", most["delay"] / ext4, 1, "x", above=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=PROFILES, default="retinanet")
    parser.add_argument("--exec", action="store_true")
    for name, value in (("files", 0), ("shrink", 1), ("epochs", 5), ("least", 1), ("most", 8), ("workers", 2),
                        ("memory-mib", 0), ("delay-us", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--scale", type=float, default=0)
    a = parser.parse_args()
    a.profile = PROFILES[a.profile]
    a.files, a.scale = a.files or a.profile.files, a.scale or a.profile.scale
    if a.shrink > 1 and a.profile.format == "jpeg":
        parser.error("--shrink is for the profiles with large files")
    if os.geteuid() != 0:
        skip("needs root (cgroups, dropping caches)")
    if subprocess.run([sys.executable, "-c", "import torch, PIL"], capture_output=True).returncode:
        skip("torch and Pillow are not installed")
    bin_dir = environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `timeout` leaves no data and no mount behind
    place = Path(tempfile.mkdtemp(prefix="ddpfs-bench.", dir=os.environ.get("DDPFS_BENCH_DIR")))
    data, most, au = place / "data", {}, {}
    cg = cgroup.Cgroup(place, 8 << 30, None)
    try:
        with open(place / "log", "w") as log:
            subprocess.run(command(a, bin_dir, data, place / "out", 1, **{"workflow.generate_data": True,
                           "workflow.train": False}), check=True, stdout=log, stderr=log)
        subprocess.run([BUILD / "tools/mkshard", "pack", data, place / "set"], check=True, stdout=subprocess.DEVNULL)
        (place / "mnt").mkdir()
        shrunk = f", files and steps {a.shrink} times smaller" if a.shrink > 1 else ""
        print(f"DLIO, {a.profile.title} profile, {a.files} files, {data_bytes(a) / 1e6:.0f} MB, "
              f"a step {a.scale:g} times as long{shrunk}: {step_s(a):.3f} s\n"
              f"{f'delay: ddpfs, and each read {a.delay_us / 1000:g} ms later{chr(10)}' if a.delay_us else ''}"
              f"{'':6} {'accelerators':>12} {'AU':>8} {'samples/s':>10} {'CPU s':>8} {'device MB':>10}")
        for name in ("ext4", "ddpfs") + (("delay",) if a.delay_us else ()):
            first = a.least if name == "ext4" else min(a.least, max(most["ext4"], 1))  # ext4's number is tried, too
            most[name], au[name] = first - 1, {}
            for ranks in range(first, a.most + 1):
                if name == "ext4":
                    au[name][ranks] = train(a, cg, bin_dir, name, data, place, ranks)
                else:
                    au[name][ranks] = mounted(a, cg, bin_dir, name, place, ranks, a.delay_us if name == "delay" else 0)
                if au[name][ranks] >= a.profile.au and most[name] == ranks - 1:
                    most[name] = ranks
                elif ranks >= most["ext4"]:  # what ext4's number needs is known
                    break
        for name, number in most.items():
            more = ", or more: see --most" if number == a.most else ""
            print(f"{name}: {number} accelerators with AU of at least {a.profile.au}%{more}")
        show_bars(most, au)
    except subprocess.CalledProcessError:
        sys.stderr.write((place / "log").read_text()[-3000:])
        raise
    finally:
        cg.done()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
