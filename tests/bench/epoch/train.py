# SPDX-License-Identifier: Apache-2.0
"""The DDP script that tests/bench/epoch times: rank and world from torchrun, files or a loader library, two epochs.

    train.py files|view|wds|mds|litdata DIR raw|jpeg PLACE

`files`: a tree under DistributedSampler; `view`: a rank's flat mount, listed anew for each epoch.  Where a bench needs it:
PLACE gets ready.RANK after the imports, the epoch begins when PLACE/go is there, and seconds.RANK says what it took."""
import glob
import io
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../compare"))
from loaders import import_streaming  # noqa: E402

KIND, ROOT, WHAT, PLACE = sys.argv[1:5]
BATCH, WORKERS, SEED, EPOCHS = 32, 1, 11, 2


def pixels(data):
    """A sample as a tensor: a small picture, decoded or (raw) just the head of the bytes, all of which were read."""
    if WHAT == "raw":
        return torch.frombuffer(bytearray(data[:768]), dtype=torch.uint8).float() / 255
    with Image.open(io.BytesIO(data)) as image:
        small = image.convert("RGB").resize((16, 16))
    return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).float() / 255


class Files(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as f:
            return pixels(f.read())


def collate(batch):
    """The libraries hand over records, the files tensors already."""
    return torch.stack([b if torch.is_tensor(b) else pixels(b.get("img", b.get("jpeg"))) for b in batch])


def loader_of(kind):
    """A function: epoch -> an iterable of batches."""
    rank, world = dist.get_rank(), dist.get_world_size()
    common = {"batch_size": BATCH, "num_workers": WORKERS, "collate_fn": collate}
    if kind == "files":
        data = Files(sorted(glob.glob(f"{ROOT}/*/*.jpg")))
        sampler = DistributedSampler(data, world, rank, seed=SEED)
        loader = DataLoader(data, sampler=sampler, persistent_workers=True, **common)

        def epochs(epoch):
            sampler.set_epoch(epoch)
            return loader
        return epochs
    if kind == "view":
        return lambda epoch: DataLoader(Files([f"{ROOT}/{name}" for name in sorted(os.listdir(ROOT))]), **common)
    if kind == "wds":
        import webdataset as wds

        data = wds.WebDataset(sorted(glob.glob(f"{ROOT}/*.tar")), nodesplitter=wds.split_by_node, shardshuffle=100,
                              seed=SEED, empty_check=False).shuffle(1000)
        loader = DataLoader(data, persistent_workers=True, **common)
    elif kind == "mds":
        data = import_streaming().StreamingDataset(local=ROOT, shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
        loader = DataLoader(data, persistent_workers=True, **common)
    else:
        from litdata import StreamingDataLoader, StreamingDataset

        loader = StreamingDataLoader(StreamingDataset(ROOT, shuffle=True, seed=SEED), persistent_workers=True, **common)
    return lambda epoch: loader


def main():
    if KIND in ("wds", "mds", "litdata"):  # imported before the clock starts
        import_streaming() if KIND == "mds" else __import__({"wds": "webdataset"}.get(KIND, KIND))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = DistributedDataParallel(nn.Sequential(nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    open(f"{PLACE}/ready.{rank}", "w").close()
    while not os.path.exists(f"{PLACE}/go"):
        time.sleep(0.01)
    epochs, out = None, []
    for epoch in range(EPOCHS):
        dist.barrier()
        start, seen = time.monotonic(), 0
        epochs = epochs or loader_of(KIND)
        for batch in epochs(epoch):
            loss = network(batch).logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(batch)
        dist.barrier()
        out.append({"start": start, "end": time.monotonic(), "files": seen})
    with open(f"{PLACE}/seconds.{rank}", "w") as f:
        json.dump(out, f)


if __name__ == "__main__":
    main()
