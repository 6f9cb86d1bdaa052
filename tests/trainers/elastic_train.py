#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A DistributedDataParallel trainer that torchrun may restart with any number of ranks, by README's recipe.

    elastic_train.py CHECKPOINT NOTES

CHECKPOINT is a link to a directory with model.pt and data.json, both or neither of one moment.  Each rank writes what it has
trained to a file of its own in NOTES.  DIE=WORLD:STEP:WHAT kills this rank at that step of a run with WORLD ranks once:
itself, or (WHAT is node) its torchrun agent first."""

import json
import os
import signal
import sys

import ddpfs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 3
EVERY = 2  # batches from one checkpoint to the next


class Files(Dataset):
    def __init__(self, root):
        self.paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with open(self.paths[i], "rb") as f:
            content = f.read()
        return os.getxattr(self.paths[i], "user.ddpfs.path").decode(), torch.tensor([len(content) / 1e5])


def save(checkpoint, model, optimizer, state):
    place = f"{checkpoint}.{json.loads(state)['start']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.getpid()}"
    os.mkdir(place)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{place}/model.pt")
    with open(f"{place}/data.json", "w") as f:
        f.write(state)
    os.symlink(place, f"{place}.link")
    os.rename(f"{place}.link", checkpoint)


def meet_fate(world, step, notes):
    when = os.environ.get("DIE", "::").split(":")
    mark = os.path.join(os.path.dirname(notes), f"died.{os.environ.get('DIE')}")
    if when[:2] != [str(world), str(step)] or os.path.exists(mark):
        return
    open(mark, "w").close()
    if when[2] == "node":
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main(checkpoint, notes):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mnt = ddpfs.Mount(os.environ["DDPFS_MOUNT"])
    epoch = mnt.epoch
    start = json.loads(mnt.state(epoch, 0))["start"]
    run = sorted(os.listdir(notes))
    dist.barrier()  # all have looked
    if os.path.exists(checkpoint):
        saved = torch.load(f"{checkpoint}/model.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    network = DistributedDataParallel(model)
    number = torch.tensor([1 + max((int(name.split(".")[0]) for name in run), default=-1)])
    dist.all_reduce(number, dist.ReduceOp.MAX)
    log = open(f"{notes}/{number.item():04d}.{rank}", "w", buffering=1)
    print(json.dumps([number.item(), world, start]), file=log)
    if epoch == 0:
        # Workers read ahead: what is trained is what this loop has counted, not what was opened.
        for step, (paths, sizes) in enumerate(DataLoader(Files(mnt), batch_size=BATCH, num_workers=2), 1):
            meet_fate(world, step, notes)
            optimizer.zero_grad()
            (network(sizes) ** 2).mean().backward()
            optimizer.step()
            print(json.dumps(list(paths)), file=log)
            if rank == 0 and step % EVERY == 0:
                save(checkpoint, model, optimizer, mnt.state(epoch, step * BATCH))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads outlive a DDP module, and hang or abort Python's end now and then (torch 2.13)


if __name__ == "__main__":
    main(*sys.argv[1:])
