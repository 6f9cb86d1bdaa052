#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reader with torch's DistributedSampler on a tree of all files: READs that the kernel sends to the server, before and
after the sampler is recognised.

  tests/bench/run recognise_mount [--files 100000] [--kib 4] [--compute-us 300] [--workers 2] [--epochs 2]
  tests/bench/run recognise_mount --unseeded --compute-us 1000 --options layout=tree,view=all,seed_search=1

Counted by the kernel's fuse_request_send events, not by the server.  `taken back` are READs of files that had been read
ahead and whose pages the kernel took back before they were opened: under memory pressure, or where DAMON pages out what
nobody has touched for a second, as on some virtual machines.  `hits` are the opens without a READ but for those.
With --unseeded the loader is DataLoader(shuffle=True), and waits instead of computing, as for a GPU.
Needs root and torch."""
import argparse
import glob
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "compare")]

import cgroup  # noqa: E402
from helpers import mounts, tools  # noqa: E402


def reader(root, files, a, marks):
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

    torch.set_num_threads(1)

    class Files(Dataset):
        def __len__(self):
            return len(files)

        def __getitem__(self, index):
            fd = os.open(f"{root}/{files[index]}", os.O_RDONLY)
            size = len(os.read(fd, 1 << 20))
            os.close(fd)
            end = time.perf_counter() + a.compute_us / 1e6
            if a.unseeded:
                time.sleep(a.compute_us / 1e6)
            while time.perf_counter() < end:
                pass
            return size

    data = Files()
    sampler = RandomSampler(data) if a.unseeded else DistributedSampler(data, num_replicas=2, rank=1, seed=a.seed)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=a.workers)
    for epoch in range(a.epochs):
        if not a.unseeded:
            sampler.set_epoch(epoch)
        start = time.perf_counter()
        for step, _ in enumerate(loader):
            if step in (3, 100):
                marks(f"epoch {epoch}, to batch {step}", None)
        marks(f"epoch {epoch}, to its end", time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("files", 100000), ("kib", 4), ("compute-us", 300), ("workers", 2), ("epochs", 2), ("seed", 17)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--unseeded", action="store_true")
    parser.add_argument("--options", default="layout=tree,view=all")
    a = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="ddpfs-bench.", dir=os.environ.get("DDPFS_BENCH_DIR")))
    mounter = mounts.Mounter(place)
    requests = cgroup.FuseRequests()
    try:
        classes = max(1, a.files // 1280)
        files = [f"class_{i % classes:04d}/item_{i // classes:06d}.bin" for i in range(a.files)]
        files.sort()
        data = os.urandom(a.kib * 1024)
        for name in files:
            path = place / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode() + data[len(name):])
        tools.run([tools.tool("mkshard"), "pack", place / "tree", place / "set"])
        shutil.rmtree(place / "tree")
        m = mounter(place / "set", a.options)
        requests.watch([m.path])
        last = {"reads": requests.counters()["fuse_read"], "opens": 0, "lost": 0}
        print(f"{'':24} {'opens':>9} {'READs sent':>12} {'taken back':>12} {'hits':>8} {'seconds':>9}")

        def marks(what, seconds):
            sent = requests.counters()["fuse_read"] - last["reads"]
            now = json.loads((m.path / ".ddpfs/stats.json").read_text())
            opens, lost = now["opens"] - last["opens"], now["lost"] - last["lost"]
            hits = 100 * (1 - max(0, sent - lost) / opens)
            print(f"{what:24} {opens:9} {sent:12} {lost:12} {hits:7.2f}% {f'{seconds:9.2f}' if seconds else '':>9}", flush=True)
            last.update(now, reads=requests.counters()["fuse_read"])

        reader(m.path, files, a, marks)
        states = [Path(path).read_text().strip() for path in glob.glob("/sys/kernel/mm/damon/admin/kdamonds/*/state")]
        if "seed_search" in last:
            print(f"seed search: {last['seed_search']}")
        print(f"recognised: {last['recognised']}; DAMON: {'on' if 'on' in states else 'off'}")
        print(m.log(), end="")
    finally:
        requests.done()
        for complaint in mounter.close():
            print(complaint, file=sys.stderr)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
