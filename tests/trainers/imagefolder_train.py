#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchvision's ImageFolder and transforms, DistributedSampler, DataLoader, DDP: the trainer that most people have."""

import os
import sys

import torch
import torch.distributed as dist
from digits_train import arguments, build_model, write_report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder


class Numbered(ImageFolder):
    def __getitem__(self, i):
        return *super().__getitem__(i), i


def main():
    args = arguments("trains on an ImageFolder").parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    data = Numbered(args.train, transforms.Compose([transforms.Grayscale(), transforms.ToTensor()]))
    model = build_model()
    network = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=args.workers, pin_memory=True,
                        persistent_workers=True)
    losses, samples = [], []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        samples.append([])
        for pixels, labels, numbers in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(pixels), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            samples[-1] += numbers.tolist()
    write_report(args, rank, world, losses, model, samples)
    del loader  # and its workers
    if world > 1:
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # gloo's threads outlive a DDP module, and hang or abort Python's end now and then (torch 2.13)


if __name__ == "__main__":
    main()
