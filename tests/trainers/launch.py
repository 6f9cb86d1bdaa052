# SPDX-License-Identifier: Apache-2.0
"""Starting trainers for the tests: torchrun on this host, gloo over the loopback."""

import json
import os
import sys
from pathlib import Path

from helpers import tools

HERE = Path(__file__).resolve().parent
TRAINER = HERE / "digits_train.py"
ENV = {"OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "lo"}


def torchrun(world, *argv, before=(), python=sys.executable, **kwargs):
    """Runs `argv` under torchrun with `world` ranks; `before` stands in front of torchrun itself."""
    return tools.run([*before, python, "-m", "torch.distributed.run", "--standalone",
                      f"--nproc-per-node={world}", *argv], **{"env": ENV, **kwargs})


def reports(stem, world):
    """What each rank wrote with --report: world, losses, accuracy."""
    return [json.loads(Path(f"{stem}.{rank}.json").read_text()) for rank in range(world)]


def train_on_files(images, stem, world=2, epochs=2, before=(), **kwargs):
    """The trainer with torch's DistributedSampler, on plain files or on all files of a mount."""
    torchrun(world, TRAINER, "--train", images / "train", "--val", images / "val", "--epochs", epochs,
             "--report", stem, *options(kwargs), before=before)
    return reports(stem, world)


def train_alone(images, stem, epochs=2, **kwargs):
    """One process, no launcher."""
    tools.run([sys.executable, TRAINER, "--train", images / "train", "--val", images / "val", "--epochs", epochs,
               "--report", stem, *options(kwargs)], env=ENV)
    return reports(stem, 1)


def train_on_view_all(dataset, scratch, world=2, **kwargs):
    """torch's DistributedSampler on one mount of all files, around torchrun."""
    mnt = scratch / "mnt"
    mnt.mkdir(exist_ok=True)
    before = [tools.tool("ddpfs"), "exec", "-o", "view=all", dataset, mnt, "--"]
    return train_on_files(mnt, scratch / "all", world, before=before, **kwargs)


def train_on_rank_views(dataset, scratch, world=2, epochs=2, mount_options="order=torch,subdir=train,seed=0", **kwargs):
    """Each rank trains on its own mount, in the order of the mount's listing.  Returns (reports, notes folder)."""
    mnt, notes = scratch / "mnt", scratch / "notes"
    mnt.mkdir(exist_ok=True)
    notes.mkdir(exist_ok=True)
    torchrun(world, "--no-python", tools.tool("ddpfs"), "exec", "-o", mount_options, dataset, mnt, "--",
             HERE / "observe", tools.tool("ddpfs"), mnt, epochs, notes,
             sys.executable, TRAINER, "--train", mnt, "--val", mnt / ".ddpfs/all/val", "--sampler", "none",
             "--epochs", epochs, "--report", notes / "mounted", *options(kwargs))
    return reports(notes / "mounted", world), notes


def options(kwargs):
    return [text for key, value in kwargs.items() for text in (f"--{key}", value)]


def full_env():
    """The environment of a process that is started without tools.run."""
    return {**os.environ, **{key: str(value) for key, value in ENV.items()}}
