#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer with timm's datasets and loader, as its train.py makes them: its own walk through the folder, its samplers."""

import os
import sys

import torch
import torch.distributed as dist
from digits_train import arguments, build_model, write_report
from timm.data import create_dataset, create_loader
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Numbered(torch.utils.data.Dataset):
    """timm's dataset; the number of the sample stands in the label's higher digits."""

    def __init__(self, dataset):
        self.dataset = dataset

    @property
    def transform(self):
        return self.dataset.transform

    @transform.setter
    def transform(self, transform):
        self.dataset.transform = transform

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        pixels, label = self.dataset[i]
        return pixels, label + 10 * i


def main():
    parser = arguments("trains with timm's loader")
    parser.add_argument("--repeats", type=int, default=0, help="repeated augmentation: RepeatAugSampler")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    data = Numbered(create_dataset("", root=args.train, is_training=True))
    loader = create_loader(data, input_size=(3, 8, 8), batch_size=args.batch, is_training=True, no_aug=True,
                           num_workers=args.workers, distributed=world > 1, num_aug_repeats=args.repeats,
                           use_prefetcher=False, persistent_workers=False, device=torch.device("cpu"))
    model = build_model()
    network = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    losses, samples = [], []
    for epoch in range(args.epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        samples.append([])
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(pixels.float().mean(1, keepdim=True)), labels % 10)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            samples[-1] += (labels // 10).tolist()
    write_report(args, rank, world, losses, model, samples)
    if world > 1:
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # gloo's threads outlive a DDP module, and hang or abort Python's end now and then (torch 2.13)


if __name__ == "__main__":
    main()
