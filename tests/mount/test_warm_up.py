# SPDX-License-Identifier: Apache-2.0
"""Orders that nobody knows: the dataset is read in storage order meanwhile (prefetch/warm_up.c)."""

import json
import os
import random
import signal

import pytest

from helpers import tools
from helpers.datasets import content
from helpers.waiting import wait_until
from mount.control import settled, stats

FILES, CLASSES = 3000, 10
ENOUGH = 128  # prefetch/warm_up.c
NAMES = [f"class_{i % CLASSES:02d}/item_{i:05d}.bin" for i in range(FILES)]
TREE = "view=all,layout=tree,memory=256M"
SMALL = "view=all,layout=tree,memory=24M"  # about half of the dataset
FIRST = 600  # files that come first in storage: a third of what fits


def bytes_of(name):
    return content(name, 9000 + len(name) * int(name[-9:-4]) % 12_000)


@pytest.fixture
def dataset(scratch, pack):
    for name in NAMES:
        (scratch / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "tree" / name).write_bytes(bytes_of(name))
    return pack(scratch / "tree")


def shuffled(seed=None):
    return random.Random(seed if seed is not None else os.urandom(8)).sample(NAMES, FILES)


def read(m, names):
    for name in names:
        assert (m.path / name).read_bytes() == bytes_of(name), name


def begun(m):
    return wait_until(lambda: (now := stats(m))["warm_ups"] and now, "a warm-up that has begun", pause_s=0.002)


def taken(now):
    """At most so many opens may miss because the kernel took memory back."""
    return 2 * now["lost"]


def test_most_opens_of_an_unknown_order_hit_and_all_of_the_next_epoch(mount, dataset):
    m = mount(dataset, TREE)
    names = shuffled()
    read(m, names[:2 * ENOUGH])
    begun(m)
    first = settled(m)
    assert "whole dataset" in first["warm_up"] or first["lost"]
    read(m, names[2 * ENOUGH:])
    read(m, shuffled())
    now = settled(m)
    assert now["misses"] - first["misses"] <= taken(now)
    assert now["recognised"] == "nothing"


def test_names_are_listed_by_directory(mount, dataset):
    """A name in a listing costs a fifth of a look-up: one look-up of a directory is enough."""
    m = mount(dataset, TREE)
    before = stats(m)
    read(m, shuffled()[:2 * ENOUGH])
    begun(m)
    now = settled(m)
    assert "whole dataset" in now["warm_up"] or now["lost"]
    by_readers = CLASSES + 2 * ENOUGH
    assert now["lookups"] - before["lookups"] <= by_readers + 2 * CLASSES + taken(now)
    assert now["entries"] - before["entries"] >= FILES


def test_few_opens_begin_nothing(mount, dataset):
    m = mount(dataset, TREE)
    read(m, shuffled()[:ENOUGH - 1])
    now = settled(m)
    assert now["warm_ups"] == 0 and now["warm_up_bytes"] == 0
    assert now["warm_up"].startswith("waits")


def test_stats_say_what_it_does(mount, dataset):
    m = mount(dataset, TREE)
    read(m, shuffled()[:ENOUGH * 2])
    begun(m)
    settled(m)
    out = tools.ddpfs("stat", m.path).stdout
    assert "warm_up" in out and "storage order" in out


def test_a_listing_that_stats_begins_nothing(mount, dataset):
    m = mount(dataset, TREE)
    for name in NAMES:
        os.stat(m.path / name)
    assert settled(m)["warm_ups"] == 0


@pytest.mark.parametrize("options", ["rank=0,world=2", "rank=0,world=2,layout=tree"])
def test_the_view_of_a_rank_has_none(mount, dataset, options):
    m = mount(dataset, options + ",memory=256M")
    assert "warm_up" not in stats(m)


def test_what_is_larger_than_the_budget_is_read_to_the_last_byte(mount, dataset):
    """The budget holds a part; the rest is read on demand, epoch after epoch."""
    m = mount(dataset, "view=all,layout=tree,memory=16M")
    for _ in range(3):
        read(m, shuffled())
    now = settled(m)
    assert now["warm_ups"] >= 1 and now["warm_up_bytes"] > 0
    assert now["resident_bytes"] <= (16 << 20) + (4 << 20)


def test_a_dataset_a_little_smaller_than_the_budget_becomes_resident(mount, dataset):
    """Pages and inodes take 53 MiB.  70 MiB hold them if landing memory takes 8 MiB, and not if it takes 24."""
    m = mount(dataset, "view=all,layout=tree,memory=70M")
    read(m, shuffled())
    first = settled(m)
    read(m, shuffled())
    now = settled(m)
    assert now["misses"] - first["misses"] <= taken(now)
    assert now["evicted"] == 0


def test_names_are_listed_though_those_of_all_files_do_not_fit(mount, dataset):
    """3,000 names take 4.5 MB, and 16 MiB have no room for them."""
    m = mount(dataset, "view=all,layout=tree,memory=16M")
    read(m, shuffled()[:2 * ENOUGH])
    begun(m)
    now = settled(m)
    stored = now["resident_bytes"] // 18_000  # pages and name of a file, about
    assert stored > 2 * ENOUGH
    assert now["lookups"] < 2 * ENOUGH + CLASSES + stored / 4


def test_it_ends_when_an_order_is_known(mount, dataset):
    """Here the order is ddpfs's own."""
    m = mount(dataset, TREE)
    read(m, shuffled()[:2 * ENOUGH])
    begun(m)
    read(m, (m.path / ".ddpfs/epoch/0.list").read_text().splitlines())
    now = wait_until(lambda: (now := settled(m))["following"] and now, "an order that is followed")
    assert now["warm_up"].startswith("waits")


def begun_and_full(m):
    """A warm-up in a small budget, which it has filled.  Returns the counters."""
    read(m, shuffled()[:2 * ENOUGH])
    begun(m)
    now = settled(m)
    assert now["warm_up"].startswith("no order is known"), now["warm_up"]
    return now


def read_in_steps(m, names):
    """Reads when the server has taken in all opens and has nothing left to read ahead.  Returns the counters."""
    for at in range(0, len(names) + 1, 32):
        now = wait_until(lambda: (now := stats(m))["idle"] and not now["recognise_queue"] and now, "an idle engine",
                         pause_s=0.002)
        read(m, names[at:at + 32])
    return now


def test_it_ends_when_an_order_is_announced(mount, dataset):
    m = mount(dataset, SMALL)
    begun_and_full(m)
    names = shuffled()
    tools.ddpfs("ctl", m.path, "follow", "-", input="".join(f"{name}\n" for name in names))
    before = settled(m)
    assert before["warm_up"].startswith("waits")
    now = read_in_steps(m, names)
    assert now["warm_up"].startswith("waits") and now["order_source"] == "announced"
    assert (now["warm_ups"], now["warm_up_bytes"]) == (before["warm_ups"], before["warm_up_bytes"])
    assert now["misses"] - before["misses"] <= taken(now) + 1024 * now["refetches"]


def test_it_ends_when_a_sampler_is_recognised(mount, dataset):
    m = mount(dataset, SMALL)
    begun_and_full(m)
    names, generator = sorted(NAMES), random.Random(42)
    generator.shuffle(names)
    read(m, names[:160])
    before = wait_until(lambda: (now := settled(m))["recognised"] != "nothing" and now, "a sampler that is recognised")
    assert before["recognised"].startswith("Python random.shuffle")
    now = read_in_steps(m, names[160:])
    assert now["warm_up"].startswith("waits") and now["warm_ups"] == before["warm_ups"]
    assert now["misses"] - before["misses"] <= taken(now) + 1024 * now["refetches"] + 32, "the first step may come early"


@pytest.mark.parametrize("known", ["recognised", "announced"])
def test_it_begins_again_when_the_order_is_left(mount, dataset, known):
    """The next epoch has another seed than the one that would come next, or is another list than the announced one."""
    m = mount(dataset, SMALL)
    names = sorted(NAMES)
    random.Random(42).shuffle(names)
    if known == "announced":
        tools.ddpfs("ctl", m.path, "follow", "-", input="".join(f"{name}\n" for name in names * 2))
    read(m, names)
    before = wait_until(lambda: (now := settled(m))["order_source"] == known and now, "an order that is known")
    for _ in range(2):
        read(m, shuffled())
    now = settled(m)
    assert now["warm_ups"] > before["warm_ups"]
    assert now["order_source"] == "unknown" and now["read_ahead_note"]


def clips(files=16):
    """Neighbouring files together, as frames of videos, and the clips in random order."""
    names = sorted(NAMES)
    firsts = range(0, len(names) - files + 1, files)
    return [name for first in random.sample(firsts, len(firsts)) for name in names[first:first + files]]


@pytest.mark.parametrize("options", [TREE, SMALL])
def test_clips_in_random_order_do_not_end_it(mount, dataset, options):
    m = mount(dataset, options)
    read(m, clips())
    settled(m)
    read(m, clips())
    now = settled(m)
    assert now["recognised"] == "nothing" and now["order_source"] == "unknown"
    assert now["warm_up"].startswith("no order is known")
    if options == TREE:
        before = now
        read(m, clips())
        now = settled(m)
        assert now["misses"] - before["misses"] <= taken(now)


def test_readers_in_no_order_never_drop_what_it_holds(mount, dataset):
    m = mount(dataset, SMALL)
    begun_and_full(m)
    stored = [json.loads(line) for line in tools.mkshard("ls", "--json", dataset).stdout.splitlines()]
    order = [file["path"] for file in sorted(stored, key=lambda file: (file["shard"], file["offset"]))]
    held, others = order[:FIRST], order[FIRST:]
    before = settled(m)
    for _ in range(3):
        read(m, random.sample(others, len(others)))
    between = settled(m)
    assert between["misses"] - before["misses"] > ENOUGH, "the others do not fit"
    read(m, held)
    now = settled(m)
    assert now["misses"] - between["misses"] <= taken(now)


@pytest.mark.skipif(os.geteuid() != 0, reason="writes to /proc/sys")
def test_drop_caches_in_the_middle_is_mended_and_does_not_loop(mount, dataset):
    m = mount(dataset, TREE)
    names = shuffled()
    read(m, names[:2 * ENOUGH])
    begun(m)
    for _ in range(3):
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")
        read(m, shuffled()[:300])
    now = settled(m)
    size = sum(len(bytes_of(name)) for name in NAMES)
    assert now["warm_up_bytes"] <= 6 * size
    read(m, shuffled())


def resting(m):
    """Reads the dataset, in memory by now, until the search for its order rests."""
    for _ in range(10):
        read(m, shuffled())
        now = settled(m)
        if now["recognise_rests"]:
            return now
    raise AssertionError(now)


def test_the_search_for_an_order_rests_while_everything_is_in_memory(mount, dataset):
    m = mount(dataset, TREE)
    read(m, shuffled())
    assert settled(m)["recognise_looks"] > 0
    before = resting(m)
    assert before["order_note"].startswith("unknown: everything that is opened is in memory")
    assert "read_ahead_note" not in before
    read(m, shuffled())
    now = settled(m)
    if now["recognise_rests"] and now["reads"] == before["reads"]:  # the kernel took nothing back
        assert (now["recognise_looks"], now["recognise_seeds"]) == (before["recognise_looks"], before["recognise_seeds"])
    assert now["recognise_unexplained"] > before["recognise_unexplained"]
    assert now["recognised"] == "nothing"


@pytest.mark.skipif(os.geteuid() != 0, reason="writes to /proc/sys")
def test_the_search_goes_on_when_opens_miss_again(mount, dataset):
    m = mount(dataset, TREE)
    read(m, shuffled())
    before = resting(m)
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")
    read(m, shuffled()[:4 * ENOUGH])
    now = settled(m)
    assert not now["recognise_rests"]
    assert now["recognise_looks"] > before["recognise_looks"]
    assert "announce the order" in now["order_note"]


def test_the_search_does_not_rest_while_opens_miss(mount, dataset):
    m = mount(dataset, SMALL)
    for _ in range(4):
        read(m, shuffled())
        now = settled(m)
        assert not now["recognise_rests"] and "announce the order" in now["order_note"]


def test_a_killed_server_in_the_middle(mount, dataset):
    m = mount(dataset, TREE)
    names = shuffled()
    for part in range(5):
        read(m, names[part * 600:part * 600 + 300])
        os.kill(stats(m)["server_pid"], signal.SIGKILL)
        read(m, names[part * 600 + 300:part * 600 + 600])
    read(m, shuffled())
    assert wait_until(lambda: (now := stats(m))["idle"] and now, "an idle engine")["restarts"] == 5


def test_umount_in_the_middle(mount, dataset):
    """The stream itself never makes the mount busy."""
    for _ in range(3):
        m = mount(dataset, TREE)
        read(m, shuffled()[:ENOUGH + 20])
        begun(m)
        tools.ddpfs("umount", m.path)
        assert m.process.wait() == 0, m.log()
