# SPDX-License-Identifier: Apache-2.0
"""Frameworks with samplers and launchers of their own, on plain files and on one mount of all files: the same samples,
losses and weights; ranks that divide the set; and whether the mount recognises the sampler, as README.md's table says.
Under `ddpfs exec` every sampler is announced."""

import json
import shutil
import threading
from pathlib import Path

import pytest

from helpers import tools
from trainers import heavy, launch

pytestmark = pytest.mark.trainers
EPOCHS = 3
NOTHING = "nothing"

# name, package, ranks (0: one process without a launcher), arguments, what the mount says at the end (its beginning)
CASES = [
    ("imagefolder", "torchvision", 2, [], "torch DistributedSampler"),
    ("lightning", "lightning", 2, [], "torch DistributedSampler"),
    ("ray", "ray", 2, [], "torch DistributedSampler"),
    ("timm", "timm", 2, [], "torch DistributedSampler"),
    ("timm, RepeatAugSampler", "timm", 2, ["--repeats", "3"], "torch DistributedSampler"),
    ("timm, one process", "timm", 0, [], NOTHING),
    ("accelerate, use_seedable_sampler", "accelerate", 2, ["--seedable"], "torch DistributedSampler"),
    ("accelerate", "accelerate", 2, [], NOTHING),
    ("accelerate, one process", "accelerate", 0, [], NOTHING),
    ("hf", "transformers", 2, [], "torch DistributedSampler"),
]


def command(name, arguments, images, stem):
    return [launch.HERE / f"{name}_train.py", "--train", images / "train", "--epochs", EPOCHS, "--workers", 2, "--report",
            stem, *arguments]


def train(name, world, arguments, images, stem):
    argv = command(name, arguments, images, stem)
    if name == "ray":
        heavy.run(*argv, "--world", world, "--storage", stem.parent / f"{stem.name}-ray",
                  env={"PYTHONPATH": launch.HERE})
    elif world:
        heavy.torchrun(world, *argv)
    else:
        heavy.run(*argv)
    return launch.reports(stem, max(world, 1))


@pytest.mark.parametrize("what, package, world, arguments, recognised", CASES, ids=[case[0] for case in CASES])
def test_framework(what, package, world, arguments, recognised, digits, pack, mount, scratch, record_property,
                   compared):
    heavy.need(package)
    compared(package, heavy.version(package))
    name = what.split(",")[0]
    plain = train(name, world, arguments, digits, scratch / "plain")
    m = mount(pack(digits), "view=all")
    mounted = train(name, world, arguments, m.path, scratch / "mounted")
    for report in plain + mounted if name == "ray" else ():
        del report["random"]  # its workers do not seed Python's generator
    assert mounted == plain

    count = len(list((digits / "train").rglob("*.png")))
    for epoch in range(EPOCHS):
        seen = [n for rank in mounted for n in rank["samples"][epoch]]
        if name != "timm":  # which drops the last batch
            assert set(seen) == set(range(count)), f"epoch {epoch} is not the set"
        if "--repeats" not in arguments:
            assert len(seen) - len(set(seen)) < 16 * len(mounted), "more than padding came twice"
    stats = tools.stat_json(m.path)
    record_property("recognition", {"trainer": what, "ranks": max(world, 1), **{
        key: stats[key] for key in ("recognised", "opens", "misses")}})
    assert stats["recognised"].startswith(recognised)


def first_window(world):
    """The files that a loader's workers may open before the mount has read the first one that was announced: the trainer
    does not wait for it.  Each of a rank's two workers has up to two batches of 16 files at once."""
    return world * 2 * 2 * 16


@pytest.mark.parametrize("what, package, world, arguments, _", [case for case in CASES if case[1] != "ray"],
                         ids=[case[0] for case in CASES if case[1] != "ray"])
def test_framework_is_announced_under_exec(what, package, world, arguments, _, digits, pack, scratch, record_property,
                                           compared):
    """No changed line: the same losses, weights and samples as on plain files, and the mount was told each order."""
    heavy.need(package)
    compared(package, heavy.version(package))
    name = what.split(",")[0]
    plain = train(name, world, arguments, digits, scratch / "plain")
    (scratch / "mnt").mkdir()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world else []
    program = [heavy.PYTHON, *launcher, *command(name, arguments, scratch / "mnt", scratch / "mounted")]
    done = tools.ddpfs("exec", "-q", "-o", "view=all", pack(digits), scratch / "mnt", "--", "sh", "-c",
                       '"$@" >&2; exec "$STAT" stat --json "$DDPFS_MOUNT"', "-", *map(str, program),
                       env={**heavy.ENV, "STAT": tools.tool("ddpfs")})
    assert launch.reports(scratch / "mounted", max(world, 1)) == plain
    stats = json.loads(done.stdout)
    record_property("recognition", {"trainer": what, "ranks": max(world, 1), "recognised": "under exec: " + stats["order_source"],
                                    "opens": stats["opens"], "misses": stats["misses"]})
    assert stats["order_source"] == "announced" and stats["orders_dropped"] == 0
    assert stats["announced_opens"] > 0.8 * stats["opens"], "what comes before the first announcement is not counted"
    # lost: the kernel took it back before it was opened, so it is read again
    assert stats["misses"] <= first_window(max(world, 1)) + 0.01 * stats["opens"] + stats["lost"]


def test_lightning_while_the_kernel_takes_pages_back(digits, pack, mount, scratch):
    """500 files, a step of 50 ms on two ranks, and each second all pages, names and inodes of the host are taken back."""
    heavy.need("lightning")
    control = Path("/proc/sys/vm/drop_caches")
    images = scratch / "images"
    for file in sorted((digits / "train").rglob("*.png"))[::2][:500]:
        (images / "train" / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, images / "train" / file.parent.name)
    arguments = ["--epochs", 8, "--step", 0.05]
    plain = train("lightning", 2, arguments, images, scratch / "plain")
    m = mount(pack(images), "view=all")
    done, drops = threading.Event(), 0

    def press():
        nonlocal drops
        while not done.wait(1):
            if tools.stat_json(m.path)["following"]:
                control.write_text("3")
                drops += 1

    presser = threading.Thread(target=press)
    presser.start()
    try:
        assert train("lightning", 2, arguments, m.path, scratch / "mounted") == plain
    finally:
        done.set()
        presser.join()
    stats = tools.stat_json(m.path)
    assert drops >= 3 and stats["lost"] > 0
    assert stats["recognised"].startswith("torch DistributedSampler") and stats["errors"] == 0
    # 96 opens tell the sampler.  After a drop the next files of both ranks and their workers miss until they are there again.
    assert stats["misses"] <= 96 + 64 * drops
