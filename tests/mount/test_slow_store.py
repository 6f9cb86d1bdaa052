# SPDX-License-Identifier: Apache-2.0
"""DDPFS_TEST_READ_DELAY_US: a mount whose store answers late."""

import json
import time

import pytest

from helpers import tools

DELAY = "DDPFS_TEST_READ_DELAY_US"


def stats(m):
    time.sleep(0.03)  # a snapshot lives for 20 ms
    return json.loads((m.path / ".ddpfs/stats.json").read_text())


def test_every_read_is_late_and_right(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=1,layout=tree", env={DELAY: "30000"})
    assert m.log().count(DELAY) == 1 and "30000 us" in m.log()
    path = next(p for p in sorted(tree[1]) if tree[1][p])
    before = time.monotonic()
    assert (m.path / path).read_bytes() == tree[1][path]
    assert time.monotonic() - before >= 0.03
    assert stats(m)["waited_ns"] >= 30_000_000
    for path, data in tree[1].items():
        assert (m.path / path).read_bytes() == data


def test_reading_ahead_hides_it(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=1,order=full", env={DELAY: "1000"})
    assert m.log().count(DELAY) == 1
    assert sorted(data for _, data in tree[1].items()) == sorted(
        path.read_bytes() for path in m.path.iterdir())


@pytest.mark.parametrize("value", ["", "0"])
def test_none(mount, pack, tree, value):
    m = mount(pack(tree[0]), "rank=0,world=1", env={DELAY: value})
    assert m.log() == ""


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "10000001"])
def test_nonsense_is_refused(pack, tree, scratch, value):
    (scratch / "mnt").mkdir()
    done = tools.ddpfs("mount", "-f", "-o", "rank=0,world=1", pack(tree[0]), scratch / "mnt", check=False, env={DELAY: value})
    assert done.returncode == 1
    assert f"{DELAY}={value}" in done.stderr
