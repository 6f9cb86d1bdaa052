"""The same script, the same seed: on mounts it computes bit for bit what it computes on the plain files."""

import sys

import pytest

from helpers import tools
from trainers.launch import HERE, TRAINER, options, reports, torchrun, train_on_files

pytest.importorskip("torch", reason="torch is not installed")


def train_on_rank_views(dataset, scratch, world, epochs=2, mount_options="order=torch,subdir=train,seed=0", **kwargs):
    """Each rank trains on its own mount, in the order of the mount's listing.  Returns (reports, notes folder)."""
    mnt, notes = scratch / "mnt", scratch / "notes"
    mnt.mkdir(exist_ok=True)
    notes.mkdir(exist_ok=True)
    torchrun(world, "--no-python", tools.tool("ddpfs"), "exec", "-o", mount_options, dataset, mnt, "--",
             HERE / "observe", tools.tool("ddpfs"), mnt, epochs, notes,
             sys.executable, TRAINER, "--train", mnt, "--val", mnt / ".ddpfs/all/val", "--sampler", "none",
             "--epochs", epochs, "--report", notes / "mounted", *options(kwargs))
    return reports(notes / "mounted", world), notes


def lists(notes, world, epoch):
    return [(notes / f"rank{rank}.epoch{epoch}").read_text().splitlines() for rank in range(world)]


def test_rank_views_give_the_losses_of_plain_files(digits, pack, scratch):
    plain = train_on_files(digits, scratch / "plain")
    mounted, notes = train_on_rank_views(pack(digits), scratch, 2)
    assert mounted == plain
    assert plain[0]["losses"] != plain[1]["losses"], "the ranks trained on the same files"

    everything = sorted(p.relative_to(digits).as_posix() for p in (digits / "train").rglob("*.png"))
    for epoch in range(2):
        ranks = lists(notes, 2, epoch)
        assert sorted(ranks[0] + ranks[1]) == everything
    assert lists(notes, 2, 0) != lists(notes, 2, 1), "both epochs have one order"
    assert (notes / "rank0.view").read_text() == (notes / "rank1.view").read_text() != ""


def test_view_all_around_torchrun_gives_the_losses_of_plain_files(digits, pack, scratch):
    plain = train_on_files(digits, scratch / "plain", epochs=1)
    mnt = scratch / "mnt"
    mnt.mkdir()
    torchrun(2, TRAINER, "--train", mnt / "train", "--val", mnt / "val", "--epochs", 1, "--report", scratch / "all",
             before=[tools.tool("ddpfs"), "exec", "-o", "view=all", pack(digits), mnt, "--"])
    assert reports(scratch / "all", 2) == plain


def test_single_process(digits, pack, scratch, mount):
    """No launcher at all: world 1, a plain mount, the trainer with its own sampler."""
    argv = [sys.executable, TRAINER, "--epochs", 1]
    mnt = mount(pack(digits), "view=all").path
    for stem, place in (("plain", digits), ("mounted", mnt)):
        tools.run([*argv, "--train", place / "train", "--val", place / "val", "--report", scratch / stem])
    assert reports(scratch / "mounted", 1) == reports(scratch / "plain", 1)


@pytest.mark.trainers
@pytest.mark.parametrize("world", [1, 3, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_rank_views_at_other_worlds(digits, pack, scratch, world, workers):
    """1,442 files do not divide by 3 or 4: the padding is DistributedSampler's too."""
    plain = train_on_files(digits, scratch / "plain", world, epochs=3, workers=workers)
    mounted, _ = train_on_rank_views(pack(digits), scratch, world, epochs=3, workers=workers)
    assert mounted == plain


@pytest.mark.trainers
@pytest.mark.parametrize("order", ["full", "chunk"])
def test_other_orders_train_as_well(digits, pack, scratch, order):
    """Another shuffle, other losses, but the accuracy that training on the plain files reaches."""
    plain = train_on_files(digits, scratch / "plain", epochs=8)
    mounted, _ = train_on_rank_views(pack(digits), scratch, 2, 8, f"order={order},subdir=train,seed=0")
    assert mounted[0]["losses"] != plain[0]["losses"]
    assert mounted[0]["accuracy"] >= plain[0]["accuracy"] - 0.02
