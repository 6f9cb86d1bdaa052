#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory and files per second of 8 volumes of one dataset on one node: one server for all or one each, and the same for
8 ranks of one job.

    sudo tests/bench/run node_bench [--files 20000] [--volumes 8] [--epochs 3] [--rounds 3]

The CSI driver's own code (tools/kubernetes/csi) makes the servers and the volumes.  A reader for each volume reads its
part of the order of torch's DistributedSampler.  Rounds go through all ways, so a slow phase of the machine affects
all.  Memory is what the kernel charges to all servers, and pages and kernel memory of all readers, after the last
epoch.  Nothing else may drop caches meanwhile."""

import argparse
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
sys.path[:0] = [str(ROOT / "tests/bench/compare"), str(ROOT / "tools/kubernetes/csi")]
import cgroup  # noqa: E402
import data  # noqa: E402
from ddpfs_csi import mounts, servers  # noqa: E402
from torch.utils.data import DistributedSampler  # noqa: E402

MIB = 1 << 20
LIMIT = 16 << 30  # bytes: of the cgroup, more than any way takes
ONE, NODE, EACH = "one volume", "one server", "a server each"
RANKS, RANKS_EACH = "rank views, one server", "rank views, each"
RANKS_MAX = servers.RANKS_MAX


class Ways:
    def __init__(self, a, place, group):
        self.a, self.place, self.group = a, Path(place), group
        self.dataset = data.Dataset("A", a.files / data.KINDS["A"]["files"], place)
        self.packed = f"{place}/packed"
        subprocess.run([BUILD / "tools/mkshard", "pack", self.dataset.path, self.packed], check=True,
                       stdout=subprocess.DEVNULL)
        self.reader = f"{place}/reader"
        subprocess.run(["cc", "-O2", "-o", self.reader, ROOT / "tests/bench/compare/reader.c", "-lxxhash", "-lpthread"],
                       check=True)
        self.program = self.place / "ddpfs"  # servers begin in their cgroup
        join = "".join(f"echo $$ >{directory}/cgroup.procs\n" for directory in group.directories("/daemon"))
        self.program.write_text(f'#!/bin/sh\n{join}exec {BUILD}/tools/ddpfs "$@"\n')
        self.program.chmod(0o755)
        self.memory = f"{self.dataset.bytes * 5 // 4 // MIB + 64}M"

    def volumes(self, way):
        """(directory of the driver, options, world) of each volume."""
        if way in (RANKS, RANKS_EACH):
            return [("driver", {"rank": str(i), "world": str(self.a.volumes)}, self.a.volumes)
                    for i in range(self.a.volumes)]
        number = 1 if way == ONE else self.a.volumes
        return [(f"driver-{i}" if way == EACH else "driver", {"view": "all"}, number) for i in range(number)]

    def charged(self):
        reader = self.group.memory("/reader")
        return self.group.memory("/daemon")["total"] + reader["file"] + reader["kernel"]

    def forget(self):
        """The shards leave the page cache."""
        for path in Path(self.packed).iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def epoch(self, way, volumes, targets, number):
        """Files a second, until the last reader has read its part."""
        names, readers = [name for name, _ in self.dataset.files], []
        for i, ((_, _, world), target) in enumerate(zip(volumes, targets)):
            if way in (RANKS, RANKS_EACH):
                what = ["-d", str(target)]
            else:
                sampler = DistributedSampler(range(len(names)), num_replicas=world, rank=i)
                sampler.set_epoch(number)
                what = ["-l", self.dataset.write_list(target, [names[k] for k in sampler], f"list-{i}")]
            reader = subprocess.Popen([self.reader, *what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      preexec_fn=self.group.enter("/reader"))
            assert reader.stdout.readline() == "ready\n"
            readers.append(reader)
        began = time.monotonic()
        for reader in readers:
            reader.stdin.write("go\n")
            reader.stdin.close()
        assert not any([reader.wait() for reader in readers])  # every one ends
        return len(names) / (time.monotonic() - began)

    def measure(self, way):
        """{"memory": MiB, "first": files/s, "later": files/s}"""
        self.forget()
        servers.RANKS_MAX = 0 if way == RANKS_EACH else RANKS_MAX  # 0: the driver gives each rank a server
        base, volumes, targets = self.charged(), self.volumes(way), []
        drivers = {name: servers.Servers(str(self.place / name), str(self.program)) for name, _, _ in volumes}
        try:
            for i, (name, options, _) in enumerate(volumes):
                targets.append(self.place / f"volume-{i}")
                drivers[name].publish(self.packed, {**options, "memory": self.memory}, str(targets[-1]))
            count = sum(m.kind == mounts.KIND and Path(m.path).parent.parent == self.place for m in mounts.mounts())
            assert count == (1 if way in (ONE, NODE, RANKS) else self.a.volumes), count
            rates = [self.epoch(way, volumes, targets, number) for number in range(self.a.epochs)]
            return {"memory": (self.charged() - base) / MIB, "first": rates[0], "later": statistics.median(rates[1:])}
        finally:
            for (name, _, _), target in zip(volumes, targets):
                drivers[name].unpublish(str(target))
            while self.group.memory("/daemon")["anon"] > MIB:  # the servers end a moment after their mounts
                time.sleep(0.1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in ("--files", 20000), ("--volumes", 8), ("--epochs", 3), ("--rounds", 3):
        p.add_argument(name, type=int, default=default)
    a = p.parse_args()
    if a.epochs < 2:
        p.error("--epochs: at least 2, because the first one reads from the disk")
    with tempfile.TemporaryDirectory(prefix="node_bench.") as place:
        group = cgroup.Cgroup(place, LIMIT, None)
        try:
            ways = Ways(a, place, group)
            found = {way: [] for way in (ONE, NODE, EACH, RANKS, RANKS_EACH)}
            for _ in range(a.rounds):
                for way in found:
                    found[way].append(ways.measure(way))
            print(f"{a.files} files, {ways.dataset.bytes // MIB} MiB, {a.volumes} volumes, memory={ways.memory}; "
                  f"medians of {a.rounds} (range)")
            print(f"{'':24}{'MiB':>22}{'files/s, first epoch':>26}{'later epochs':>26}")
            for way, rounds in found.items():
                cells = [[r[key] for r in rounds] for key in ("memory", "first", "later")]
                print(f"{way:24}" + "".join(f"{f'{statistics.median(c):.0f} ({min(c):.0f}-{max(c):.0f})':>{w}}"
                                            for c, w in zip(cells, (22, 26, 26))))
        finally:
            group.done()

    def ratio(way, other, key):  # of one round, so that both had the same machine
        return statistics.median(x[key] / y[key] for x, y in zip(found[way], found[other]))

    bar.show(f"memory: {a.volumes} volumes, one server / one volume", ratio(NODE, ONE, "memory"), 1.5, "")
    bar.show(f"memory: {a.volumes} rank views, one server / one volume", ratio(RANKS, ONE, "memory"), 1.5, "")
    bar.show("first epoch: one server / a server each", ratio(NODE, EACH, "first"), 1, "", above=True)
    bar.show("later epochs: one server / a server each", ratio(NODE, EACH, "later"), 1, "", above=True)
    for what, key in ("first epoch", "first"), ("later epochs", "later"):
        bar.show(f"{what}: {a.volumes} rank views, one server / a server each", ratio(RANKS, RANKS_EACH, key), 1, "",
                 above=True)


if __name__ == "__main__":
    main()
