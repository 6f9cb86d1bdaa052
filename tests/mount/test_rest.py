"""watch=rest: while all is in memory opens are not watched, and all that hangs on opens goes on.

The kernel may take pages back at any time, so a rest may end and begin again at any time: what is said of a rest is said of
one that lasted.  A sample that a busy machine could not store in time is not in memory until its turn was read: so where no
rest comes, all names are read."""

import os
import signal

import pytest

from helpers import mounts, tools
from helpers.datasets import content
from helpers.pages import read_dropped
from helpers.waiting import wait_until
from mount.control import stats

FILES = 640
SOME = 80  # more than the watch must see before it rests


@pytest.fixture
def dataset(pack, scratch):
    files = {}
    for i in range(FILES):
        path = f"c{i % 4}/f{i:04d}"
        files[path] = content(path, 1 + i * 6)
        (scratch / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "tree" / path).write_bytes(files[path])
    return pack(scratch / "tree"), files


@pytest.fixture
def rested(mount, dataset):
    """rested(options) -> Mount with room for all."""
    return lambda options="": mount(dataset[0], "rank=0,world=1,memory=256M,order=full,watch=rest" + options)


def names_of(m):
    return sorted(os.listdir(m.path))


def epoch_of(names):
    return {int(name.split("-")[0]) for name in names}


def read_all(m, names, files):
    for name in names:
        assert (m.path / name).read_bytes() == files[name.split("-", 2)[2].replace("%2F", "/")], name


def until_it_rests(m, names, files):
    """Reads the names until the watch rests.  Returns the counters."""
    def some():
        read_all(m, names, files)
        now = stats(m)
        return now["watch_resting"] and now["watched_dirs"] == 0 and now
    return wait_until(some, "a rest", pause_s=0)


def rest_early(m, files):
    """Lists and reads until the watch rests with less than half of the epoch opened.  Returns the names."""
    def begin():
        names = names_of(m)
        for _ in range(10):
            read_all(m, names[:SOME], files)
            now = stats(m)
            if now["watch_resting"] and now["watched_dirs"] == 0:
                return names
        read_all(m, names, files)
        return None
    return wait_until(begin, "an early rest", pause_s=0)


def one_rest(m, names, files):
    """Reads all names within one rest.  Returns the counters before and after."""
    def whole():
        before = until_it_rests(m, names, files)
        read_all(m, names, files)
        after = stats(m)
        return after["watch_resting"] and after["watch_rests"] == before["watch_rests"] and (before, after)
    return wait_until(whole, "a rest that lasts", pause_s=0)


def awake(m):
    return wait_until(lambda: (now := stats(m))["watched_dirs"] == 1 and not now["watch_resting"] and now, "the watch")


def test_nothing_is_counted_and_progress_goes_on(rested, dataset):
    m = rested()
    names = names_of(m)
    before, after = one_rest(m, names, dataset[1])
    for key in ("opens", "hits", "misses"):
        assert after[key] == before[key]
    assert (after["opened"], after["position"], after["watched_dirs"]) == (FILES, FILES, 0)


def test_a_listing_moves_on_and_is_watched(rested, dataset):
    m = rested()
    for epoch in range(3):
        names = names_of(m)
        assert epoch_of(names) == {epoch}
        before = stats(m)
        assert (before["watch_resting"], before["watched_dirs"], before["opened"]) == (0, 1, 0)
        read_all(m, names[:10], dataset[1])
        after = stats(m)
        assert (after["opens"], after["opened"]) == (before["opens"] + 10, 10)
        one_rest(m, names, dataset[1])


def test_listings_in_the_middle_do_not_move_on(rested, dataset):
    m = rested()
    for _ in range(3):
        names = rest_early(m, dataset[1])
        assert names_of(m) == names == names_of(m)
    names = rest_early(m, dataset[1])
    read_all(m, names[:FILES * 3 // 4], dataset[1])  # a rest that ends meanwhile leaves out a few
    (epoch,) = epoch_of(names)
    assert epoch_of(names_of(m)) == {epoch + 1}


def test_the_same_names_again_and_again(rested, dataset):
    m = rested()
    names = names_of(m)
    for _ in range(3):
        read_all(m, names, dataset[1])
    before, after = one_rest(m, names, dataset[1])
    assert after["opens"] == before["opens"]
    assert epoch_of(names_of(m)) == {1}


def test_lost_pages_wake_it(rested, dataset):
    m = rested()
    names = names_of(m)
    before = until_it_rests(m, names, dataset[1])

    def dropped():
        for name in names:
            read_dropped(m.path / name)
        now = stats(m)
        return not now["watch_resting"] and now
    now = wait_until(dropped, "the watch")
    assert now["reads"] > before["reads"]
    one_rest(m, names, dataset[1])
    assert stats(m)["watch_rests"] > before["watch_rests"]


def test_an_epoch_set_by_hand_wakes_it(rested, dataset):
    m = rested()
    until_it_rests(m, names_of(m), dataset[1])
    tools.ddpfs("ctl", m.path, "epoch", 3)
    assert awake(m)["epoch"] == 3
    names = names_of(m)
    assert epoch_of(names) == {3}
    one_rest(m, names, dataset[1])
    assert epoch_of(names_of(m)) == {3}, "set by hand"


def test_a_server_killed_while_it_rests(rested, dataset):
    m = rested()
    names = names_of(m)
    before = until_it_rests(m, names, dataset[1])
    os.kill(before["server_pid"], signal.SIGKILL)
    wait_until(lambda: (now := stats(m))["restarts"] == 1 and now["watched_dirs"] == 1, "the successor's watch")
    assert stats(m)["opened"] >= before["opened"]
    _, after = one_rest(m, names, dataset[1])
    assert after["watch_rests"] > before["watch_rests"]
    assert epoch_of(names_of(m)) == {1}


def test_opens_that_a_killed_server_did_not_come_to(rested, dataset):
    m = rested()
    names = rest_early(m, dataset[1])
    pid = stats(m)["server_pid"]
    mounts.stop_and_wait(pid)
    for name in names:
        os.close(os.open(m.path / name, os.O_RDONLY))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: (now := stats(m))["restarts"] == 1 and now["watched_dirs"] == 1, "the successor's watch")
    assert stats(m)["opened"] == FILES
    (epoch,) = epoch_of(names)
    assert epoch_of(names_of(m)) == {epoch + 1}


def test_restart_keeps_the_option(rested, dataset):
    m = rested()
    names = names_of(m)
    before = until_it_rests(m, names, dataset[1])
    tools.ddpfs("restart", m.path)
    wait_until(lambda: (now := stats(m))["restarts"] == 1 and now["watched_dirs"] == 1, "the successor's watch")
    _, after = one_rest(m, names, dataset[1])
    assert after["watch_rests"] > before["watch_rests"]


def test_one_rank_of_two(mount, dataset):
    m = mount(dataset[0], "rank=1,world=2,memory=256M,order=full,watch=rest,threads=1")
    for epoch in range(3):
        names = names_of(m)
        assert len(names) == FILES // 2 and epoch_of(names) == {epoch}
        one_rest(m, names, dataset[1])


def test_not_when_memory_holds_less(mount, pack, scratch):
    root = scratch / "large"
    files = {}
    for i in range(400):
        path = f"c/f{i:04d}"
        files[path] = content(path, 70 << 10)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(files[path])
    m = mount(pack(root), "rank=0,world=1,memory=16M,order=full,watch=rest")
    for _ in range(3):
        read_all(m, names_of(m), files)
    now = stats(m)
    assert (now["epoch"], now["watch_rests"], now["watched_dirs"]) == (2, 0, 1)
    assert now["opens"] == 3 * len(files)


def test_off_by_default(mount, dataset):
    m = mount(dataset[0], "rank=0,world=1,memory=256M,order=full")
    names = names_of(m)
    for _ in range(3):
        read_all(m, names, dataset[1])
    now = stats(m)
    assert (now["opens"], now["watch_rests"], now["watched_dirs"]) == (3 * FILES, 0, 1)
