# SPDX-License-Identifier: Apache-2.0
"""Announced orders: what somebody says that it will open is read ahead, and nothing that is said is believed.

Readers wait at each step until the server has nothing left to read ahead: a READ that comes then is one that no wait would have
spared, on a machine of whatever speed.  The kernel may take pages back at any time; such samples count as `lost`."""

import array
import gc
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib
from pathlib import Path

import pytest

from helpers import tools
from helpers.datasets import content
from helpers.mounts import abort_connection
from helpers.waiting import wait_until
from mount import control
from mount.control import stats, wait_for_log

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402

CLASSES, PER_CLASS, SIZE = 10, 200, 9000
NAME_BYTES = 1490  # of the kernel's inode and name of a file, as the budget counts them
THIN = 500, 8  # classes, files of each
TREE = "layout=tree,view=all,memory=24M"  # about two thirds of the files, names and inodes
THIN_TREE = "layout=tree,view=all,memory=48M"


def write_source(root, classes=CLASSES, per_class=PER_CLASS):
    paths = []
    for c in range(classes):
        (root / f"c{c}").mkdir(parents=True)
        for i in range(per_class):
            path = f"c{c}/{i:04d}.jpg"
            (root / path).write_bytes(content(path, SIZE))
            paths.append(path)
    (root / "labels.txt").write_text("a common file")
    return paths


@pytest.fixture(scope="module")
def packed(build_dir):
    """(dataset, the paths of its samples in order)"""
    with tempfile.TemporaryDirectory(prefix="ddpfs-test.") as directory:
        base = Path(directory)
        paths = write_source(base / "source")
        tools.mkshard("pack", base / "source", base / "dataset")
        yield base / "dataset", paths


@pytest.fixture(scope="module")
def thin(build_dir):
    """As `packed`, with so many directories that the next turns have few files of each."""
    with tempfile.TemporaryDirectory(prefix="ddpfs-test.") as directory:
        base = Path(directory)
        paths = write_source(base / "source", *THIN)
        tools.mkshard("pack", base / "source", base / "dataset")
        yield base / "dataset", paths


@pytest.fixture
def mounted(packed, mount):
    dataset, _ = packed
    return mount(dataset, TREE)


def settled(m):
    """Waits until the server has taken in all opens and has nothing left to read ahead.  Returns the counters."""
    return wait_until(lambda: (now := stats(m))["idle"] and not now["recognise_queue"] and now, "an idle engine", pause_s=0.002)


def gone(now):
    """Samples that the kernel took back; of a window that is fetched again for them readers may be ahead."""
    return now["lost"] + 1024 * now["refetches"]


def read(m, path):
    with open(m.path / path, "rb") as file:
        assert len(file.read()) == SIZE


def read_in_steps(m, order, readers=1, batch=32):
    """Reads the paths in batches that the readers take in turn, side by side.  Returns (before, after)."""
    before = settled(m)
    batches = [order[i:i + batch] for i in range(0, len(order), batch)]
    for at in range(0, len(batches), readers):
        settled(m)
        threads = [threading.Thread(target=lambda b=b: [read(m, path) for path in b]) for b in batches[at:at + readers]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return before, settled(m)


def misses(before, after):
    return max(0, after["misses"] - before["misses"] - (gone(after) - gone(before)))


def weighted(paths):
    rng = random.Random(1)
    return rng.choices(paths, weights=[1 + i % 23 for i in range(len(paths))], k=3000)


def bucketed(paths):
    """Batches of files of one class, in a random order."""
    rng = random.Random(2)
    batches = []
    for c in range(CLASSES):
        of_class = [p for p in paths if p.startswith(f"c{c}/")]
        rng.shuffle(of_class)
        batches += [of_class[i:i + 25] for i in range(0, len(of_class), 25)]
    rng.shuffle(batches)
    return [path for batch in batches for path in batch]


def own_generator(paths):
    rng = random.Random(3)
    return rng.sample(paths, 1500) + rng.sample(paths, 700)


def scattered(paths):
    """An order that no sampler makes."""
    return sorted(paths, key=lambda path: zlib.crc32(os.fsencode(path)[-len("c0/0000.jpg"):]))


def follow(m, order, **how):
    return ddpfs.Mount(m.path).follow(order, **how)


def lists_of(m):
    return {one["list"]: one for one in stats(m)["announced"]}


def test_idle_waits_until_the_engine_knows_what_was_announced(mounted, packed):
    paths = packed[1]
    for _ in range(30):
        follow(mounted, random.sample(paths, len(paths)))
        assert settled(mounted)["following"] == 1
        tools.ddpfs("ctl", mounted.path, "follow", "--end")
        assert settled(mounted)["following"] == 0


def test_what_is_announced_is_read_before_it_is_opened(mounted, packed):
    order = weighted(packed[1])
    assert stats(mounted)["order_source"] == "unknown"
    assert follow(mounted, order) == len(order)
    before = wait_until(lambda: (now := settled(mounted))["stored_bytes"] > 0 and now)
    assert before["opens"] == 0
    assert before["order_source"] == "announced" and f"0 of {len(order)} entries" in before["order_note"]
    for path in order[:100]:
        read(mounted, path)
    after = settled(mounted)
    assert misses(before, after) == 0
    assert after["announced_opens"] >= 90


@pytest.mark.parametrize("readers", [2, 4])
@pytest.mark.parametrize("draw", [weighted, bucketed, own_generator])
def test_opens_of_an_announced_order_do_not_miss(mounted, packed, draw, readers):
    order = draw(packed[1])
    follow(mounted, order)
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    before, after = read_in_steps(mounted, order, readers)
    assert misses(before, after) <= len(order) / 200
    assert after["announced_opens"] - before["announced_opens"] > len(order) * 0.98
    assert after["recognise_unexplained"] < 32 and after["recognised"] == "nothing"
    assert after["recognise_rests"]


@pytest.mark.parametrize("part", [1, 2])
def test_names_of_the_next_files_are_listed_by_directory(mounted, packed, part):
    """A name in a listing costs a fifth of a look-up.  Ten directories, of which all names or each second are needed:
    the others are not made."""
    order = random.Random(4).sample(packed[1][::part], len(packed[1]) // part)
    before = stats(mounted)
    follow(mounted, order)
    _, after = read_in_steps(mounted, order)
    assert misses(before, after) <= len(order) / 200
    assert after["lookups"] - before["lookups"] < len(order) / 3 + gone(after)
    assert after["entries"] - before["entries"] < len(order) + gone(after)
    assert after["names_bytes"] == 0  # no directory was listed whole


def test_names_of_listed_directories_are_counted(thin, mount):
    classes, per_class = THIN
    mounted = mount(thin[0], THIN_TREE)
    assert stats(mounted)["names_bytes"] == 0
    order = random.Random(9).sample(thin[1], len(thin[1]))
    follow(mounted, order)
    before, after = read_in_steps(mounted, order)
    assert misses(before, after) <= len(order) / 200
    kept = stats(mounted)["names_bytes"]
    assert kept % (per_class * NAME_BYTES) == 0 and kept >= classes / 5 * per_class * NAME_BYTES
    assert f"ddpfs_names_bytes{{mountpoint=\"{mounted.path}\",rank=\"0\"}} {kept}\n" in (mounted.path / ".ddpfs/metrics").read_text()
    assert any(line.split()[:1] == ["names"] for line in tools.ddpfs("stat", mounted.path).stdout.splitlines())


@pytest.mark.skipif(os.geteuid() != 0, reason="writes to /proc/sys")
def test_names_that_the_kernel_has_forgotten_are_not_taken_for_known(thin, mount):
    """A listed directory counts as known, until the kernel refuses to store a file of it: its names are made again."""
    mounted = mount(thin[0], THIN_TREE)
    order = random.Random(11).sample(thin[1], len(thin[1]))
    follow(mounted, order * 2)
    _, before = read_in_steps(mounted, order)
    assert before["names_bytes"] > 0
    Path("/proc/sys/vm/drop_caches").write_text("2")
    known = []
    for at in range(0, len(order) // 2, 64):
        _, after = read_in_steps(mounted, order[at:at + 64])
        known.append(after["names_bytes"])
    assert min(known) < before["names_bytes"]
    assert after["misses"] - before["misses"] < len(order) / 8


def test_a_successor_counts_the_names_that_its_predecessor_listed(thin, mount):
    """The kernel keeps them.  A successor that did not know them would list them again, and go above its budget."""
    mounted = mount(thin[0], THIN_TREE)
    order = random.Random(9).sample(thin[1], len(thin[1]))
    follow(mounted, order)
    read_in_steps(mounted, order)
    kept = settled(mounted)["names_bytes"]
    assert kept > 0
    first = mounted.server_pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: mounted.server_pid() != first)
    one = THIN[1] * NAME_BYTES  # a directory that was being listed is not known
    assert kept - one <= stats(mounted)["names_bytes"] <= kept
    order = random.Random(10).sample(thin[1], len(thin[1]))
    follow(mounted, order)
    before, after = read_in_steps(mounted, order)
    assert misses(before, after) <= len(order) / 200


@pytest.mark.parametrize("how", ["killed", "unmounted", "aborted"])
def test_a_server_may_end_while_names_are_listed(packed, mount, how):
    """The listing is cut short at another place each time.  A successor makes the names that are missing."""
    for pause_s in (0, 0.002, 0.005, 0.01, 0.02, 0.05):
        m = mount(packed[0], TREE)
        order = random.Random(pause_s).sample(packed[1], len(packed[1]))
        follow(m, order)
        time.sleep(pause_s)
        if how == "killed":
            first = m.server_pid()
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: m.server_pid() != first)
            before, after = read_in_steps(m, order[:500])
            assert misses(before, after) <= 5
        elif how == "aborted":
            abort_connection(os.minor(os.stat(m.path).st_dev))
        m.unmount()


def test_names_take_nothing_of_the_least_that_the_engine_takes(packed, mount):
    """Landing memory and the least for pages are 16 MiB."""
    m = mount(packed[0], "layout=tree,view=all,memory=16M")
    order = random.Random(9).sample(packed[1], 600)
    follow(m, order)
    before, after = read_in_steps(m, order)
    assert misses(before, after) <= len(order) / 100
    assert after["names_bytes"] == 0


def test_what_was_dropped_costs_no_request_an_open_in_the_next_epoch(mounted, packed):
    """The kernel has the names, but what was dropped has no valid attributes."""
    rng = random.Random(5)
    for epoch in range(3):
        order = rng.sample(packed[1], len(packed[1]))
        follow(mounted, order)
        before, after = read_in_steps(mounted, order)
        assert misses(before, after) <= len(order) / 200
        asked = sum(after[what] - before[what] for what in ("lookups", "getattrs"))
        assert asked < len(order) / 3 + gone(after) - gone(before), f"epoch {epoch}: {asked}"
    assert after["evicted"] > len(order) / 3, "else this test says nothing"


def test_names_of_directories_that_are_hardly_needed_are_looked_up(mounted, packed):
    order = [path for path in packed[1] if path.endswith("7.jpg")][::4]  # five of each directory
    follow(mounted, order)
    before, after = read_in_steps(mounted, order)
    assert misses(before, after) <= 1
    assert after["lookups"] >= len(order)


def test_directories_with_many_and_with_few_files_of_the_order(mounted, packed):
    """The order has all files of five directories, which is half of all files, and one file of each other directory."""
    few = [f"c{c}/0077.jpg" for c in range(5, CLASSES)]
    order = few + random.Random(6).sample(packed[1][:5 * PER_CLASS], 5 * PER_CLASS)
    follow(mounted, order)
    before, after = read_in_steps(mounted, order)
    assert misses(before, after) <= len(order) / 200
    assert after["lookups"] < len(order) / 3 + gone(after) and after["entries"] < len(order) + gone(after)


@pytest.mark.parametrize("apart", [False, True], ids=["together", "one after the other"])
def test_lists_side_by_side_one_a_rank(mounted, packed, apart):
    """The first list may have been read ahead as far as the memory goes when the others come.  These drop a part of that;
    it is fetched again before it is opened."""
    rng = random.Random(4)
    orders = [rng.sample(packed[1], 1200) for _ in range(4)]
    for rank, order in enumerate(orders):
        follow(mounted, order, list=f"rank{rank}")
        if apart:
            wait_until(lambda r=rank: len(lists_of(mounted)) == r + 1 and settled(mounted)["stored_bytes"] > 0)
    wait_until(lambda: len(lists_of(mounted)) == 4 and settled(mounted)["stored_bytes"] > 0)
    mixed = [orders[rank][i + k] for i in range(0, 1200, 32) for rank in range(4) for k in range(32) if i + k < 1200]
    before, after = read_in_steps(mounted, mixed, 4)
    assert misses(before, after) <= len(mixed) / 200
    for one in after["announced"]:
        assert one["place"] > 1100 and one["opens"] > 1100


def read_parts(m, order, readers, begin=0, end=None):
    """Readers of a contiguous part each, in turns [begin, end) of their parts.  Waits every 32 turns."""
    parts = [order[len(order) * k // readers:len(order) * (k + 1) // readers] for k in range(readers)]
    before = settled(m)
    for turn in range(begin, end or max(map(len, parts))):
        for part in parts:
            if turn < len(part):
                read(m, part[turn])
        if turn % 32 == 31:
            settled(m)
    return before, settled(m)


@pytest.mark.parametrize("readers", [2, 3])
def test_a_list_with_a_reader_for_each_contiguous_part(packed, mount, readers):
    """One window cannot serve them: each gets its own, after the first opens that show where it is."""
    mounted = mount(packed[0], "layout=tree,view=all,memory=16M")
    order = random.Random(12).sample(packed[1], len(packed[1]))
    follow(mounted, order)
    before, middle = read_parts(mounted, order, readers, end=320)
    assert middle["order_note"].endswith(f": list 'default', {320 * readers} of {len(order)} entries read")
    assert max(part["entries"] for part in middle["announced"]) == len(order) and len(middle["announced"]) == readers
    _, after = read_parts(mounted, order, readers, begin=320)
    assert misses(before, after) <= 32 * (readers - 1)
    assert after["announced_opens"] - before["announced_opens"] > len(order) - 32 * readers
    assert after["wasted_bytes"] < 4 << 20 and after["orders_dropped"] == 0  # what a stream had read when the list was split


def test_a_successor_goes_on_with_each_part_of_a_list(packed, mount):
    mounted = mount(packed[0], "layout=tree,view=all,memory=16M")
    order = random.Random(12).sample(packed[1], len(packed[1]))
    follow(mounted, order)
    read_parts(mounted, order, 2, end=320)
    first = mounted.server_pid()
    os.kill(first, signal.SIGKILL)
    assert mounted.server_pid() != first
    wait_until(lambda: len(stats(mounted)["announced"]) == 2 and settled(mounted)["following"], "both parts")
    before, after = read_parts(mounted, order, 2, begin=320, end=640)
    assert misses(before, after) <= 16 and after["orders_dropped"] == 0
    follow(mounted, order[:100], append=True)
    assert stats(mounted)["order_note"].endswith(f": list 'default', 1280 of {len(order) + 100} entries read")
    follow(mounted, order[:100])  # takes the place of all parts
    assert [one["entries"] for one in settled(mounted)["announced"]] == [100]


def test_a_successor_keeps_the_end_of_a_list_that_was_read_first(packed, mount):
    """The last part waits for the others, because it is the one that grows."""
    mounted = mount(packed[0], "layout=tree,view=all,memory=16M")
    order = random.Random(12).sample(packed[1], len(packed[1]))
    half = len(order) // 2
    follow(mounted, order)
    read_parts(mounted, order, 2, end=320)
    read_in_steps(mounted, order[half + 320:], 1)
    first = mounted.server_pid()
    os.kill(first, signal.SIGKILL)
    assert mounted.server_pid() != first
    wait_until(lambda: len(stats(mounted)["announced"]) == 2 and settled(mounted)["following"], "both parts")
    assert stats(mounted)["orders_dropped"] == 0
    follow(mounted, order[:200], append=True)
    before, after = read_in_steps(mounted, order[320:half] + order[:200], 1)
    assert misses(before, after) <= 16 and after["orders_dropped"] == 0
    wait_until(lambda: not stats(mounted)["announced"], "all parts ended")


def test_opens_beside_a_list_that_is_followed_are_told_of(packed, mount):
    """Items open two files, and one of them is announced."""
    mounted = mount(packed[0], "layout=tree,view=all,memory=16M")
    order = random.Random("no seed that is known").sample(packed[1], len(packed[1]))
    follow(mounted, order[::2])
    read_in_steps(mounted, order, 1)
    now = settled(mounted)
    assert now["order_source"] == "announced" and now["orders_dropped"] == 0
    assert "opens are in no announced list" in now["read_ahead_note"], now


def through_a_buffer(order, size):
    """What tf.data's shuffle(size) gives out of the order."""
    rng, held = random.Random(13), list(order[:size])
    for path in order[size:]:
        at = rng.randrange(size)
        yield held[at]
        held[at] = path
    rng.shuffle(held)
    yield from held


@pytest.mark.parametrize("how", ["command", "Python"])
def test_a_shuffle_buffer_over_an_announced_list(mounted, packed, scratch, how):
    order = random.Random(14).sample(packed[1], len(packed[1]))
    if how == "command":
        (scratch / "list").write_text("\n".join(order) + "\n")
        ctl(mounted, scratch / "list", "--buffer", 150)
    else:
        follow(mounted, order, buffer=150)
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    before, after = read_in_steps(mounted, list(through_a_buffer(order, 150)), 2)
    assert misses(before, after) <= len(order) / 100
    assert after["announced_opens"] - before["announced_opens"] > len(order) * 0.98
    assert after["orders_dropped"] == 0 and after["wasted_bytes"] < 4 << 20


def test_an_order_grows_while_it_is_read(mounted, packed):
    order = own_generator(packed[1])
    step, ahead = 64, 512
    mount = ddpfs.Mount(mounted.path)
    mount.follow(order[:ahead])
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    before = settled(mounted)
    for at in range(0, len(order), step):
        if order[at + ahead:at + ahead + step]:
            mount.follow(order[at + ahead:at + ahead + step], append=True)
        read_in_steps(mounted, order[at:at + step], 2)
    after = settled(mounted)
    assert misses(before, after) <= len(order) / 200
    assert after["announced_opens"] - before["announced_opens"] > len(order) * 0.98


@pytest.mark.parametrize("part", [10, 1])
def test_after_a_list_nothing_is_read_in_an_order_that_nobody_follows(part, mounted, packed):
    order = scattered(packed[1])[::part]
    follow(mounted, order)
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    for path in order:
        read(mounted, path)
    before = wait_until(lambda: not lists_of(mounted) and settled(mounted), "an end of the list")
    time.sleep(0.2)
    after = settled(mounted)
    assert after["jumps"] == 0 and after["following"] == 0
    assert after["stored_bytes"] == before["stored_bytes"]
    assert after["order_note"].startswith("announced: the last list was read to its end")


def test_a_list_that_was_read_to_its_end_is_forgotten(mounted, packed):
    order = packed[1][:300]
    follow(mounted, order)
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    read_in_steps(mounted, order)
    wait_until(lambda: not stats(mounted)["announced"], "the end of the list")
    assert stats(mounted)["orders_dropped"] == 0
    follow(mounted, order, append=True)  # begins anew
    assert lists_of(mounted)["default"]["entries"] == 300


def test_a_list_is_replaced_and_forgotten(mounted, packed):
    mount = ddpfs.Mount(mounted.path)
    mount.follow(packed[1][:500])
    mount.follow(packed[1][500:600])
    wait_until(lambda: [one["entries"] for one in stats(mounted)["announced"]] == [100])
    mount.unfollow()
    wait_until(lambda: not stats(mounted)["announced"])
    wait_until(lambda: stats(mounted)["order_memory_bytes"] == 0, "memory given back")
    mount.unfollow("never-was")


def test_an_order_that_is_wrong_is_dropped_and_the_sampler_recognised(mounted, packed):
    rng = random.Random(5)
    follow(mounted, rng.choices(packed[1], k=20000))
    follow(mounted, rng.choices(packed[1], k=20000), list="other")
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    for _ in range(2):
        for path in packed[1]:  # sorted
            read(mounted, path)
        settled(mounted)
    wait_until(lambda: stats(mounted)["orders_dropped"] == 2, "both lists dropped")
    wait_for_log(mounted, "'other' is dropped")
    for _ in range(2):
        read_in_steps(mounted, packed[1], 1, 200)
    now = stats(mounted)
    assert now["order_source"] == "recognised" and "sorted" in now["order_note"], now["order_note"]


def test_a_trainer_that_goes_on_elsewhere_moves_the_reading(pack, mount, scratch):
    paths = []
    for c in range(12):
        (scratch / f"source/c{c}").mkdir(parents=True)
        for i in range(1000):
            paths.append(f"c{c}/{i:04d}.bin")
            (scratch / "source" / paths[-1]).write_bytes(b"x" * 50)
    m = mount(pack(scratch / "source"), "layout=tree,view=all,memory=32M")
    order = random.Random(12).sample(paths, len(paths))
    follow(m, order)
    wait_until(lambda: settled(m)["stored_bytes"] > 0)
    for part in (order[:200], order[8000:8200]):
        for path in part:
            (m.path / path).read_bytes()
        settled(m)
    assert lists_of(m)["default"]["moves"] == 1
    before = settled(m)
    for path in order[8200:8500]:
        (m.path / path).read_bytes()
    assert misses(before, settled(m)) <= 3


def test_indices_of_the_sorted_files(mounted, packed):
    """common files have numbers, too: labels.txt comes last."""
    paths = packed[1]
    rng = random.Random(6)
    mount = ddpfs.Mount(mounted.path)
    numbers = rng.choices(range(len(paths)), k=600)
    assert mount.follow(array.array("I", numbers)) == 600
    assert mount.follow([*numbers, len(paths)]) == 600  # a common file is not read ahead
    with pytest.raises(ValueError, match=f"index {len(paths) + 1} at place 1 is out of range: there are {len(paths) + 1}"):
        mount.follow([0, len(paths) + 1])
    with pytest.raises(ValueError, match="index -1 at place 1 is out of range"):
        mount.follow([0, -1])
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    before, after = read_in_steps(mounted, [paths[i] for i in numbers], 2)
    assert misses(before, after) <= 3
    below = [p for p in paths if p.startswith("c3/")]
    mount.follow(array.array("q", range(len(below))), dir=mounted.path / "c3")
    wait_until(lambda: lists_of(mounted)["default"]["entries"] == len(below) and settled(mounted)["following"])
    before, after = read_in_steps(mounted, below)
    assert misses(before, after) == 0
    with pytest.raises(ValueError, match="no directory"):
        mount.follow([0], dir="nowhere")


def test_indices_as_imagefolder_numbers_them(packed, mount):
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    m = mount(packed[0], TREE)
    samples = [os.path.relpath(path, m.path) for path, _ in datasets.ImageFolder(m.path).samples]
    numbers = random.Random(7).sample(range(len(samples)), 400)
    ddpfs.Mount(m.path).follow(numbers, listing="imagefolder")
    wait_until(lambda: settled(m)["stored_bytes"] > 0)
    before, after = read_in_steps(m, [samples[i] for i in numbers], 2)
    assert misses(before, after) <= 2


def test_indices_of_a_table_of_files(mounted, packed):
    paths = random.Random(8).sample(packed[1], 1000)
    mount = ddpfs.Mount(mounted.path)
    files = mount.files([str(mounted.path / p) for p in paths])
    assert len(files) == 1000
    numbers = random.Random(9).choices(range(1000), k=800)
    assert mount.follow(memoryview(array.array("i", numbers)), files=files) == 800
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    before, after = read_in_steps(mounted, [paths[i] for i in numbers], 2)
    assert misses(before, after) <= 4
    os.kill(mounted.server_pid(), signal.SIGKILL)  # a successor has no tables: it gets it again
    assert mount.follow(numbers, files=files, list="again") == 800
    with pytest.raises(ValueError, match="no such file in the mount"):
        mount.files(["c0/0000.jpg", "c0/none.jpg"])
    some = mount.files(["c0/0000.jpg", "c0/none.jpg", "c0/0001.jpg"], skip_unknown=True)
    assert mount.follow([0, 1, 2, 2], files=some) == 3


@pytest.mark.parametrize("kind", ["str", "bytes", "object"])
def test_numpy_arrays_of_paths(kind, mounted, packed):
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    order = packed[1][:300]
    paths = {"str": np.array(order), "bytes": np.array([os.fsencode(p) for p in order]),
             "object": np.array([mounted.path / p for p in order], dtype=object)}[kind]
    assert follow(mounted, paths) == 300
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    before, after = read_in_steps(mounted, order)
    assert misses(before, after) <= 2


def test_numpy_arrays_and_tensors(mounted, packed):
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    mount = ddpfs.Mount(mounted.path)
    for dtype in ("int32", "uint32", "int64", "uint64"):
        assert mount.follow(np.arange(500, dtype=dtype)) == 500
    assert mount.follow(np.arange(1000)[::2]) == 500  # not contiguous
    for wrong in (np.arange(5.0), np.arange(5, dtype="int16")):
        with pytest.raises(TypeError, match="4 or 8 bytes"):
            mount.follow(wrong)
    with pytest.raises(ValueError, match="out of range"):
        mount.follow(np.array([-1]))
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert mount.follow(torch.randperm(300)) == 300
    with pytest.raises(TypeError, match="4 or 8 bytes"):
        mount.follow(torch.rand(5))


def test_indices_of_8_bytes_travel_as_4(mounted, packed):
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    pieces, mount = sys.modules["ddpfs.follow"].pieces, ddpfs.Mount(mounted.path)
    order = np.random.default_rng(5).permutation(len(packed[1]))
    orders = [order, order.astype("uint64"), array.array("q", order.tolist())]
    if "torch" in sys.modules:
        orders.append(sys.modules["torch"].from_numpy(order))
    for one in orders:
        [(data, form)] = pieces(one, None)
        assert form == "u32" and np.concatenate(list(data.parts())).tolist() == order.tolist()
    for large in (1 << 32, -1):
        [(data, form)] = pieces(np.array([0, large]), None)
        assert form == "u64" and bytes(data) == np.array([0, large]).tobytes()
    with pytest.raises(ValueError, match="index 4294967297 at place 600000 is out of range"):
        mount.follow(np.append(np.zeros(600000, dtype="int64"), (1 << 32) + 1))
    with pytest.raises(ValueError, match="index 4294967295 at place 600000 is out of range"):
        mount.follow(np.append(np.zeros(600000, dtype="int64"), (1 << 32) - 1))
    mount.follow(order)
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    before, after = read_in_steps(mounted, [packed[1][i] for i in order[:600]])
    assert misses(before, after) <= 3


def test_what_cannot_be_followed_is_refused_in_a_sentence(mounted, packed, scratch):
    mount = ddpfs.Mount(mounted.path)
    for order, error, said in [
        ([], ValueError, "nothing is announced"),
        (iter(()), ValueError, "nothing is announced"),
        (["c0/0000.jpg", "c0/none.jpg"], ValueError, "'c0/none.jpg': no such file in the mount.*skip_unknown=True"),
        (["c0"], ValueError, "a directory"),
        (["../../etc/passwd"], ValueError, "is not in the mount"),
        (["/etc/passwd"], ValueError, "is not in the mount"),
        (["c0/0000.jpg", 7], TypeError, "holds a int"),
        ("c0/0000.jpg", TypeError, "not one path"),
        ([1.5], TypeError, "float"),
        ([2**70], ValueError, "out of range"),
        ([[1, 2], [3, 4]], TypeError, "holds a list: flatten batches"),
        (None, TypeError, "and not a NoneType: give"),
    ]:
        with pytest.raises(error, match=said):
            mount.follow(order)
    with pytest.raises(ValueError, match="printable ASCII"):
        mount.follow([1], list="two words")
    assert mount.follow(["c1/../c0/0000.jpg", "./c0//0000.jpg", f"{mounted.path}/c1/../c0/0000.jpg"]) == 3
    (scratch / "far" / "off").mkdir(parents=True)
    (scratch / "link").symlink_to(mounted.path / "c1")
    (scratch / "far" / "link").symlink_to(scratch / "far" / "off")
    assert mount.follow([f"{scratch}/link/../c0/0000.jpg"]) == 1  # above the target of the link
    with pytest.raises(ValueError, match="is not in the mount"):
        mount.follow([f"{scratch}/far/link/../c0/0000.jpg"])
    assert mount.follow(["c0/0000.jpg", "c0/none.jpg"], skip_unknown=True) == 1
    with pytest.raises(OSError, match="no ddpfs mount"):
        ddpfs.Mount(scratch).follow([1])
    assert stats(mounted)["errors"] == 0


def test_a_mount_that_is_forgotten_closes_its_connection(mounted):
    gc.collect()  # what tests before this one left is not of this one
    mount = ddpfs.Mount(mounted.path)
    mount.follow(["c0/0000.jpg"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.MonkeyPatch.context() as patch:
            unraisable = []
            patch.setattr(sys, "unraisablehook", unraisable.append)
            del mount
            gc.collect()
    assert not unraisable


def raw_follow(m, fds=(), **request):
    """A request as any program may send it."""
    with control.connect(m) as sock:
        line = json.dumps({"cmd": "follow", **request}).encode() + b"\n"
        if fds:
            socket.send_fds(sock, [line], list(fds))
        else:
            sock.sendall(line)
        with sock.makefile("rb") as reply:
            return json.loads(reply.readline())


def memfd(data):
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd


def test_nothing_that_comes_is_believed(mounted, packed, scratch):
    numbers = array.array("I", range(100)).tobytes()
    good = memfd(numbers)
    assert raw_follow(mounted, [good], form="u32", bytes=400)["entries"] == 100
    read_end, write_end = os.pipe()
    null = os.open("/dev/zero", os.O_RDONLY)
    inside = os.open(mounted.path / "c0" / "0000.jpg", os.O_RDONLY)
    directory = os.open(scratch, os.O_RDONLY)
    many = memfd(array.array("Q", range(4097)).tobytes())
    for fds, request, said in [
        ([], {"form": "u32", "bytes": 400}, "needs a descriptor"),
        ([read_end], {"form": "u32", "bytes": 400}, "memfd"),
        ([null], {"form": "u32", "bytes": 400}, "memfd"),
        ([inside], {"form": "u32", "bytes": 400}, "memfd"),
        ([directory], {"form": "u32", "bytes": 400}, "memfd"),
        ([good], {"form": "u32", "bytes": 404}, "shorter"),
        ([good], {"form": "u32", "bytes": 399}, "no multiple"),
        ([good], {"form": "u64", "bytes": 396}, "no multiple"),
        ([good], {"form": "u32", "bytes": -4}, "whole number"),
        ([good], {"form": "u32", "bytes": 2**62}, "shorter"),
        ([good], {"form": "u32", "bytes": 400, "buffer": -1}, '"buffer" must be'),
        ([good], {"form": "u32", "bytes": 400, "buffer": 2**30 + 1}, '"buffer" must be'),
        ([good], {"form": "u32", "bytes": 400, "buffer": "5"}, '"buffer" must be'),
        ([good], {"form": "u32"}, "at least one entry"),
        ([good], {"form": "u16", "bytes": 400}, '"form"'),
        ([good], {"form": 5, "bytes": 400}, "must be texts"),
        ([good], {"form": "u32", "bytes": 400, "listing": "none"}, '"listing"'),
        ([good], {"form": "u32", "bytes": 400, "listing": "table", "table": "none"}, "no table"),
        ([good], {"form": "u32", "bytes": 400, "how": "perhaps"}, '"how"'),
        ([], {"how": "none"}, '"reason" must have 1 to 255 printable'),
        ([], {"how": "none", "reason": ""}, '"reason" must have'),
        ([], {"how": "none", "reason": "x" * 256}, '"reason" must have'),
        ([], {"how": "none", "reason": "\x1b[2J"}, '"reason" must have'),
        ([], {"how": "none", "reason": "\u00e4"}, '"reason" must have'),
        ([], {"how": "none", "reason": 5}, '"reason" must have'),
        ([good], {"form": "u32", "bytes": 400, "list": "x" * 64}, "printable"),
        ([good], {"form": "u32", "bytes": 400, "list": ""}, "printable"),
        ([good], {"form": "u64", "bytes": 400}, "out of range"),
        ([good], {"form": "u32", "bytes": 400, "other": 1}, "does not know"),
        ([], {"how": "learn", "table": "t", "size": 2000, "form": "u64", "bytes": 400}, "needs a descriptor"),
        ([good], {"how": "learn", "table": "t", "size": 2000, "form": "u32", "bytes": 400}, "drawn indices"),
        ([many], {"how": "learn", "table": "t", "size": 2000, "form": "u64", "bytes": 8 * 4097}, "4096 at most"),
        ([many], {"how": "learn", "table": "t", "form": "u64", "bytes": 80}, '"size"'),
        ([many], {"how": "learn", "table": "t", "size": -1, "form": "u64", "bytes": 80}, '"size"'),
        ([many], {"how": "learn", "table": "t", "size": "x", "form": "u64", "bytes": 80}, '"size"'),
        ([many], {"how": "learn", "table": "t", "size": 9, "form": "u64", "bytes": 80}, "out of range"),
        ([many], {"how": "learn", "table": "t" * 64, "size": 2000, "form": "u64", "bytes": 80}, "printable"),
    ]:
        reply = raw_follow(mounted, fds, **request)
        assert not reply["ok"] and said in reply["error"], (request, reply)
    assert raw_follow(mounted, [good, null, read_end], form="u32", bytes=400).get("ok") in (True, False)  # one counts
    for size, more in (2000, True), (1999, True), (50, False), (2002, False), (2**62, False):  # nothing was opened
        def asked():
            """A server that is busy looks later, and says so by `more`."""
            reply = raw_follow(mounted, [many], how="learn", table="t", size=size, form="u64", bytes=80)
            assert reply["ok"] and not reply["found"], size
            return reply["more"] == more

        wait_until(asked, f"the answer for {size} files")
    assert lists_of(mounted)["default"]["entries"] == 100  # a refused request changes nothing
    os.ftruncate(good, 0)  # what the client does later changes nothing either
    os.write(good, b"\xff" * 4096)
    before, after = read_in_steps(mounted, packed[1][:100])
    assert misses(before, after) == 0
    for fd in (good, many, read_end, write_end, null, inside, directory):
        os.close(fd)


def test_descriptors_that_come_with_requests_are_closed(mounted):
    pid = mounted.server_pid()
    before = len(os.listdir(f"/proc/{pid}/fd"))
    fd = memfd(array.array("I", [1]).tobytes())
    for i in range(50):
        raw_follow(mounted, [fd] * (1 + i % 3), form="u32", bytes=4 if i % 2 else 8)
        with control.connect(mounted) as sock:
            socket.send_fds(sock, [b'{"cmd":"info"}\n'], [fd])
            sock.makefile("rb").readline()
        with control.connect(mounted) as sock:
            socket.send_fds(sock, [b'{"cmd":'], [fd])  # never ends its line
    wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= before + 10, "descriptors closed")  # shards were opened
    os.close(fd)


def test_lists_and_memory_are_bounded(mounted):
    mount = ddpfs.Mount(mounted.path)
    for i in range(64):
        mount.follow([1, 2, 3], list=f"list{i}")
    with pytest.raises(OSError, match="64 lists already"):
        mount.follow([1], list="one-more")
    assert mount.follow([4], list="list5") == 1  # replaced
    for i in range(64):
        mount.unfollow(f"list{i}")
    piece = array.array("I", [1]) * (1 << 22)
    with pytest.raises(OSError, match="smaller windows"):  # 64 MiB at least, a quarter of memory= at most
        for _ in range(10):
            mount.follow(piece, append=True)
    assert 48 << 20 < stats(mounted)["order_memory_bytes"] < 80 << 20
    mount.unfollow()
    wait_until(lambda: stats(mounted)["order_memory_bytes"] < 1 << 20)


def test_a_killed_server_leaves_its_lists_to_the_next_one(mounted, packed):
    order = own_generator(packed[1])
    follow(mounted, order)
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    read_in_steps(mounted, order[:700], 2)
    first = mounted.server_pid()
    os.kill(first, signal.SIGKILL)
    assert mounted.server_pid() != first
    wait_until(lambda: lists_of(mounted) and settled(mounted)["following"], "the list")
    now = stats(mounted)
    assert now["order_source"] == "announced" and now["orders_dropped"] == 0
    assert 600 <= lists_of(mounted)["default"]["place"] <= 700
    before, after = read_in_steps(mounted, order[700:1500], 2)
    assert misses(before, after) <= 8
    os.kill(mounted.server_pid(), signal.SIGKILL)
    mount = ddpfs.Mount(mounted.path)
    mount.follow(packed[1][:10], append=True)
    assert lists_of(mounted)["default"]["entries"] == len(order) + 10


def test_both_a_views_own_order_and_an_announced_one(packed, mount):
    """A flat mount of one rank: names as it lists them."""
    m = mount(packed[0], "rank=0,world=2,memory=24M,order=full")
    names = sorted(n for n in os.listdir(m.path) if n[0].isdigit())
    assert stats(m)["order_source"] == "own"
    order = random.Random(10).sample(names, 500)
    assert follow(m, [m.path / n for n in order]) == 500
    wait_until(lambda: settled(m)["stored_bytes"] > 0 and lists_of(m))
    before, after = read_in_steps(m, order, 2)
    assert misses(before, after) <= 3
    assert after["announced_opens"] > 490
    follow(m, [os.getxattr(m.path / n, "user.ddpfs.path").decode() for n in order[:5]])  # paths of the dataset, too


def ctl(m, *words, **how):
    return tools.ddpfs("ctl", m.path, "follow", *words, **how)


def test_the_command_announces_files_and_standard_input(mounted, packed, scratch):
    paths = packed[1]
    (scratch / "list").write_text("".join(f"{p}\n" for p in paths[:300]))
    assert ctl(mounted, scratch / "list").stdout == "list default: 300 entries announced\n"
    (scratch / "list0").write_bytes(b"".join(os.fsencode(mounted.path / p) + b"\0" for p in paths[:200]))
    assert ctl(mounted, "-0", "--list=b", scratch / "list0").stdout == "list b: 200 entries announced\n"
    assert ctl(mounted, "-", "--append", input="".join(f"./{p}\n" for p in paths[300:310])).returncode == 0
    assert {name: one["entries"] for name, one in lists_of(mounted).items()} == {"default": 310, "b": 200}
    assert json.loads(ctl(mounted, "--json", "--indices", "-", input="3\n1\n2").stdout) == \
        {"list": "default", "entries": 3, "skipped": 0}
    (scratch / "u32").write_bytes(array.array("I", range(50)).tobytes())
    assert "50 entries" in ctl(mounted, "--indices=u32", scratch / "u32", "--dir", mounted.path / "c1").stdout
    assert "1 entries announced, 2 left out" in \
        ctl(mounted, "-", "--skip-unknown", input="none\nc0/0000.jpg\n/etc/passwd\n").stdout
    assert ctl(mounted, "--end", "--list=b").stdout == "list b: forgotten\n"
    wait_until(lambda: list(lists_of(mounted)) == ["default"])


@pytest.mark.parametrize("form", ["u32", "u64", "lines"])
def test_the_command_announces_indices_in_pieces(form, mounted, packed):
    """A short piece behind a long one, too.  Numbers of 8 bytes travel as 4."""
    order = random.Random(3).sample(range(len(packed[1])), 600)
    process = subprocess.Popen([tools.tool("ddpfs"), "ctl", mounted.path, "follow",
                                "--indices" if form == "lines" else f"--indices={form}", "-"],
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=tools.die_with_parent)
    for begin, end in (0, 250), (250, 300), (300, 600):
        part = order[begin:end]
        lines = "".join(f"{number}\n" for number in part).encode()
        process.stdin.write(lines if form == "lines" else array.array("I" if form == "u32" else "Q", part).tobytes())
        process.stdin.flush()
        wait_until(lambda: lists_of(mounted).get("default", {"entries": 0})["entries"] == end)
    process.stdin.close()
    assert process.wait() == 0
    wait_until(lambda: settled(mounted)["stored_bytes"] > 0)
    before, after = read_in_steps(mounted, [packed[1][number] for number in order])
    assert misses(before, after) <= 3 and after["announced_opens"] - before["announced_opens"] > 590


@pytest.mark.parametrize("number", [(1 << 32) - 1, 1 << 32, (1 << 63) - 1])
def test_the_command_says_which_index_is_out_of_range(number, mounted, scratch):
    (scratch / "order").write_bytes(array.array("Q", [0, 1, number]).tobytes())
    said = ctl(mounted, "--indices=u64", scratch / "order", check=False).stderr
    assert f"index {number} at place 2 is out of range" in said


def test_what_the_command_refuses(mounted, scratch):
    (scratch / "odd").write_bytes(b"123")
    for words, given, code, said in [
        (["-"], "c0/none.jpg\n", 1, "'c0/none.jpg': no such file in the mount: give paths as the mount shows them, or "
                                  "leave out others with --skip-unknown"),
        (["-"], "c0/0000.jpg\n/etc/passwd\n", 1, f"entry 2: '/etc/passwd' is not in the mount '{mounted.path}': "
                                                   "--skip-unknown leaves such entries out"),
        (["-"], "", 1, "nothing is announced"),
        (["-"], "c0/0000.jpg\0c0/0001.jpg\0", 1, "give --null"),
        (["--indices", "-"], "0\nx\n", 1, "entry 2: 'x' is no index"),
        (["--indices", "-"], "9999999\n", 1, "out of range"),
        (["--indices=u32", scratch / "odd"], None, 1, "no multiple of 4"),
        ([scratch / "missing"], None, 1, "No such file"),
        ([], None, 2, "LIST is missing"),
        (["--end", "-"], "", 2, "--end forgets"),
        (["--dir=c0", "-"], "", 2, "belong to --indices"),
        (["--indices=u16", "-"], "", 2, "u32 or u64"),
    ]:
        done = ctl(mounted, *words, check=False, input=given) if given is not None else ctl(mounted, *words, check=False)
        assert done.returncode == code and said in done.stderr, (words, done.stderr)
    done = tools.ddpfs("ctl", mounted.path, "epoch", "--append", check=False)
    assert done.returncode == 2 and "belong to follow" in done.stderr


# A reader process.  It reads no entry before it is announced, and waits as the readers above do.  `words` are shared by
# all: entries announced to each reader, then entries that each has read.
READER = """
import mmap, sys
from types import SimpleNamespace
from helpers.datasets import content
from helpers.waiting import wait_until
from mount.control import stats

mountpoint, shared, server, size, number = sys.argv[1:3] + [int(word) for word in sys.argv[3:]]
mount = SimpleNamespace(process=SimpleNamespace(pid=server))
order = sys.stdin.read().split()
with open(shared, "r+b") as file:
    words = memoryview(mmap.mmap(file.fileno(), 32)).cast("q")
for at in range(0, len(order), 16):
    batch = order[at:at + 16]
    wait_until(lambda: words[number] >= at + len(batch), "the announcement")
    wait_until(lambda: (now := stats(mount))["idle"] and not now["recognise_queue"], "an idle engine", pause_s=0.002)
    for path in batch:
        with open(f"{mountpoint}/{path}", "rb") as file:
            assert file.read() == content(path, size), path
    words[2 + number] = at + len(batch)
"""


@pytest.mark.parametrize("how", ["append", "replace"])
def test_lists_that_grow_while_two_processes_read_them(mounted, packed, scratch, how):
    """One list a reader, in small steps, in turn.  "replace": at each 200 entries a list begins anew where its reader is."""
    rng = random.Random(31)
    shuffled = rng.sample(packed[1], len(packed[1]))
    orders = shuffled[::2], shuffled[1::2]
    (scratch / "words").write_bytes(bytes(32))
    with open(scratch / "words", "r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 32)).cast("q")
    mount, before = ddpfs.Mount(mounted.path), settled(mounted)
    readers = [subprocess.Popen([sys.executable, "-c", READER, mounted.path, scratch / "words", str(mounted.process.pid),
                                 str(SIZE), str(i)], stdin=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent,
                                env={**os.environ, "PYTHONPATH": str(tools.ROOT / "tests")}) for i in range(2)]
    for reader, order in zip(readers, orders):
        reader.stdin.write("\n".join(order))
        reader.stdin.close()
    i, steps, begun = 0, 0, [0, 0]  # where the list of each reader began
    while any(words[i] < len(order) for i, order in enumerate(orders)):
        i = 1 - i
        at, read_to = words[i], words[2 + i]
        end = min(at + rng.randint(1, 24), read_to + 200, len(orders[i]))
        anew = how == "replace" and read_to >= begun[i] + 200 or at == 0
        if end > at:
            begun[i] = read_to if anew else begun[i]
            mount.follow(orders[i][read_to if anew else at:end], list=f"rank{i}", append=not anew)
            words[i] = end
            steps += 1
        else:
            time.sleep(0.001)
        assert not any(reader.poll() for reader in readers), "a reader failed"
    assert [reader.wait() for reader in readers] == [0, 0]
    after = settled(mounted)
    assert steps > 100 and after["orders_dropped"] == 0
    explained = 0.99 if how == "append" else 0.95  # a list that begins anew explains only what is surely its own
    assert after["announced_opens"] - before["announced_opens"] >= explained * len(shuffled)
    assert misses(before, after) <= 0.01 * len(shuffled)


def test_a_stream_is_announced_as_it_comes(mounted, packed):
    process = subprocess.Popen([tools.tool("ddpfs"), "ctl", mounted.path, "follow", "-"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent)
    for end in (100, 250, 400):
        process.stdin.write("".join(f"{p}\n" for p in packed[1][end - 100:end]))
        process.stdin.flush()
        before = lists_of(mounted).get("default", {"entries": 0})["entries"]
        wait_until(lambda: lists_of(mounted).get("default", {"entries": 0})["entries"] == before + 100)
    process.stdin.close()
    assert process.stdout.read() == "list default: 300 entries announced\n"
    assert process.wait() == 0


def test_the_statistics_say_who_told_the_order(mounted, packed):
    assert "can announce it: `ddpfs exec`, ddpfs.torch.follow(loader) or" in stats(mounted)["order_note"]
    names = scattered(packed[1])[:600]
    for path in names[:20]:
        read(mounted, path)
    now = wait_until(lambda: (s := stats(mounted))["recognise_unexplained"] > 0 and s)
    assert now["order_source"] == "unknown"
    assert now["order_note"].startswith("unknown: the search for the order goes on: "), now["order_note"]
    for path in names[20:]:
        read(mounted, path)
    now = wait_until(lambda: (s := stats(mounted))["recognise_unexplained"] > 511 and s)
    assert now["order_source"] == "unknown" and "ddpfs ctl MNT follow LIST" in now["order_note"]
    assert "announce the order with `ddpfs exec`, ddpfs.torch.follow(loader), " in now["order_note"]
    said = tools.ddpfs("stat", mounted.path).stdout
    assert "order_source             unknown" in said


def test_the_statistics_say_why_a_trainer_announces_nothing(mounted, packed):
    """Until its list is announced, and while no order is known."""
    assert raw_follow(mounted, [], how="none", list="a", reason="it has no indices: " + 200 * "~")["ok"]
    assert stats(mounted)["order_note"].startswith("unknown: the trainer announces no order: it has no indices: ~~~")
    follow(mounted, packed[1][:100], list="b")
    wait_until(lambda: stats(mounted)["order_source"] == "announced")
    ddpfs.Mount(mounted.path).unfollow("b")
    assert "it has no indices" in wait_until(lambda: (s := stats(mounted))["order_source"] == "unknown" and s)["order_note"]
    follow(mounted, packed[1][:100], list="a")
    ddpfs.Mount(mounted.path).unfollow("a")
    assert "no opens yet" in wait_until(lambda: (s := stats(mounted))["order_source"] == "unknown" and s)["order_note"]


@pytest.mark.parametrize("options", [TREE, "rank=0,world=1,layout=tree,memory=24M"])
def test_the_statistics_say_that_the_list_was_read_to_its_end(packed, mount, options):
    m = mount(packed[0], options)
    order = random.Random(13).sample(packed[1], len(packed[1]))
    follow(m, order)
    wait_until(lambda: settled(m)["stored_bytes"] > 0)
    read_in_steps(m, order)
    now = wait_until(lambda: (s := settled(m))["announced"] == [] and s, "the end of the list")
    assert now["order_source"] == "announced" and "read to its end; announce the next epoch's list" in now["order_note"], now
    for path in scattered(packed[1])[:600]:  # the next epoch, which nobody announced
        read(m, path)
    now = wait_until(lambda: (s := settled(m))["recognise_unexplained"] > 500 and s)
    assert now["order_source"] == "unknown" and "fit no sampler" in now["order_note"], now


def test_the_statistics_of_a_rank_that_reads_in_another_order(packed, mount):
    m = mount(packed[0], "rank=0,world=2,layout=tree,memory=24M")
    names = list(m.path.glob("c*/*.jpg"))
    assert len(names) == 1000
    for name in scattered(names):
        name.read_bytes()
    now = wait_until(lambda: (s := settled(m))["recognise_unexplained"] > 500 and s)
    assert now["order_source"] == "unknown" and "ddpfs ctl MNT follow LIST" in now["order_note"], now


def test_the_statistics_of_a_rank_that_reads_what_it_lists(packed, mount):
    m = mount(packed[0], "rank=0,world=2,layout=tree,memory=24M")
    for name in (m.path / ".ddpfs/epoch/0.list").read_text().splitlines()[:600]:
        read(m, name)
    now = settled(m)
    assert now["order_source"] == "own" and now["order_note"] == "own: the order of this mount", now
