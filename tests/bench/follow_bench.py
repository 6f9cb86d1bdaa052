#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds to announce an order to a mount: indices of 4 and 8 bytes, and paths, by Python and by the command, and over the
mount itself, as users do who cannot reach the control socket.

    tests/bench/run follow_bench [--entries 100000000] [--paths 1000000]

The dataset is small, because the time depends on the entries.  The time is that of the call (Mount.follow), or of the
command (`ddpfs ctl MNT follow -`, the list on standard input, in memory): the server has taken in and checked every entry
when it returns.  Processor seconds are those of this process, the command and the server together: on a busy machine
the time is longer than they are.  The mount needs memory=4 bytes an entry x 8.  Beside it the bench needs 3 GB for 10^8 entries."""

import argparse
import array
import contextlib
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
try:
    import numpy  # noqa: F401  with it, indices of 8 bytes are announced as 4 bytes each
except ImportError:
    pass


class Clock:
    """Seconds from here on, and processor seconds of all who take part."""

    def __init__(self, mount):
        info = subprocess.run([BUILD / "tools/ddpfs", "ctl", "--json", mount, "info"], check=True, capture_output=True)
        self._server = json.loads(info.stdout)["server_pid"]
        self._cpu, self._start = self._now(), time.monotonic()

    def _now(self):
        with open(f"/proc/{self._server}/stat") as stat:
            ticks = sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK") + sum(os.times()[:4])

    def stop(self):
        seconds = time.monotonic() - self._start
        return seconds, self._now() - self._cpu


def timed(mount, order):
    clock = Clock(mount)
    entries = mount.follow(order)
    return *clock.stop(), entries


@contextlib.contextmanager
def over(mount):
    """Announcements go over the mount, as if its socket could not be reached."""
    follower = mount._follower()
    follower._root = ddpfs.over_mount.Root(follower.mountpoint)
    yield
    follower._root = None


def command(mount, data, *options):
    """Announces `data` through `ddpfs ctl MNT follow -`."""
    fd = os.memfd_create("order")
    with open(fd, "r+b") as file:
        file.write(data)
        file.flush()
        os.lseek(fd, 0, os.SEEK_SET)
        clock = Clock(mount)
        done = subprocess.run([BUILD / "tools/ddpfs", "ctl", "--json", mount, "follow", *options, "-"], check=True, stdin=fd,
                              capture_output=True)
        times = clock.stop()
    return *times, json.loads(done.stdout)["entries"]


def show(mount, what, seconds, cpu, entries, limit_s=2):
    stat = subprocess.run([BUILD / "tools/ddpfs", "stat", "--json", mount], check=True, capture_output=True)
    order_bytes = json.loads(stat.stdout)["order_memory_bytes"]
    print(f"{entries} {what}: {seconds:.2f} s ({cpu:.2f} s of processor), order_memory_bytes {order_bytes}", flush=True)
    if limit_s and entries == BAR_ENTRIES:  # what does not depend on the number counts more with fewer
        bar.show(f"10^8 {what}", seconds, limit_s, "s")
    mount.unfollow()


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
        memory = max(64, args.entries * 34 >> 20)
        with ddpfs.mounted(base / "dataset", mountpoint=None, view="all", program=BUILD / "tools/ddpfs",
                           memory=f"{memory}M") as mount:
            mount.follow([0])  # the numbering is made once
            for kind, form in (("I", "u32"), ("Q", "u64")):
                numbers = array.array(kind, range(FILES)) * (args.entries // FILES)
                show(mount, f"indices of {numbers.itemsize} bytes, Mount.follow", *timed(mount, numbers))
                show(mount, f"indices of {numbers.itemsize} bytes, the command", *command(mount, numbers, f"--indices={form}"))
                if form == "u32":
                    with over(mount):
                        show(mount, "indices of 4 bytes, over the mount", *timed(mount, numbers), limit_s=None)
                del numbers
            paths = [names[i % FILES] for i in range(args.paths)]
            show(mount, "paths, Mount.follow", *timed(mount, paths))
            with over(mount):
                show(mount, "paths, over the mount", *timed(mount, paths))
            show(mount, "paths ended by NUL, the command", *command(mount, b"".join(f"{p}\0".encode() for p in paths), "-0"))


if __name__ == "__main__":
    main()
