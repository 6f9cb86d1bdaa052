#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An ordinary DistributedDataParallel trainer: a small CNN on a folder of PNG digits.

It walks a directory, opens image files and knows nothing of ddpfs.  Started by torchrun or alone:

    torchrun --nproc-per-node=2 digits_train.py --train DIR --val DIR

By default torch's DistributedSampler shuffles and divides the files of --train among the ranks.  With --sampler=none
each rank takes every file of its own --train directory in sorted order: for directories that already hold one rank's
part."""

import argparse
import hashlib
import json
import os
import random
import re
import sys

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

LABEL = re.compile(r"(\d)_\d+\.png$")


class Digits(Dataset):
    """Every PNG file below a directory; the label stands in front of the file's name, as in 7_0123.png."""

    def __init__(self, root):
        self.files = sorted(os.path.join(d, n) for d, _, names in os.walk(root) for n in names if LABEL.search(n))
        if not self.files:
            raise SystemExit(f"no digits below {root}")

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with Image.open(self.files[i]) as image:
            pixels = torch.tensor(list(image.convert("L").tobytes()), dtype=torch.float32)
        return pixels.view(1, 8, 8) / 255, int(LABEL.search(self.files[i]).group(1))


class NumberedDigits(Digits):
    """The same, with the number of each sample."""

    def __getitem__(self, i):
        return *super().__getitem__(i), i


def build_model():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for pixels, labels in loader:
            right += (model(pixels).argmax(1) == labels).sum().item()
            total += len(labels)
    model.train()
    return right / total


def weights_hash(model):
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def random_states():
    """Hashes of the states of all random number generators that a trainer has."""
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "python": repr(random.getstate()).encode(),
              "numpy": b"".join(np.asarray(part).tobytes() for part in np.random.get_state()[1:])}
    return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


def write_report(args, rank, world, losses, model, samples):
    """The numbers of the samples of each epoch, what else there is to compare; for the trainers beside this one."""
    with open(f"{args.report}.{rank}.json", "w") as f:
        json.dump({"world": world, "losses": losses, "weights": weights_hash(model), "samples": samples,
                   "random": random_states()}, f)


def arguments(description):
    random.seed(0)  # the states of these two are compared, too, and not every trainer seeds them
    np.random.seed(0)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--train", required=True, help="directory of training images")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16, help="images of a batch on each rank")
    parser.add_argument("--workers", type=int, default=1, help="DataLoader workers of each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", help="write each rank's results to REPORT.<rank>.json")
    return parser


def main():
    args = arguments("trains a small CNN on PNG digits")
    args.add_argument("--val", required=True, help="directory of validation images")
    args.add_argument("--sampler", choices=["distributed", "none"], default="distributed")
    args.add_argument("--parallel", choices=["auto", "data"], default="auto",
                      help="auto: DistributedDataParallel where there are ranks; data: DataParallel in one process")
    args = args.parse_args()

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = build_model()
    network = model
    if world > 1:
        network = DistributedDataParallel(model)
    elif args.parallel == "data":
        network = nn.DataParallel(model)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    loss_of = nn.CrossEntropyLoss()
    losses, scores = [], []

    for epoch in range(args.epochs):
        first = len(losses)
        data = Digits(args.train)
        sampler = None
        if args.sampler == "distributed":
            sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True, seed=args.seed)
            sampler.set_epoch(epoch)
        for pixels, labels in DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=args.workers):
            optimizer.zero_grad()
            loss = loss_of(network(pixels), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if rank == 0:
            scores.append(accuracy(model, DataLoader(Digits(args.val), batch_size=256)))
            mean = sum(losses[first:]) / (len(losses) - first)
            print(f"epoch {epoch}: mean loss {mean:.4f}, accuracy {scores[-1]:.4f}", flush=True)

    if args.report:
        with open(f"{args.report}.{rank}.json", "w") as f:
            json.dump({"world": world, "losses": losses, "accuracy": scores[-1] if scores else None,
                       "weights": weights_hash(model)}, f)
    if world > 1:
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)  # gloo's threads outlive a DDP module, and hang or abort Python's end now and then (torch 2.13)


if __name__ == "__main__":
    main()
