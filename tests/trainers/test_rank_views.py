# SPDX-License-Identifier: Apache-2.0
"""Rank views, which a rank must list anew for each epoch, under workers that live through all of them."""

import json
import sys

import pytest

from helpers import tools
from trainers import launch

pytest.importorskip("torch", reason="torch is not installed")
EPOCHS = 3


def test_persistent_workers_read_each_epoch_of_their_rank(tree, pack, mount, scratch):
    dataset = pack(tree[0])
    shown = [[], []]
    for rank in range(2):
        m = mount(dataset, f"rank={rank},world=2,order=full,seed=5")
        report = scratch / f"report{rank}"
        tools.run([sys.executable, launch.HERE / "rank_views_read.py", m.path, EPOCHS, report], env=launch.ENV)
        for number, names in enumerate(json.loads(report.read_text())):
            assert {name[:4] for name in names} == {f"{number:04d}"}, "names of another epoch"
            assert names == sorted(names), "not in the epoch's order"
            shown[rank].append(names)
    for epoch in range(EPOCHS):
        positions = [int(name.split("-")[1]) for rank in shown for name in rank[epoch]]
        assert sorted(positions) == list(range(len(tree[1]))), "the ranks' parts are not the whole set"
    assert len({tuple(name[16:] for name in names) for names in shown[0]}) == EPOCHS, "each epoch has an order of its own"
