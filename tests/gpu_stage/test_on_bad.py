# SPDX-License-Identifier: Apache-2.0
"""on_bad in the library: the samples and bytes that a mount of the same options shows, and what is met without being listed."""

import sys

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import tools  # noqa: E402
from mount.control import ask, stats  # noqa: E402
from mount.test_quarantine import BAD, damage, dataset, flat, source, stand_in  # noqa: E402, F401

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402


@pytest.fixture(autouse=True)
def library(build_dir, monkeypatch):
    monkeypatch.setenv("DDPFS_STAGE_LIB", str(build_dir / "gpu_stage" / "libddpfs_stage.so"))


def seen(stage):
    return [(batch.path(i), bytes(batch[i])) for batch in stage for i in range(len(batch))]


def stage_of(dataset, **options):  # noqa: F811
    return ddpfs.Stage(dataset, batch=7, memory="64M", order="full", seed=5, **options)


@pytest.mark.parametrize("tail", ["pad", "drop", "short"])
@pytest.mark.parametrize("on_bad", ["skip", "substitute"])
def test_the_same_as_a_mount(dataset, source, mount, on_bad, tail):  # noqa: F811
    for rank in (0, 2):
        m = mount(dataset, f"rank={rank},world=3,order=full,seed=5,tail={tail},on_bad={on_bad}")
        of_mount = flat(m)
        own = stage_of(dataset, rank=rank, world=3, tail=tail, on_bad=on_bad)
        assert seen(own) == of_mount and len(of_mount) in (25, 26, 27)
        assert all(data == source[1][path] for path, data in of_mount)
        with ddpfs.Stage(m.path, batch=7, memory="64M") as through:
            assert seen(through) == of_mount
        assert own.stats()["left_out"] == own.stats()["replaced"] == 0
        m.unmount()


def test_a_mounts_cursor_follows_past_what_is_left_out(dataset, mount):  # noqa: F811
    m = mount(dataset, "rank=0,world=1,order=full,on_bad=skip")
    stage = ddpfs.Stage(m.path, batch=10, memory="64M")
    stage.next().release()
    del stage
    state = ask(m, "state")["state"]
    assert (state["start"], state["on_bad"]) == (10, "skip") and stats(m)["opened"] == 10


def test_a_mount_with_another_list_is_not_taken_for_this_one(dataset, mount, scratch):  # noqa: F811
    lines = (dataset / "quarantine.ddpfs").read_text().splitlines()
    (scratch / "short").write_text("\n".join(lines[:3] + ["end"]) + "\n")
    m = mount(dataset, f"rank=0,world=1,order=full,on_bad=skip,quarantine={scratch}/short")
    with pytest.raises(ddpfs.StageError, match="another quarantine list"):
        ddpfs.Stage(m.path, batch=7, memory="64M").next()
    stage = ddpfs.Stage(m.path, batch=7, memory="64M", quarantine=scratch / "short")
    assert stage.position == (0, 0, 79)


def test_the_state_keeps_the_list(dataset):  # noqa: F811
    stage = stage_of(dataset, on_bad="skip")
    stage.next()
    state = stage.state_dict()
    rest = seen(stage)
    again = ddpfs.Stage(dataset, batch=7, memory="64M", state=state["ddpfs"])
    assert seen(again) == rest and len(rest) == 70
    other = stage_of(dataset, on_bad="skip")
    other.load_state_dict(state)
    assert seen(other) == rest
    without = stage_of(dataset, on_bad="skip", quarantine="")
    with pytest.raises(ddpfs.StageError, match="quarantine list"):
        without.load_state_dict(state)
    assert without.position == (0, 0, 80)


def test_a_state_is_resumed_with_the_list_that_the_caller_named(dataset, scratch):  # noqa: F811
    named = (dataset / "quarantine.ddpfs").rename(scratch / "list")
    state = stage_of(dataset, on_bad="skip", quarantine=named).state_dict()
    stage = stage_of(dataset, quarantine=named)
    assert stage.position == (0, 0, 80)
    stage.load_state_dict(state)
    assert not {path for path, _ in seen(stage)} & set(BAD)


def test_a_list_that_is_named_must_be_there(dataset, scratch):  # noqa: F811
    with pytest.raises(ddpfs.StageError, match="nowhere"):
        stage_of(dataset, on_bad="skip", quarantine=scratch / "nowhere").next()


@pytest.mark.parametrize("quarantine", ["", None])
def test_what_is_met_is_replaced_by_its_stand_in(dataset, source, quarantine):  # noqa: F811
    """Unlisted ones are found when they are read: the same samples as with the list, and each is told once an epoch."""
    if quarantine is None:
        (dataset / "quarantine.ddpfs").unlink()
    told = []
    stage = stage_of(dataset, on_bad="substitute", quarantine=quarantine, bad=told.append)
    plain = tools.ddpfs("order", dataset, "-o", "order=full,seed=5").stdout.splitlines()
    lengths = []
    got = []
    for batch in stage:
        lengths.append((batch.n_samples, batch.n_turns))
        got += [(batch.path(i), bytes(batch[i])) for i in range(len(batch))]
    assert [path for path, _ in got] == [stand_in(line.split()[-1]) for line in plain]
    assert all(data == source[1][path] for path, data in got)
    assert lengths == [(7, 7)] * 11 + [(3, 3)], "batches keep their number of samples"
    # items 3 and 4 of a class are bad: 4 is met as the stand-in of 3, too, if 3 comes first.
    assert {str(error).split("'")[1] for error in told} == set(BAD) and len(told) == stage.stats()["replaced"] in (3, 4)
    stage.set_epoch(1)
    again = seen(stage)
    assert all(data == source[1][path] for path, data in again) and len(again) == 80


def test_nothing_can_stand_in_for_all_of_a_directory(pack, scratch):
    files = {"a/x": b"a" * 5000, "a/y": b"b" * 5000, "b/z": b"c" * 5000}
    for path, data in files.items():
        (scratch / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "tree" / path).write_bytes(data)
    made = pack(scratch / "tree")
    damage(made, files, ["a/x", "a/y"])
    stage = ddpfs.Stage(made, batch=3, memory="64M", order="none", on_bad="substitute")
    with pytest.raises(ddpfs.StageError, match="a/"):
        stage.next()
    stage.skip(2)
    assert bytes(stage.next()[0]) == files["b/z"]
