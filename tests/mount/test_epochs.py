# SPDX-License-Identifier: Apache-2.0
"""Epochs that advance by themselves, and those who decide otherwise."""

import os
import signal
import threading

import pytest

from mount.control import ask, stats, wait_for_log
from mount.test_flat import NAME


def epoch_of(path):
    found = {int(m[1]) for m in map(NAME.fullmatch, os.listdir(path)) if m}
    assert len(found) == 1, "a listing never mixes epochs"
    return found.pop()


def read(m, names):
    for name in names:
        (m.path / name).read_bytes()


def test_a_listing_advances_once_half_was_opened(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")  # 50 files of this rank
    names = sorted(os.listdir(m.path))
    read(m, names[:24])
    assert epoch_of(m.path) == 0
    read(m, names[24:25])
    assert epoch_of(m.path) == 1
    assert epoch_of(m.path) == 1, "listing alone is no progress"


def test_a_trainer_that_lists_each_epoch_sees_them_all(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    seen = []
    for epoch in range(4):
        names = os.listdir(m.path)
        seen.append({NAME.fullmatch(n)[3] for n in names})
        assert epoch_of(m.path) == epoch
        read(m, names[:-3])  # drop_last
    assert len({frozenset(s) for s in seen}) == 4


def test_the_same_file_again_counts_once(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    names = sorted(os.listdir(m.path))
    read(m, names[:10] * 20)
    assert epoch_of(m.path) == 0
    assert stats(m)["opened"] == 10 and stats(m)["opens"] == 200


def test_stat_and_listing_do_not_count(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    for _ in range(3):
        for entry in os.scandir(m.path):
            entry.stat()
    assert stats(m)["opens"] == 0 and epoch_of(m.path) == 0


def test_other_names_and_views_do_not_count_as_progress(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    for name in os.listdir(m.path / ".ddpfs/epoch/1"):
        (m.path / name).read_bytes()
    assert stats(m)["opens"] == 50 and stats(m)["opened"] == 0
    assert epoch_of(m.path) == 0


def test_advance_off(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7,advance=off")
    read(m, os.listdir(m.path))
    assert epoch_of(m.path) == 0


def test_explicit_control_wins(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    assert ask(m, "epoch", set=5) == {"ok": True, "epoch": 5, "turns": 50, "opened": 0, "advance": "off"}
    assert epoch_of(m.path) == 5
    read(m, os.listdir(m.path))
    assert epoch_of(m.path) == 5
    ask(m, "epoch", advance="auto")
    assert epoch_of(m.path) == 6


def test_an_open_directory_keeps_its_epoch(mount, pack, scratch):
    root = scratch / "many"
    (root / "d").mkdir(parents=True)
    for i in range(3000):
        (root / "d" / f"{i:05d}").write_bytes(b"")
    m = mount(pack(root), "rank=0,world=1,seed=7")
    with os.scandir(m.path) as handle:
        first = [next(handle).name for _ in range(10)]
        ask(m, "epoch", set=1)
        assert epoch_of(m.path) == 1
        rest = [entry.name for entry in handle]
    assert {n[:4] for n in first + rest} == {"0000"} and len(first + rest) == 3000


def test_the_roots_mtime_tells_of_a_new_epoch(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    before = os.stat(m.path).st_mtime_ns
    assert os.stat(m.path).st_mtime_ns == before
    ask(m, "epoch", set=1)
    assert os.stat(m.path).st_mtime_ns > before


def test_tree_rank_view_advances_too(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,layout=tree,seed=7")

    def listed():
        return {os.path.join(d, f) for d, _, files in os.walk(m.path) for f in files}

    first = listed()
    for path in sorted(first)[:30]:
        open(path, "rb").close()
    assert listed() != first
    assert stats(m)["epoch"] == 1


def test_subdir_listing_advances(mount, pack, scratch):
    from helpers.datasets import write_tree

    root = scratch / "split"
    write_tree(root / "train", classes=3, per_class=8)
    write_tree(root / "val", classes=3, per_class=4)
    m = mount(pack(root), "rank=0,world=1,layout=tree,subdir=train,seed=1")
    for directory, _, files in os.walk(m.path / "val"):
        for f in files:
            open(os.path.join(directory, f), "rb").close()
    os.listdir(m.path / "train")
    assert stats(m)["epoch"] == 0, "validation is no progress"
    for directory, _, files in os.walk(m.path / "train"):
        for f in files:
            open(os.path.join(directory, f), "rb").close()
    os.listdir(m.path / "train")
    assert stats(m)["epoch"] == 1


def test_a_trainer_that_lists_once_is_told_once(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    names = os.listdir(m.path)
    for _ in range(3):
        read(m, names)
    wait_for_log(m, "lists once")
    read(m, names)
    stats(m)
    m.unmount()
    assert m.log().count("lists once") == 1


def test_a_loader_that_opens_twice_is_not_told(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    for name in sorted(os.listdir(m.path)):
        read(m, [name, name])
    assert stats(m)["opened"] == 50  # equal events in a row may be merged by the kernel: opens can be less than 100
    m.unmount()
    assert "lists once" not in m.log()


def test_an_overflow_of_the_queue_is_counted_and_survived(mount, pack, scratch):
    """16,384 events fit the kernel's queue; the server is stopped while more than that happen."""
    root = scratch / "many"
    (root / "d").mkdir(parents=True)
    for i in range(2000):
        (root / "d" / f"{i:05d}").write_bytes(b"x")
    m = mount(pack(root), "rank=0,world=1,seed=7,order=full,watchdog=0")
    names = sorted(os.listdir(m.path))
    limit = int(open("/proc/sys/fs/inotify/max_queued_events").read())
    server = m.server_pid()
    for _ in range(5):
        read(m, names)  # in the kernel's caches from here on: the stopped server is not needed
        # Should somebody drop the caches meanwhile, the server must wake up to answer: hence the timer.
        waker = threading.Timer(50, os.kill, [server, signal.SIGCONT])
        os.kill(server, signal.SIGSTOP)
        waker.start()
        try:
            for _ in range(limit // 2000 + 2):
                for name in names[::-1]:
                    os.close(os.open(m.path / name, os.O_RDONLY))  # open() would ask the server: isatty
        finally:
            waker.cancel()
            os.kill(server, signal.SIGCONT)
        if stats(m)["watch_overflows"]:
            break
    assert stats(m)["watch_overflows"] >= 1
    assert stats(m)["opened"] == 2000
    assert epoch_of(m.path) == 1, "advancing goes on"


@pytest.mark.parametrize("options", ["rank=0,world=2", "view=all,layout=tree", "rank=1,world=2,layout=tree"])
def test_every_open_is_counted(mount, pack, tree, options):
    m = mount(pack(tree[0]), options)
    opened = 0
    for directory, _, files in os.walk(m.path):
        for f in files:
            open(os.path.join(directory, f), "rb").close()
            opened += 1
    assert stats(m)["opens"] == opened
