# SPDX-License-Identifier: Apache-2.0
"""Files that are read as soon as they are looked up, where a trainer's order is not known (fs/lookup_readahead.h)."""

import os
import random

import pytest

from helpers.datasets import content
from mount.control import settled, stats

FILES = 700
PENDING, JUDGED, ENOUGH = 64, 64, 56  # fs/lookup_readahead.h


@pytest.fixture
def dataset(pack, scratch):
    files = {f"c{i % 7}/f{i:04d}": content(str(i), 100 + 37 * i) for i in range(FILES)}
    for path, data in files.items():
        (scratch / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "tree" / path).write_bytes(data)
    return pack(scratch / "tree"), files


def test_files_of_an_unknown_order_are_read_when_looked_up(mount, dataset):
    """Every byte is right, listings that stat files end it, and what they look up in vain is bounded.

    In the view of a rank, because a tree of all files is read in storage order meanwhile (test_warm_up.py).
    """
    m = mount(dataset[0], "rank=0,world=1,layout=tree")
    files = dataset[1]
    names = sorted(files)
    random.Random("no number").shuffle(names)  # a shuffle of a number is recognised
    for name in names[:300]:
        assert (m.path / name).read_bytes() == files[name]
    before = settled(m)
    assert 300 - PENDING - ENOUGH - 20 <= before["hinted"] <= 300 - PENDING - ENOUGH
    assert before["reads"] == 300 and before["read_bytes"] < 2 * sum(map(len, files.values()))
    assert before["worker_reads"] >= 290 and before["misses"] == 300 == before["opens"]  # all but those that open a shard
    for name in names[300:600]:
        assert os.stat(m.path / name).st_size == len(files[name])
    vain = settled(m)["hinted"] - before["hinted"]
    assert 1 <= vain <= PENDING + JUDGED - ENOUGH + 1
    for name in reversed(names):  # those that were read in vain among them
        assert (m.path / name).read_bytes() == files[name]


def test_nobody_who_only_stats_has_files_read(mount, dataset):
    m = mount(dataset[0], "view=all,layout=tree")
    assert sum(os.stat(m.path / name).st_size for name in dataset[1]) == sum(map(len, dataset[1].values()))
    counted = settled(m)
    assert counted["lookups"] >= FILES and counted["hinted"] == 0 == counted["reads"]


def test_a_known_order_needs_no_guess(mount, dataset):
    m = mount(dataset[0], "rank=0,world=1")
    names = sorted(os.listdir(m.path))
    settled(m)
    for name in names:
        (m.path / name).read_bytes()
    counted = stats(m)
    assert counted["opens"] == FILES and counted["hinted"] == 0
