#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mkshard verify beside the device: the same cold shards, read in sequence past the page cache, alternating in one run.

    tests/bench/run verify_bench [--dir DIR] [--mib 4096] [--rounds 3]

Both containers: A, files around 110 KB in tar shards; B, 4 KiB files in bare ones.  The device: four readers of 1 MiB with
O_DIRECT (buffered and dropped where the file system has none).  Cold: the shards' pages are dropped before each reading."""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from mmap import mmap
from pathlib import Path

import bar

ROOT = Path(__file__).resolve().parents[2]
MKSHARD = Path(os.environ.get("DDPFS_BUILD", ROOT / "build")) / "tools/mkshard"
READERS, BLOCK = 4, 1 << 20


def drop(dataset):
    for path in dataset.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_all(shards):
    """Every block of every shard, dealt to the readers in turn."""
    def open_shard(path):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return os.open(path, os.O_RDONLY)

    fds = [open_shard(path) for path in shards]
    blocks = [(fd, at) for fd, path in zip(fds, shards, strict=True) for at in range(0, path.stat().st_size, BLOCK)]
    mine = iter(blocks)
    lock = threading.Lock()

    def reader():
        buffer = mmap(-1, BLOCK)
        while True:
            with lock:
                block = next(mine, None)
            if block is None:
                return
            os.preadv(block[0], [buffer], block[1])

    threads = [threading.Thread(target=reader) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for fd in fds:
        os.close(fd)


def timed(run):
    start = time.monotonic()
    run()
    return time.monotonic() - start


def make_dataset(place, mib, size, container):
    rng = random.Random(5)
    blob = rng.randbytes(8 << 20)
    tree, dataset, left, number = place / "tree", place / "dataset", mib << 20, 0
    while left > 0:
        folder = tree / f"c{number % 100:03}"
        folder.mkdir(parents=True, exist_ok=True)
        length = size(rng)
        at = rng.randrange(0, len(blob) - length)
        (folder / f"{number:07}.bin").write_bytes(blob[at:at + length])
        left -= length
        number += 1
    subprocess.run([MKSHARD, "pack", f"--container={container}", tree, dataset], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    os.sync()
    return dataset, number


def bench(name, place, mib, rounds, size, container):
    dataset, files = make_dataset(place, mib, size, container)
    shards = sorted(dataset.glob("shard-*"))
    total = sum(path.stat().st_size for path in shards)
    device, verify = [], []
    for _ in range(rounds):
        drop(dataset)
        device.append(timed(lambda: read_all(shards)))
        drop(dataset)
        verify.append(timed(lambda: subprocess.run([MKSHARD, "verify", dataset], check=True, stdout=subprocess.DEVNULL)))
    shutil.rmtree(dataset)
    print(f"{name}: {files} files, {len(shards)} {container} shards, {total / 1e6:.0f} MB, cold, median of {rounds}")
    for what, seconds in (("device", device), ("verify", verify)):
        print(f"  {what:7} {statistics.median(seconds):7.2f} s {total / statistics.median(seconds) / 1e6:7.0f} MB/s")
    bar.show(f"verify, of the device's speed ({container})", statistics.median(device) / statistics.median(verify), 0.9,
             "x", above=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where the datasets are made: the disk to measure")
    parser.add_argument("--mib", type=int, default=4096, help="size of each dataset; more than what a disk's cache holds")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="verify_bench.", dir=args.dir))
    try:
        bench("A", place, args.mib, args.rounds, lambda rng: int(min(max(rng.lognormvariate(11.43, 0.6), 2000), 2e6)), "tar")
        bench("B", place, args.mib, args.rounds, lambda _rng: 4096, "bare")
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
