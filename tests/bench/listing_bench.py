#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds to list a mount of a million names (flat and tree), to look one up, and what the kernel keeps of it.

    tests/bench/run listing_bench [--names 1000000] [--reps 3]

The dataset is an index without shards: listing reads no contents.  The same number of empty files on tmpfs is listed in
the same run for comparison."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bar

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DDPFS_BUILD", ROOT / "build"))
PER_CLASS = 1000


def timed(run, reps):
    seconds = []
    for _ in range(reps):
        start = time.monotonic()
        run()
        seconds.append(time.monotonic() - start)
    return statistics.median(seconds)


def getdents(path):
    """Lists with `ls -U` (no stat, no sort): the kernel's and the server's time, hardly the tool's."""
    subprocess.run(["ls", "-U", path], stdout=subprocess.DEVNULL, check=True)


def slabs():
    """(bytes of FUSE inodes and dentries, number of FUSE inodes) as slabinfo counts them (needs root); 0 where it is
    hidden.  The kernel may count FUSE's inodes among another cache's of their size."""
    total = inodes = 0
    try:
        for line in open("/proc/slabinfo"):
            fields = line.split()
            if fields[0] in ("fuse_inode", "dentry"):
                total += int(fields[1]) * int(fields[3])
            if fields[0] == "fuse_inode":
                inodes = int(fields[1])
    except (OSError, ValueError):
        pass
    return total, inodes


def stats(mountpoint):
    return json.loads((Path(mountpoint) / ".ddpfs/stats.json").read_text())


def mounted(dataset, mountpoint, options, run):
    argv = [BUILD / "tools/ddpfs", "mount", "-o", options, dataset, mountpoint]
    start = time.monotonic()
    subprocess.run(argv, check=True)
    mount_s = time.monotonic() - start
    try:
        return mount_s, run()
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def flat(dataset, mountpoint, reps):
    def run():
        before, _ = slabs()
        first = timed(lambda: getdents(mountpoint), 1)
        kept = slabs()[0] - before
        before = slabs()[1]  # behind the first one: the engine, too, lists what it reads ahead, and wants the inodes
        again = timed(lambda: getdents(mountpoint), reps)
        made = slabs()[1] - before
        python = timed(lambda: len(os.listdir(mountpoint)), 1)
        names = sorted(os.listdir(mountpoint))
        sample = names[:: max(1, len(names) // 20000)]
        looked_up = timed(lambda: [os.stat(os.path.join(mountpoint, n)) for n in sample], 1)
        return len(names), first, again, python, looked_up / len(sample), kept, made

    return mounted(dataset, mountpoint, "rank=0,world=1,order=full", run)


def tree(dataset, mountpoint, options):
    def run():
        return timed(lambda: sum(len(files) for _, _, files in os.walk(mountpoint)), 1)

    return mounted(dataset, mountpoint, options, run)


def tmpfs(place, names):
    here = Path(place) / "tmpfs"
    here.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=0,size=2g", "tmpfs", here]).returncode != 0:
        return None
    try:
        for i in range(names):
            os.close(os.open(here / f"0000-{i:010d}-class_0000%2Fitem_{i:06d}.bin", os.O_CREAT | os.O_WRONLY))
        return timed(lambda: getdents(here), 3)
    finally:
        subprocess.run(["umount", here], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args()
    classes = max(1, args.names // PER_CLASS)
    with tempfile.TemporaryDirectory(prefix="ddpfs-bench.") as place:
        dataset, mountpoint = Path(place) / "dataset", Path(place) / "mnt"
        dataset.mkdir()
        mountpoint.mkdir()
        subprocess.run([BUILD / "tests/shard/make_index", dataset, str(classes), str(PER_CLASS), "4096", "shuffled"],
                       check=True)
        mount_s, (names, first, again, python, lookup, kept, made) = flat(dataset, mountpoint, args.reps)
        print(f"names in one flat directory     {names}")
        print(f"mount until it answers          {mount_s * 1000:.0f} ms")
        print(f"first listing (ls -U)           {first:.2f} s   {first / names * 1e6:.2f} us a name")
        print(f"later listings, median of {args.reps}     {again:.2f} s")
        print(f"os.listdir                      {python:.2f} s")
        print(f"stat of a name never seen       {lookup * 1e6:.1f} us")
        print(f"kernel memory kept by a listing {kept / names:.1f} bytes a name")
        bar.show("first listing of a million names", first * 1e6 / names, 1.5, "s")
        bar.show("later listing of a million names", again * 1e6 / names, 1.5, "s")
        bar.show("inodes made by listing, of the names", made / names * 100, 1, "%")
        _, walk = tree(dataset, mountpoint, "view=all,layout=tree")
        print(f"os.walk of layout=tree          {walk:.2f} s   ({classes} directories)")
        _, walk = tree(dataset, mountpoint, "rank=0,world=8,layout=tree,order=full")
        print(f"os.walk of 1 rank of 8 in it    {walk:.2f} s")
        other = tmpfs(place, names)
        if other:
            print(f"the same names on tmpfs         {other:.2f} s   ddpfs / tmpfs {again / other:.1f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
