#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference trainer in Python: DistributedDataParallel on batches from libddpfs_stage.

    torchrun --nproc-per-node=2 digits_ddp.py --dataset DATASET [--backend cpu|cuda]
    torchrun --nproc-per-node=2 digits_ddp.py --files DIR              the plain files, with torch's own loader

Samples are those of make_digits.py: the label and 64 pixels.  With cuda a batch is a tensor in GPU memory that the
library's copy stream fills; with cpu, a copy in host memory."""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Plain(Dataset):
    def __init__(self, root):
        self.files = sorted(Path(root).rglob("*.bin"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return torch.frombuffer(bytearray(self.files[i].read_bytes()), dtype=torch.uint8)


def plain_epochs(args, part, rank, world):
    """Returns a function epoch -> its batches, by DistributedSampler and DataLoader."""
    data = Plain(Path(args.files) / part)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)

    def batches(epoch):
        sampler.set_epoch(epoch)
        return loader

    return batches


def staged_epochs(args, part, rank, world):
    """Returns such a function for a packed dataset."""
    import ddpfs

    stage = ddpfs.Stage(args.dataset, args.batch, rank=rank, world=world, subdir=part, order=args.order, seed=args.seed,
                        memory="64M", backend=args.backend)

    def batches(epoch):
        stage.set_epoch(epoch)
        return (batch.tensor() for batch in stage)

    return batches


def split(rows):
    return rows[:, 1:].float() / 255, rows[:, 0].long()


def accuracy(model, batches):
    right = total = 0
    with torch.no_grad():
        for rows in batches:
            pixels, labels = split(rows)
            right += (model(pixels).argmax(1) == labels).sum()
            total += len(labels)
    return float(right) / total


def main():
    args = argparse.ArgumentParser(description="trains a perceptron on digits")
    source = args.add_mutually_exclusive_group(required=True)
    source.add_argument("--dataset", help="packed dataset")
    source.add_argument("--files", help="directory of plain files")
    args.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    args.add_argument("--order", default="torch")
    args.add_argument("--epochs", type=int, default=20)
    args.add_argument("--batch", type=int, default=32, help="samples of a batch on each rank")
    args.add_argument("--rate", type=float, default=0.2)
    args.add_argument("--seed", type=int, default=0)
    args = args.parse_args()

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if args.backend == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)  # the stage takes the same one
    else:
        torch.set_num_threads(1)
    if world > 1:
        if args.backend == "cuda":
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    network = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(network.parameters(), lr=args.rate)
    loss_of = nn.CrossEntropyLoss()
    epochs_of = staged_epochs if args.dataset else plain_epochs
    train, val = epochs_of(args, "train", rank, world), epochs_of(args, "val", 0, 1) if rank == 0 else None

    for epoch in range(args.epochs):
        for group in optimizer.param_groups:
            group["lr"] = args.rate * (1 - epoch / args.epochs)
        total, steps = torch.zeros((), device=device), 0
        for rows in train(epoch):
            pixels, labels = split(rows.to(device))
            optimizer.zero_grad()
            loss = loss_of(network(pixels), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()  # read at the end: a step waits for nothing
            steps += 1
        if rank == 0:
            score = accuracy(model, (rows.to(device) for rows in val(epoch)))
            print(f"epoch {epoch}: mean loss {float(total) / steps:.4f}, accuracy {score:.4f}", flush=True)
    if world > 1:
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # gloo's threads outlive a DDP module, and hang or abort Python's end now and then (torch 2.13)


if __name__ == "__main__":
    main()
