#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer whose samples are read on another node: torch.distributed.rpc, "reader" has the files, "trainer" has none.

    RANK=0|1 rpc_train.py DIR REPORT"""

import hashlib
import json
import os
import sys

import torch
import torch.distributed.rpc as rpc
from digits_train import Digits, build_model, weights_hash
from torch import nn
from torch.utils.data import DataLoader, Dataset


def length(root):
    return len(Digits(root))


DATA = {}


def sample(root, i):
    """Runs on the reader."""
    if root not in DATA:
        DATA[root] = Digits(root)
    data = DATA[root]
    with open(data.files[i], "rb") as f:
        sha = hashlib.sha256(f.read()).hexdigest()
    return *data[i], sha


class Remote(Dataset):
    def __init__(self, root):
        self.root, self.length = root, rpc.rpc_sync("reader", length, (root,))

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return rpc.rpc_sync("reader", sample, (self.root, i))


def main():
    root, report = sys.argv[1:]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    rpc.init_rpc(["trainer", "reader"][rank], rank=rank, world_size=2)
    if rank == 0:
        torch.manual_seed(0)
        model = build_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        losses, seen = [], []
        for pixels, labels, shas in DataLoader(Remote(root), batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen += shas
        with open(report, "w") as f:
            json.dump({"losses": losses, "weights": weights_hash(model), "seen": seen}, f)
    rpc.shutdown()


if __name__ == "__main__":
    main()
