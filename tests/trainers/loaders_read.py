#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a tree through PyTorch's DataLoader in one style of dataset and every way of having workers.

    loaders_read.py map|iterable|datapipes DIR REPORT"""

import hashlib
import itertools
import json
import os
import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


def walk(root):
    return sorted(os.path.join(d, n) for d, _, names in os.walk(root) for n in names)


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Map(Dataset):
    def __init__(self, root):
        self.root, self.paths = root, walk(root)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return os.path.relpath(self.paths[i], self.root), digest(self.paths[i])


class Iterable(IterableDataset):
    """Every worker walks for itself and takes its share."""

    def __init__(self, root):
        self.root = root

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for path in walk(self.root)[first::step]:
            yield os.path.relpath(path, self.root), digest(path)


def datapipes(root):
    from torch.utils.data.datapipes.iter import FileLister, FileOpener

    def read(pair):
        path, stream = pair
        data = stream.read()
        stream.close()
        return os.path.relpath(path, root), hashlib.sha256(data).hexdigest()

    files = FileLister(root, recursive=True)
    return FileOpener(files, mode="rb").map(read).shuffle().sharding_filter()


def main():
    style, root, report = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # pin_memory where there is nothing to pin for
    data = {"map": Map, "iterable": Iterable, "datapipes": datapipes}[style](root)
    out = {}
    for workers, persistent, pin in itertools.product((0, 2, 4), (False, True), (False, True)):
        if persistent and not workers:
            continue
        torch.manual_seed(workers)
        loader = DataLoader(data, batch_size=7, num_workers=workers, persistent_workers=persistent, pin_memory=pin,
                            shuffle=True if style == "map" else None)
        out[f"{workers} workers, persistent {persistent}, pinned {pin}"] = [
            [pair for batch in loader for pair in zip(*batch)] for _ in range(2)]
    with open(report, "w") as f:
        json.dump(out, f)


if __name__ == "__main__":
    main()
