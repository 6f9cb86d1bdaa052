"""Starting trainers for the tests: torchrun on this host, gloo over the loopback."""

import json
import sys
from pathlib import Path

from helpers import tools

HERE = Path(__file__).resolve().parent
TRAINER = HERE / "digits_train.py"
ENV = {"OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "lo"}


def torchrun(world, *argv, before=(), **kwargs):
    """Runs `argv` under torchrun with `world` ranks; `before` stands in front of torchrun itself."""
    return tools.run([*before, sys.executable, "-m", "torch.distributed.run", "--standalone",
                      f"--nproc-per-node={world}", *argv], env=ENV, **kwargs)


def reports(stem, world):
    """What each rank wrote with --report: world, losses, accuracy."""
    return [json.loads(Path(f"{stem}.{rank}.json").read_text()) for rank in range(world)]


def train_on_files(images, stem, world=2, epochs=2, **kwargs):
    """The trainer on plain files with torch's DistributedSampler."""
    torchrun(world, TRAINER, "--train", images / "train", "--val", images / "val", "--epochs", epochs,
             "--report", stem, *options(kwargs))
    return reports(stem, world)


def options(kwargs):
    return [text for key, value in kwargs.items() for text in (f"--{key}", value)]
