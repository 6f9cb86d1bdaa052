# SPDX-License-Identifier: Apache-2.0
"""Mounts of one dataset on one host hold it in memory once."""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

import pytest

from helpers.datasets import content
from helpers.pages import caches_dropped
from helpers.waiting import wait_until
from mount.control import ask, settled, stats

MIB = 1 << 20


@pytest.fixture
def many(scratch):
    """600 files, 60 MB."""
    root = scratch / "many"
    files = {}
    for i in range(600):
        path = f"c{i % 10}/f{i:05d}"
        files[path] = content(path, 100_000 + i)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(files[path])
    return root, files


def decoded(name):
    return name.split("-", 2)[2].replace("%2F", "/").replace("%25", "%")


def read_epoch(m, files):
    names = sorted(os.listdir(m.path))
    for name in names:
        assert (m.path / name).read_bytes() == files[decoded(name)], name
    return len(names)


def from_disk(m):
    """Bytes that the server's reads took from a disk."""
    text = Path(f"/proc/{m.server_pid()}/io").read_text()
    return int(text.split("\nread_bytes: ")[1].split()[0])


def test_two_ranks_share_what_they_read(mount, pack, many):
    dataset = pack(many[0])
    m = [mount(dataset, f"rank={r},world=2,memory=128M,order=full") for r in (0, 1)]
    wait_until(lambda: all(stats(x)["shared"] for x in m))
    with ThreadPoolExecutor(2) as pool:
        read = []
        for _ in range(20):  # the kernel may take pages back at any time
            before = [from_disk(x) for x in m]
            assert sum(pool.map(lambda x: read_epoch(x, many[1]), m)) == 600
            for x in m:
                settled(x)
            read.append(sum(from_disk(x) - b for x, b in zip(m, before)))
            if len(read) > 1 and read[-1] < 600_000:
                break
    assert len(read) > 1 and read[-1] < 600_000, f"bytes from disk in each epoch: {read}"
    for x in m:
        assert stats(x)["errors"] == stats(x)["bad_blocks"] == 0
        # the least a mount takes, and landing memory
        wait_until(lambda x=x: stats(x)["resident_bytes"] <= 16 * MIB + 32 * MIB)


def test_a_rank_that_comes_later_changes_nothing_for_the_first(mount, pack, many):
    dataset = pack(many[0])
    first = mount(dataset, "rank=0,world=2,memory=128M,order=full")
    names = sorted(os.listdir(first.path))
    for name in names[:150]:
        assert (first.path / name).read_bytes() == many[1][decoded(name)]
    assert stats(first)["shared"] == 0
    second = mount(dataset, "rank=1,world=2,memory=128M,order=full")
    wait_until(lambda: stats(first)["shared"] and stats(second)["shared"])
    for name in names[150:]:
        assert (first.path / name).read_bytes() == many[1][decoded(name)]
    said = stats(first)
    assert said["following"] == 1 and said["jumps"] == 0 and said["errors"] == 0
    assert read_epoch(second, many[1]) == 300
    second.unmount()
    assert read_epoch(first, many[1]) == 300


def test_a_dataset_that_does_not_fit_is_not_shared(mount, pack, many):
    dataset = pack(many[0])
    m = [mount(dataset, f"rank={r},world=2,memory=32M") for r in (0, 1)]
    for x in m:
        assert ask(x, "neighbour", servers=2)["ok"]
        assert stats(x)["shared"] == 0


def test_copies_of_a_dataset_are_not_shared(mount, pack, many):
    a, b = (mount(pack(many[0]), f"rank={r},world=2,memory=128M") for r in (0, 1))
    assert stats(a)["identity"] == stats(b)["identity"]
    read_epoch(a, many[1])
    assert stats(a)["shared"] == stats(b)["shared"] == 0


def test_neighbours_are_counted_in_numbers(mount, pack, many):
    m = mount(pack(many[0]), "rank=0,world=2,memory=128M")
    for servers in (0, -1, "2", 1 << 33):
        assert not ask(m, "neighbour", servers=servers)["ok"]
    assert not ask(m, "neighbour")["ok"]
    assert ask(m, "neighbour", servers=1)["ok"]
    assert stats(m)["shared"] == 0


def trained(m, train, val, batch, files):
    """An epoch of a trainer with two workers that read batches side by side, and then a validation.  The trainer is
    slow, so the server has time for all that it wants to do.  Returns the misses.  Behind each drop of the host's
    caches by somebody some are no fault: for 64 uses nothing is fetched again."""
    before, dropped = settled(m)["misses"], caches_dropped()
    for at in range(0, len(train), 2 * batch):
        pairs = zip_longest(train[at:at + batch], train[at + batch:at + 2 * batch])
        for i, path in enumerate(path for pair in pairs for path in pair if path):
            assert (m.path / path).read_bytes() == files[path], path
            if i % 4 == 3:
                settled(m)
    for i, path in enumerate(val):
        assert (m.path / path).read_bytes() == files[path], path
        if i % 4 == 3:
            settled(m)
    # Two counts for each time that the caches were dropped; two workers' batches may have been opened at once then.
    return settled(m)["misses"] - before - max(50, batch) * (caches_dropped() - dropped)


@pytest.mark.parametrize("batch", [32, 128])
def test_a_slow_trainer_on_a_shared_mount_misses_nothing_once_he_is_known(mount, pack, scratch, batch):
    """Two workers' batches of 128 are larger than the least that a mount keeps in pages of its own."""
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    root, files = scratch / "two", {}
    for kind, n in (("train", 1200), ("val", 150)):
        for i in range(n):
            path = f"{kind}/c{i % 10}/f{i:05d}"
            files[path] = content(path, 50_000 + i)
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(files[path])
    dataset = pack(root)
    m = [mount(dataset, "view=all,layout=tree,memory=192M") for _ in (0, 1)]
    wait_until(lambda: all(stats(x)["shared"] for x in m))
    train = sorted(path for path in files if path.startswith("train/"))
    val = sorted(path for path in files if path.startswith("val/"))
    sampler = data.DistributedSampler(train, num_replicas=1, rank=0, seed=5)
    missed = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        before = stats(m[0])
        misses = trained(m[0], [train[i] for i in sampler], val, batch, files)
        after = stats(m[0])
        taken = after["lost"] - before["lost"] + 1024 * (after["refetches"] - before["refetches"])
        missed.append(max(0, misses - taken))
    assert after["errors"] == 0 and after["jumps"] == 0
    assert missed[1] <= 64 and missed[2] <= 64, missed
