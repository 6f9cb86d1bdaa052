# SPDX-License-Identifier: Apache-2.0
"""The same script, the same seed: on mounts it computes bit for bit what it computes on the plain files:
every loss, the accuracy and the weights at the end (their hash)."""

import pytest

from trainers.launch import train_alone, train_on_files, train_on_rank_views, train_on_view_all

pytest.importorskip("torch", reason="torch is not installed")


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
    assert train_on_view_all(pack(digits), scratch, epochs=1) == plain


@pytest.mark.parametrize("parallel", ["auto", "data"])
def test_one_process(digits, pack, scratch, mount, parallel):
    """No launcher at all: world 1, a plain mount, the trainer with its own sampler; alone and in DataParallel."""
    mnt = mount(pack(digits), "view=all").path
    plain = train_alone(digits, scratch / "plain", 1, parallel=parallel)
    assert train_alone(mnt, scratch / "mounted", 1, parallel=parallel) == plain


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
