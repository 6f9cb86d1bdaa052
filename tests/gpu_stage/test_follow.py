# SPDX-License-Identifier: Apache-2.0
"""A stage opened from a mount: the mount's cursor, its state and its listings follow what the stage's consumers let go of."""

import os
import sys

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import mounts, tools  # noqa: E402
from helpers.waiting import wait_until  # noqa: E402
from mount.control import ask, settled, stats  # noqa: E402

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402

OPTIONS = "rank=1,world=4,order=full,seed=7"  # 25 of 100 samples are this rank's


@pytest.fixture(autouse=True)
def library(build_dir, monkeypatch):
    monkeypatch.setenv("DDPFS_STAGE_LIB", str(build_dir / "gpu_stage" / "libddpfs_stage.so"))


@pytest.fixture
def dataset(pack, tree):
    return pack(tree[0])


def place(m):
    """(epoch, start) of the mount's state."""
    state = ask(m, "state")["state"]
    return state["epoch"], state["start"]


def wait_place(m, expected):
    wait_until(lambda: place(m) == expected, f"the mount at {expected}")


def listed(m):
    return sorted(name for name in os.listdir(m.path) if name != ".ddpfs")


def names(stage):
    return [batch.path(i) for batch in stage for i in range(len(batch))]


def test_the_state_is_where_the_oldest_batch_begins_that_is_out(dataset, mount):
    m = mount(dataset, OPTIONS)
    stage = ddpfs.Stage(m.path, batch=5, memory="64M")
    first, second, third = stage.next(), stage.next(), stage.next()
    second.release()
    first.release()  # both are gone now, the third is not
    wait_place(m, (0, 40))
    now = stats(m)
    assert (now["epoch"], now["opened"], now["position"]) == (0, 10, 10)
    stage.close()
    third.release()  # with it the library's object ends, which has told all it had to tell
    assert place(m) == (0, 60) and stats(m)["opened"] == 15
    with ddpfs.Stage(m.path, batch=5, memory="64M") as again:
        assert again.position == (0, 0, 10)
        rest = names(again)
    whole = names(ddpfs.Stage(dataset, batch=5, memory="64M", rank=1, world=4, order="full", seed=7))
    assert rest == whole[15:]
    del again
    assert place(m) == (1, 0), "a whole epoch is the next one's beginning"


def test_the_root_of_several_ranks_is_no_dataset(dataset, mount):
    m = mount(dataset, "rank=2-3,world=4")
    with pytest.raises(OSError, match=r"mount of several ranks: give the directory of one, such as '.*/rank[23]'"):
        ddpfs.Stage(m.path, batch=5, memory="64M").next()


@pytest.mark.parametrize("place", ["", "rank3", "rank3/.ddpfs"])
def test_the_server_says_why_it_follows_no_order_of_several_ranks(dataset, mount, place):
    m = mount(dataset, "rank=2-3,world=4")
    with pytest.raises(ValueError, match="several ranks follows the orders of its ranks"):
        ddpfs.Mount(m.path / place).follow([0, 1])


def test_a_batch_that_is_held_holds_the_cursor(dataset, mount):
    m = mount(dataset, OPTIONS)
    stage = ddpfs.Stage(m.path, batch=5, memory="64M")
    held = stage.next()
    stage.next().release()
    stage.skip(1)  # tells where the cursor is, which is still the held batch
    wait_until(lambda: stage.stats()["told"] == 1, "a message")
    assert place(m) == (0, 0)
    held.release()
    wait_place(m, (0, 44))


def test_the_epoch_follows_and_listings_stay_in_it(dataset, mount):
    m = mount(dataset, OPTIONS)
    stage = ddpfs.Stage(m.path, batch=20, memory="64M")
    stage.set_epoch(3)
    wait_place(m, (3, 0))
    assert all(name.startswith("0003-") for name in listed(m))
    stage.next().release()
    wait_place(m, (3, 80))
    assert stats(m)["opened"] == 20, "more than half, after which a listing goes on to the next epoch"
    assert all(name.startswith("0003-") for name in listed(m)), "but not while a library reads this one"
    assert ask(m, "epoch")["advance"] == "auto"
    (m.path / listed(m)[20]).read_bytes()  # a trainer reads the rest from the mount
    assert all(name.startswith("0004-") for name in listed(m))
    stage.set_epoch(1)
    wait_place(m, (1, 0))
    assert all(name.startswith("0001-") for name in listed(m))


@pytest.mark.parametrize("tail", ["pad", "drop", "short"])
def test_after_a_whole_epoch_of_the_library_comes_the_next(pack, scratch, mount, tail):
    (scratch / "ten" / "a").mkdir(parents=True)
    for i in range(10):
        (scratch / "ten" / "a" / str(i)).write_bytes(b"x")
    m = mount(pack(scratch / "ten"), f"rank=0,world=4,order=full,seed=7,tail={tail}")
    stage = ddpfs.Stage(m.path, batch=1, memory="64M")
    for n in range(stage.position[2]):
        assert all(name.startswith("0000-") for name in listed(m)), n
        stage.next().release()
        wait_until(lambda: stats(m)["opened"] == n + 1, "what the library has had")
    assert all(name.startswith("0001-") for name in listed(m))
    for name in listed(m):
        (m.path / name).read_bytes()
    assert all(name.startswith("0002-") for name in listed(m)), "a trainer goes on where the library was"


def test_the_mount_reads_nothing_ahead_for_it(scratch, pack, mount):
    """Less memory than data: a cursor that moves would bring in what comes next."""
    (scratch / "big" / "a").mkdir(parents=True)
    for i in range(24):
        (scratch / "big" / "a" / f"{i:02}").write_bytes(os.urandom(1 << 10) * 2048)
    m = mount(pack(scratch / "big"), "rank=0,world=1,order=full,memory=32M")
    before = settled(m)
    assert before["fetched"] < 24
    with ddpfs.Stage(m.path, batch=4, memory="32M") as stage:
        assert sum(batch.n_samples for batch in stage) == 24
    del stage
    assert place(m) == (1, 0)
    assert settled(m)["fetched"] == before["fetched"]
    for name in listed(m):
        (m.path / name).read_bytes()  # opens move it again
    assert settled(m)["fetched"] > before["fetched"]


def test_a_resumed_stage_moves_the_mount(dataset, mount):
    m = mount(dataset, OPTIONS)
    stage = ddpfs.Stage(m.path, batch=5, memory="64M")
    early = stage.next()
    state = stage.state_dict()
    stage.next().release()
    stage.load_state_dict(state)
    wait_place(m, (0, 20))
    early.release()  # of the run before
    stage.next().release()
    wait_place(m, (0, 40))


def test_a_stage_on_one_of_several_ranks_moves_that_one(dataset, mount):
    m = mount(dataset, "rank=all,world=4,order=full,seed=7")
    stage = ddpfs.Stage(m.path / "rank1", batch=5, memory="64M")
    whole = names(ddpfs.Stage(dataset, batch=5, memory="64M", rank=1, world=4, order="full", seed=7))
    first = stage.next()
    assert [first.path(i) for i in range(5)] == whole[:5]
    first.release()
    stage.next().release()
    wait_until(lambda: ask(m, "state", rank=1)["state"]["start"] == 40, "the rank at 40 steps")
    assert stage.stats()["untold"] == 0
    assert [ask(m, "epoch", rank=r)["opened"] for r in range(4)] == [0, 10, 0, 0]
    assert [ask(m, "state", rank=r)["state"]["start"] for r in (0, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("options", [{"rank": 1, "world": 2}, {"state": "seed 8"}])
def test_another_share_or_order_is_not_told(dataset, mount, options):
    m = mount(dataset, OPTIONS)
    if "state" in options:
        options = {"state": ddpfs.Stage(dataset, rank=1, world=4, order="full", seed=8, memory="64M").state_dict()["ddpfs"]}
    stage = ddpfs.Stage(m.path, batch=5, memory="64M", **options)
    stage.next().release()
    stage.set_epoch(2)
    assert stage.stats()["told"] == stage.stats()["untold"] == 0
    del stage
    assert place(m) == (0, 0)


def test_a_state_of_ones_own_in_the_same_order_moves_the_mount(dataset, mount):
    m = mount(dataset, OPTIONS)
    state = ddpfs.Stage(dataset, rank=0, world=3, order="full", seed=7, epoch=2, start=31, memory="64M").state_dict()["ddpfs"]
    stage = ddpfs.Stage(m.path, batch=5, memory="64M", state=state)
    stage.next().release()
    wait_place(m, (2, 51))


def test_a_mount_that_is_gone_disturbs_nobody(dataset, mount):
    m = mount(dataset, OPTIONS)
    stage = ddpfs.Stage(m.path, batch=5, memory="64M")
    stage.next().release()
    wait_place(m, (0, 20))
    m.unmount()
    assert not mounts.is_mounted(m.path)
    assert len(names(stage)) == 20
    wait_until(lambda: stage.stats()["untold"] > 0, "a message that nobody took")


def test_what_is_no_place_is_refused(dataset, mount):
    m = mount(dataset, OPTIONS + ",start=40")
    for request in ({}, {"epoch": 0}, {"steps": 0}, {"epoch": "0", "steps": 1}, {"epoch": -1, "steps": 1},
                    {"epoch": 0, "steps": 39}, {"epoch": 0, "steps": 1000}, {"epoch": 1 << 40, "steps": 0}):
        answer = ask(m, "consumed", **request)
        assert not answer["ok"] and answer["error"], request
    assert place(m) == (0, 40)
    assert ask(m, "consumed", epoch=1, steps=8)["state"]["start"] == 8
