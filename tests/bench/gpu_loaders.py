#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole files into the memory of a GPU: a PyTorch DataLoader on the loose files beside libddpfs_stage on the packed ones.

  tests/bench/run gpu_loaders FILES DATASET [--mount DIR] [--batch 64] [--workers 2 8] [--step-ms 5] [--memory 4G 512M]
                              [--epochs 3]

FILES is what DATASET was packed from; DIR a mount of it with view=all.  `files` and `mount` are DataLoader(pin_memory=True)
with so many workers, and a copy with non_blocking=True.  `stage` is ddpfs.Stage(backend="cuda") with so much memory.
Columns, medians of the epochs:

  cold      first epoch, after the kernel was made to forget all files
  later     epochs after it, as fast as they go
  CPU       seconds of processor a GB of the whole machine, later epochs
  stall     a kernel of --step-ms follows each batch: the share of the epoch in which none ran

The bytes of all files are summed up on the GPU once for each loader, and must be equal.  Needs torch with CUDA, and root.
"""
import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("DDPFS_STAGE_LIB", str(Path(os.environ.get("DDPFS_BUILD", ROOT / "build")) / "gpu_stage/libddpfs_stage.so"))
sys.path.insert(0, str(ROOT / "gpu_stage/python"))
import ddpfs  # noqa: E402

CYCLES = 100_000_000  # of the GPU's clock, to learn how long one lasts


class Files(Dataset):
    def __init__(self, root):
        self.paths = sorted(p for p in Path(root).rglob("*") if p.is_file())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as f:
            return torch.frombuffer(bytearray(f.read()), dtype=torch.uint8)


class FilesLoader:
    """Batches of a DataLoader, each as one tensor on the GPU: files differ in length, so they lie one after another."""

    def __init__(self, root, batch, workers):
        self.data, self.batch, self.workers = Files(root), batch, workers

    def epoch(self, number):
        order = torch.Generator().manual_seed(number)
        loader = DataLoader(self.data, self.batch, shuffle=True, generator=order, num_workers=self.workers, pin_memory=True,
                            collate_fn=torch.cat)
        for rows in loader:
            yield rows.to("cuda", non_blocking=True)

    @staticmethod
    def tensor(rows):
        return rows

    @staticmethod
    def files(rows):
        return [rows]


class StageLoader:
    def __init__(self, dataset, batch, memory):
        self.stage = ddpfs.Stage(dataset, batch, order="full", memory=memory, backend="cuda")

    def epoch(self, number):
        self.stage.set_epoch(number)
        for batch in self.stage:
            yield batch

    @staticmethod
    def tensor(batch):
        return batch.flat()[0]

    @staticmethod
    def files(batch):  # between them lie bytes of no file
        return [batch.tensor(i) for i in range(len(batch))]


def forget():
    """The kernel forgets all names and pages that it can."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def processor_s():
    """Seconds that all processors have worked: those of workers and servers are in it."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def timed(loader, number, cycles=0):
    """(seconds, seconds of processor, batches) of one epoch; a kernel of so many cycles follows each batch."""
    began, processor, n = time.monotonic(), processor_s(), 0
    for batch in loader.epoch(number):
        tensor = loader.tensor(batch)  # the current stream waits for the copies
        if cycles:
            torch.cuda._sleep(cycles)
        del tensor, batch
        n += 1
    torch.cuda.synchronize()
    return time.monotonic() - began, processor_s() - processor, n


def cycles_of(step_ms):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CYCLES)
    begin.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    torch.cuda.synchronize()
    return int(CYCLES / begin.elapsed_time(end) * step_ms)


def check_sum(loader):
    return int(sum(t.sum(dtype=torch.int64) for batch in loader.epoch(0) for t in loader.files(batch)))


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("files")
    args.add_argument("dataset")
    args.add_argument("--mount", metavar="DIR")
    args.add_argument("--batch", type=int, default=64)
    args.add_argument("--workers", type=int, nargs="*", default=[2, 8])
    args.add_argument("--step-ms", type=float, default=5)
    args.add_argument("--memory", nargs="*", default=["4G", "512M"])
    args.add_argument("--epochs", type=int, default=3)
    args = args.parse_args()

    sizes = [p.stat().st_size for p in Path(args.files).rglob("*") if p.is_file()]
    gb = sum(sizes) / 1e9
    cycles = cycles_of(args.step_ms)
    print(f"{len(sizes)} files, {gb:.2f} GB, batch {args.batch}, {torch.cuda.get_device_name()}, {os.cpu_count()} processors, "
          f"torch {torch.__version__}, step {args.step_ms:g} ms")
    print(f"| {'loader':20} | cold GB/s | later GB/s | samples/s | CPU s/GB | stall % |")
    print("|---|---|---|---|---|---|")
    sums = set()
    roots = [("files", args.files)] + ([("mount", args.mount)] if args.mount else [])
    makers = [(f"{name}, {w} workers", lambda root=root, w=w: FilesLoader(root, args.batch, w))
              for name, root in roots for w in args.workers]
    makers += [(f"stage, {m}", lambda m=m: StageLoader(args.dataset, args.batch, m)) for m in args.memory]
    for name, make in makers:
        forget()
        loader = make()
        cold = timed(loader, 1)[0]
        later = [timed(loader, 2 + k) for k in range(args.epochs)]
        stepped = [timed(loader, 20 + k, cycles) for k in range(args.epochs)]
        sums.add(check_sum(loader))
        seconds = statistics.median(s for s, _, _ in later)
        stall = statistics.median(1 - n * args.step_ms / 1e3 / s for s, _, n in stepped)
        print(f"| {name:20} | {gb / cold:9.2f} | {gb / seconds:10.2f} | {len(sizes) / seconds:9.0f} | "
              f"{statistics.median(p for _, p, _ in later) / gb:8.2f} | {stall * 100:7.1f} |", flush=True)
        del loader
    if len(sums) != 1:
        sys.exit(f"gpu_loaders: the loaders gave different bytes: {sorted(sums)}")


if __name__ == "__main__":
    main()
