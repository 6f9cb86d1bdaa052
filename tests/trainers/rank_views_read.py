#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a rank's flat view for some epochs with workers that live through all of them.

    rank_views_read.py DIR EPOCHS REPORT"""

import json
import os
import sys

from torch.utils.data import DataLoader, Dataset, Sampler


class Files(Dataset):
    """Opens what it is told to: it has no list that could be of another epoch."""

    def __init__(self, root):
        self.root = root

    def __getitem__(self, name):
        with open(os.path.join(self.root, name), "rb") as file:
            return name, len(file.read())


class Epoch(Sampler):
    """Lists anew for each epoch, in the process that trains."""

    def __init__(self, root):
        self.root = root

    def __iter__(self):
        return iter(sorted(os.listdir(self.root)))


def main():
    root, epochs, report = sys.argv[1:]
    loader = DataLoader(Files(root), sampler=Epoch(root), batch_size=7, num_workers=2, persistent_workers=True)
    out = [[name for names, _ in loader for name in names] for _ in range(int(epochs))]
    with open(report, "w") as file:
        json.dump(out, file)


if __name__ == "__main__":
    main()
