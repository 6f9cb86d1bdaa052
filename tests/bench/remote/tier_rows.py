# SPDX-License-Identifier: Apache-2.0
"""Rows of a dataset in a store with a tier on the local disk.  All but one time count requests and bytes, so a busy
machine does."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import bar

TIER_MIN = 64 << 20
SMALL_ORDERS = ("order=full", "order=full,deal=block", "order=full,deal=stride", "order=full,groups=2", "order=chunk",
                "order=chunk,chunk=4M,pool=16M", "order=none")


class Host:
    """Mounts of one host, which share a tier of `size` bytes; 0: without a tier."""

    def __init__(self, build, scratch, name, size):
        self.build, self.size = build, size
        self.place = Path(scratch) / f"tier-{name}"
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "tier").mkdir(parents=True)

    @contextlib.contextmanager
    def mounted(self, dataset, options, order="order=full"):
        at = self.place / f"mnt-{threading.get_ident()}"
        at.mkdir(exist_ok=True)
        given = f"layout=flat,{order},memory=32M,{options}"
        if self.size:
            given += f",tier={self.place / 'tier'},tier_size={self.size // 1024}K"
        subprocess.run([self.build / "tools/ddpfs", "mount", "-q", dataset, at, "-o", given], check=True)
        try:
            yield at
        finally:
            subprocess.run(["umount", at], check=True)

    def stats(self, at):
        return json.loads(subprocess.run([self.build / "tools/ddpfs", "stat", "--json", at], stdout=subprocess.PIPE,
                                         check=True).stdout)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        shutil.rmtree(self.place)


def read(at, first=0.0, last=1.0):
    """Reads a part of the epoch that the root lists now."""
    names = sorted(name for name in os.listdir(at) if name[0] != ".")
    for name in names[int(len(names) * first):int(len(names) * last)]:
        (at / name).read_bytes()
    return names


def read_listed(at, names, first):
    for name in names[int(len(names) * first):]:
        (at / name).read_bytes()


def shards_of(packed):
    return sum(path.stat().st_size for path in packed.path.glob("shard-*"))


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def cold_epoch(host, dataset):
    """Mounts and reads an epoch of what is on the disk only.  Returns its seconds and the statistics."""
    drop_caches()
    start = time.monotonic()
    with host.mounted(dataset, "rank=0,world=1,epoch=1") as at:
        read(at)
        return time.monotonic() - start, host.stats(at)


def row_whole(env, build, store, packed, url):
    """Epochs with a tier that holds all, in mounts of their own / the same from the dataset on the local disk."""
    ratios, requests = [], 0
    with Host(build, env.scratch, "whole", max(int(packed.bytes * 1.2), TIER_MIN)) as host, \
            Host(build, env.scratch, "none", 0) as none:
        with host.mounted(url, "rank=0,world=1") as at:
            read(at)
        for _ in range(3):
            before = store.counts()[1]
            second, s = cold_epoch(host, url)
            local, _ = cold_epoch(none, packed.path)
            requests = max(requests, s["store_requests"])
            ratios.append(second / local)
            print(f"tier       {second:.2f} s, local {local:.2f} s, {s['store_requests']} requests for shards, "
                  f"{store.counts()[1] - before} bytes in all, {s['tier_bytes'] / 1e6:.0f} MB from the tier, "
                  f"{s['tier_refused']} blocks were not stored", flush=True)
    bar.show("tier of all: requests for shards in epoch 2", requests, 0, "")
    bar.show("tier of all: epoch 2 / local dataset, median of 3", sorted(ratios)[1], 1.1, "x")


def row_quarter(env, build, store, packed, url):
    """A tier of 25%, one host: bytes from the origin in epochs 2 and 3."""
    with Host(build, env.scratch, "quarter", max(packed.bytes // 4, TIER_MIN)) as host, \
            host.mounted(url, "rank=0,world=1") as at:
        counts = []
        for _ in range(3):
            read(at)
            counts.append(store.counts()[1])
    for epoch in (2, 3):
        share = (counts[epoch - 1] - counts[epoch - 2]) / packed.bytes
        bar.show(f"tier of 25%, one host: origin bytes of epoch {epoch} / dataset", share, 0.77, "")


def row_simulated(_env, build, _store, _packed, _url):
    """The same code, simulated: tests/cache/test_tier_uses.c."""
    done = subprocess.run([build / "tests/cache/test_cache_tier_uses"], stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        if line.startswith(("a tier of", "mean of", "groups=")):
            print(f"simulated  {line}", flush=True)
        if line.startswith("mean of"):
            bar.show("tier of 25%, one of 8 hosts: origin / bytes read", float(line.split(": ")[1].split(";")[0]), 0.45, "")


def row_groups(env, build, store, packed, url):
    """4 hosts, groups=4,redeal=4, a tier of 30% each.  The last tenth of epoch 4 does not count: epoch 5 has other samples,
    and is read ahead meanwhile."""
    for rank in range(4):
        with Host(build, env.scratch, f"group{rank}", max(int(packed.bytes * 0.3), TIER_MIN)) as host, \
                host.mounted(url, f"rank={rank},world=4,groups=4,redeal=4") as at:
            counts = [store.counts()[1]]
            for _ in range(3):
                read(at)
                counts.append(store.counts()[1])
            names = read(at, last=0.9)
            counts.append(store.counts()[1])
            read_listed(at, names, 0.9)
            refused = host.stats(at)["tier_refused"]
        parts = ", ".join(f"{(b - a) / packed.bytes:.4f}" for a, b in zip(counts, counts[1:]))
        print(f"groups     host {rank}: origin bytes of epochs 1 to 4 / dataset: {parts}; {refused} blocks were not stored",
              flush=True)
        bar.show(f"groups=4, host {rank}: origin bytes of epochs 2-4 / dataset", (counts[4] - counts[1]) / packed.bytes,
                 0.01, "")


def two_ranks(env, build, store, packed, url, order):
    """Returns the bytes that two mounts of a host fetch in an epoch / those of the shards.  Prints the requests."""
    with Host(build, env.scratch, "two", max(2 * packed.bytes, TIER_MIN)) as host:
        requests, before = store.counts()

        def rank(number):
            with host.mounted(url, f"rank={number},world=2", order) as at:
                read(at)

        ranks = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        print(f"two        {order}: {store.counts()[0] - requests} requests", flush=True)
        return (store.counts()[1] - before) / shards_of(packed)


def row_two(env, build, store, packed, url):
    """Two mounts of one host, the two ranks of a job: bytes from the origin over one epoch / bytes of the shards."""
    bar.show("two mounts: origin bytes / shards", two_ranks(env, build, store, packed, url, "order=full"), 1.02, "")


def row_small(env, build, store, packed, url):
    """The same with files of 4 KiB, which are merged into reads, and a first byte after 20 ms."""
    for order in SMALL_ORDERS:
        share = two_ranks(env, build, store, packed, url, order)
        bar.show(f"two mounts, 4 KiB, {order}: origin bytes / shards", share, 1.02, "")


ROWS = {"whole": row_whole, "quarter": row_quarter, "simulated": row_simulated, "groups": row_groups, "two": row_two,
        "small": row_small}
