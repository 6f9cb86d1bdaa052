#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds to announce an order to a mount: indices in memory, and paths.

    tests/bench/run follow_bench [--entries 100000000] [--paths 1000000]

The dataset is small, because the time depends on the entries.  The time is that of the call: the server has taken in and
checked every entry when it returns.  The mount needs memory=4 bytes an entry x 4."""

import argparse
import array
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DDPFS_BUILD", ROOT / "build"))
FILES = 10000
BAR_ENTRIES = 100_000_000

sys.path.insert(0, str(ROOT / "gpu_stage" / "python"))
import bar  # noqa: E402
import ddpfs  # noqa: E402


def timed(mount, order):
    start = time.monotonic()
    entries = mount.follow(order)
    return time.monotonic() - start, entries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=BAR_ENTRIES)
    parser.add_argument("--paths", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddpfs-bench.") as directory:
        base = Path(directory)
        names = [f"c{i % 10}/{i:05d}.bin" for i in range(FILES)]
        for c in range(10):
            (base / "source" / f"c{c}").mkdir(parents=True)
        for name in names:
            (base / "source" / name).write_bytes(b"x")
        subprocess.run([BUILD / "tools/mkshard", "pack", base / "source", base / "dataset"], check=True, capture_output=True)
        memory = max(64, args.entries * 17 >> 20)
        with ddpfs.mounted(base / "dataset", mountpoint=None, view="all", program=BUILD / "tools/ddpfs",
                           memory=f"{memory}M") as mount:
            mount.follow([0])  # the numbering is made once
            numbers = array.array("I", range(FILES)) * (args.entries // FILES)
            seconds, entries = timed(mount, numbers)
            stat = subprocess.run([BUILD / "tools/ddpfs", "stat", "--json", mount], check=True, capture_output=True)
            memory_bytes = json.loads(stat.stdout)["order_memory_bytes"]
            print(f"{entries} indices of 4 bytes: {seconds:.2f} s, order_memory_bytes {memory_bytes}")
            if entries == BAR_ENTRIES:  # what does not depend on the number counts more with fewer
                bar.show("10^8 entries announced", seconds, 2, "s")
            mount.unfollow()
            seconds, entries = timed(mount, [names[i % FILES] for i in range(args.paths)])
            print(f"{entries} paths: {seconds:.2f} s")


if __name__ == "__main__":
    main()
