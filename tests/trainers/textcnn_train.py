#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TextCNN on a folder of text files, one a document, its class the folder's name; DDP under torchrun."""

import hashlib
import os
import re
import sys

import torch
import torch.distributed as dist
from digits_train import arguments, write_report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

WORDS, LENGTH = 2000, 64


class Texts(Dataset):
    def __init__(self, root):
        self.classes = sorted(os.listdir(root))
        self.files = [(os.path.join(root, c, n), i) for i, c in enumerate(self.classes)
                      for n in sorted(os.listdir(os.path.join(root, c)))]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        path, label = self.files[i]
        with open(path, encoding="utf-8") as f:  # by lines, as text is read
            words = [w for line in f for w in re.findall(r"\w+", line.lower())]
        numbers = [1 + int(hashlib.md5(w.encode()).hexdigest(), 16) % (WORDS - 1) for w in words[:LENGTH]]
        return torch.tensor(numbers + [0] * (LENGTH - len(numbers))), label, i


class TextCNN(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32)
        self.convolutions = nn.ModuleList(nn.Conv1d(32, 16, width) for width in (3, 4, 5))
        self.output = nn.Linear(48, classes)

    def forward(self, words):
        x = self.embedding(words).transpose(1, 2)
        return self.output(torch.cat([torch.relu(c(x)).amax(2) for c in self.convolutions], 1))


def main():
    args = arguments("trains TextCNN").parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    data = Texts(args.train)
    model = TextCNN(len(data.classes))
    network = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    losses, samples = [], []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        samples.append([])
        for words, labels, numbers in DataLoader(data, args.batch, sampler=sampler, num_workers=args.workers):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(words), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            samples[-1] += numbers.tolist()
    write_report(args, rank, world, losses, model, samples)
    if world > 1:
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # gloo's threads outlive a DDP module, and hang or abort Python's end now and then (torch 2.13)


if __name__ == "__main__":
    main()
