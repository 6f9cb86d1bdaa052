#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchdata: StatefulDataLoader stopped in the middle and resumed in a new one, and DataLoader2 over datapipes.

    torchdata_read.py stateful|dataloader2 DIR REPORT"""

import hashlib
import json
import os
import sys
from functools import partial

import torch
from torch.utils.data import Dataset


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Files(Dataset):
    def __init__(self, root):
        self.root = root
        self.paths = sorted(os.path.join(d, n) for d, _, names in os.walk(root) for n in names)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return os.path.relpath(self.paths[i], self.root), digest(self.paths[i])


def stateful(root):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        return StatefulDataLoader(Files(root), batch_size=8, shuffle=True, num_workers=2)

    torch.manual_seed(4)
    seen, first = [], loader()
    for step, batch in enumerate(first):
        seen += zip(*batch)
        if step == 4:
            state = first.state_dict()
            break
    second = loader()
    second.load_state_dict(state)
    for batch in second:
        seen += zip(*batch)
    return seen


def read_opened(root, pair):
    path, stream = pair
    data = stream.read()
    stream.close()
    return os.path.relpath(path, root), hashlib.sha256(data).hexdigest()


def dataloader2(root):
    from torch.utils.data.datapipes.iter import FileLister, FileOpener
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

    pipe = FileLister(root, recursive=True).shuffle().sharding_filter()
    loader = DataLoader2(FileOpener(pipe, mode="rb").map(partial(read_opened, root)),
                         reading_service=MultiProcessingReadingService(num_workers=2))
    seen = sorted(loader)
    loader.shutdown()
    return seen


if __name__ == "__main__":
    how, root, report = sys.argv[1:]
    torch.set_num_threads(1)
    with open(report, "w") as f:
        json.dump({"stateful": stateful, "dataloader2": dataloader2}[how](root), f)
