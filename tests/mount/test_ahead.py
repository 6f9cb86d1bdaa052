# SPDX-License-Identifier: Apache-2.0
"""Reading ahead: what the trainer opens is in the page cache, and everything else still works.

The kernel may take pages back at any time (memory pressure, DAMON, somebody's drop_caches): READs of what was resident
are counted as `lost` and are no fault; when they are many, the budget shrinks and the engine drops some itself."""

import mmap
import os
import random
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from helpers import tools
from helpers.datasets import content
from helpers.pages import drop, resident, undisturbed
from helpers.waiting import wait_until
from mount.control import settled, stats

KIB = 1024


@pytest.fixture
def many(scratch):
    """1,500 files, 25 MiB: three times the memory of the small mounts below."""
    root = scratch / "many"
    files = {}
    for i in range(1500):
        path = f"c{i % 10}/f{i:05d}"
        files[path] = content(path, (100, 4 * KIB, 70 * KIB, 9 * KIB, 1)[i % 5])
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(files[path])
    return root, files


def path_of(m, name):
    return os.getxattr(m.path / name, "user.ddpfs.path").decode()


def decoded(name):
    return name.split("-", 2)[2].replace("%2F", "/").replace("%25", "%")


def full_window(m):
    """Waits until all that may be read ahead is there.  Returns the counters."""
    wait_until(lambda: stats(m)["stored_bytes"] > 0)  # a mount answers before its stream begins
    return settled(m)


def gone(counters):
    """Samples that the kernel took back; of a window that is fetched again for them readers may be ahead."""
    assert 8 * counters["refetches"] <= counters["lost"]
    return counters["lost"] + 1024 * counters["refetches"]


def only_what_was_lost(before, after):
    """No READ reached the server between the two but for pages that the kernel took back (a file has 18 at most)."""
    return after["reads"] - before["reads"] <= 18 * (gone(after) - gone(before))


def read_all(m, names, files):
    for name in names:
        assert (m.path / name).read_bytes() == files[decoded(name)], name


def test_the_first_window_is_there_before_it_is_asked_for(mount, pack, many):
    m = mount(pack(many[0]), "rank=0,world=2,memory=256M")
    before = full_window(m)
    assert before["reads"] == 0
    names = sorted(os.listdir(m.path))
    read_all(m, names, many[1])
    after = stats(m)
    assert only_what_was_lost(before, after)
    assert after["hits"] >= len(names) - 2 * gone(after)
    assert after["following"] == 1


def test_the_next_epoch_is_there_before_it_is_listed(mount, pack, many):
    m = mount(pack(many[0]), "rank=1,world=2,memory=256M,order=full")
    before = full_window(m)
    for _ in range(3):
        read_all(m, sorted(os.listdir(m.path)), many[1])
        settled(m)
    after = stats(m)
    assert before["reads"] == 0 and only_what_was_lost(before, after)
    assert after["epoch"] == 2


@pytest.mark.parametrize("order", ["full", "chunk", "torch", "none"])
def test_small_memory_over_epochs(mount, pack, many, order):
    m = mount(pack(many[0]), f"rank=0,world=1,memory=16M,order={order}")
    for _ in range(3):
        names = sorted(os.listdir(m.path))
        assert len(names) == 1500
        read_all(m, names, many[1])
    after = settled(m)  # what a reader brought in itself is in the budget once the engine has heard of it
    assert after["following"] == 1 and after["jumps"] == 0
    assert after["evicted"] > 0
    assert after["resident_bytes"] <= 16 << 20
    assert after["bad_blocks"] == after["errors"] == 0


def test_what_fits_is_read_from_disk_once(mount, pack, many):
    """A sample that this rank does not have in the next epochs stays for one after them."""
    m = mount(pack(many[0]), "rank=0,world=3,memory=256M,order=full")
    total = sum(len(data) for data in many[1].values())
    seen = set()
    for _ in range(8):
        names = sorted(os.listdir(m.path))
        seen |= {decoded(name) for name in names}
        read_all(m, names, many[1])
    after = settled(m)
    assert after["evicted"] == 0
    if not after["refetches"]:
        assert after["stored_bytes"] <= total + after["lost"] * 70 * KIB
    if not after["lost"]:
        assert after["resident_bytes"] >= sum(len(many[1][path]) for path in seen)


def test_large_and_common_files_count_too(mount, pack, scratch):
    """Nothing of them is read ahead; what their readers bring into the page cache is in the budget all the same."""
    root = scratch / "large"
    (root / "d").mkdir(parents=True)
    files = {f"d/big{i}": content(f"d/big{i}", 6 * KIB * KIB + 5) for i in range(6)}
    files |= {f"labels{i}.csv": content(f"labels{i}.csv", 900 * KIB) for i in range(20)}
    for path, data in files.items():
        (root / path).write_bytes(data)
    m = mount(pack(root), "rank=0,world=1,memory=16M")
    for _ in range(2):
        for name in sorted(os.listdir(m.path)):
            data = files.get(name) or files[decoded(name)]
            assert (m.path / name).read_bytes() == data
            assert settled(m)["resident_bytes"] <= 16 << 20
    names = os.listdir(m.path)

    def held():
        return sum(resident(m.path / name) for name in names)

    wait_until(lambda: held() <= 16 << 20)
    assert sum(len(data) for data in files.values()) > 50 << 20


def test_readers_side_by_side(mount, pack, many):
    m = mount(pack(many[0]), "rank=0,world=1,memory=32M,order=full")
    names = sorted(os.listdir(m.path))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda batch: read_all(m, names[batch:batch + 32], many[1]), range(0, len(names), 32)))
    assert stats(m)["following"] == 1
    assert stats(m)["opened"] == len(names)


def test_a_foreign_order_is_served_and_wastes_nothing(mount, pack, many):
    m = mount(pack(many[0]), "rank=0,world=1,memory=16M,order=full")
    full_window(m)
    names = os.listdir(m.path)
    random.Random(3).shuffle(names)
    for n, name in enumerate(names[:300]):  # one by one: what is read ahead meanwhile says where the order is
        read_all(m, [name], many[1])
        if not settled(m)["following"]:
            break
    assert stats(m)["following"] == 0
    before = stats(m)["fetched"]
    read_all(m, names[n + 1:900], many[1])
    assert settled(m)["fetched"] == before
    # Back in order, from the middle on.
    read_all(m, sorted(names)[500:], many[1])
    after = settled(m)
    assert after["following"] == 1 and after["fetched"] > before


def test_an_old_list_read_again(mount, pack, many):
    m = mount(pack(many[0]), "rank=0,world=1,memory=16M,order=full,advance=off")
    names = sorted(os.listdir(m.path))
    for _ in range(3):
        read_all(m, names, many[1])
    after = stats(m)
    assert after["following"] == 1
    assert after["jumps"] <= 1


def test_an_epoch_set_by_hand_is_read_ahead(mount, pack, many, build_dir):
    m = mount(pack(many[0]), "rank=0,world=1,memory=64M,order=full")
    subprocess.run([build_dir / "tools/ddpfs", "ctl", m.path, "epoch", "9"], check=True, capture_output=True)
    names = sorted(os.listdir(m.path))
    assert names[0].startswith("0009-")
    wait_until(lambda: stats(m)["window_bytes"] > 0)
    before = settled(m)
    read_all(m, names[:100], many[1])
    assert only_what_was_lost(before, stats(m))


def test_listing_and_stat_do_not_count_and_do_no_harm(mount, pack, many):
    m = mount(pack(many[0]), "rank=0,world=1,memory=16M,order=full")
    names = sorted(os.listdir(m.path))
    stop = threading.Event()

    def look():
        while not stop.is_set():
            subprocess.run(["ls", "-l", m.path], stdout=subprocess.DEVNULL, check=True)
            subprocess.run(["find", m.path, "-size", "+1"], stdout=subprocess.DEVNULL, check=True)

    before = full_window(m)
    looker = threading.Thread(target=look)
    looker.start()
    try:
        for i in range(0, len(names), 32):  # the next files are there, as for a trainer that computes meanwhile
            read_all(m, names[i:i + 32], many[1])
            settled(m)
    finally:
        stop.set()
        looker.join()
    after = stats(m)
    assert after["following"] == 1
    assert after["jumps"] == 0
    assert after["opens"] == len(names)
    assert only_what_was_lost(before, after) and after["misses"] <= 2 * gone(after)


def test_partial_reads_and_mappings(mount, pack, many):
    m = mount(pack(many[0]), "rank=0,world=1,memory=16M,order=full")
    held = []
    for i, name in enumerate(sorted(os.listdir(m.path))):
        data = many[1][decoded(name)]
        with open(m.path / name, "rb", buffering=0) as f:
            if i % 3 == 0:
                assert f.read(100) == data[:100]
            elif data and i % 3 == 1:
                held.append((mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ), data))
            else:
                assert os.pread(f.fileno(), 50, len(data) // 2) == data[len(data) // 2:len(data) // 2 + 50]
    for view, data in held:  # long after their samples were dropped
        assert view[:] == data
        view.close()


def test_a_tree_read_in_the_rank_s_order_is_followed(mount, pack, many, build_dir):
    dataset = pack(many[0])
    m = mount(dataset, "rank=0,world=1,memory=64M,order=full,layout=tree")
    order = subprocess.run([build_dir / "tools/ddpfs", "order", dataset, "-o", "rank=0,world=1,order=full"], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    paths = [line.split("\t")[2] for line in order]
    assert sorted(paths) == sorted(many[1])
    assert stats(m)["read_bytes"] == 0, "a tree is not read ahead before the order is seen to be followed"
    for _ in range(2):
        for path in paths:
            assert (m.path / path).read_bytes() == many[1][path]
            if not stats(m)["stored_bytes"]:
                settled(m)  # a reader ahead of the engine would leave it nothing to do
    after = settled(m)
    assert after["following"] == 1 and after["stored_bytes"] > 0


def test_unmount_in_the_middle(mount, pack, many):
    for n in (0, 1, 10, 200):
        m = mount(pack(many[0]), "rank=0,world=1,memory=16M,order=full")
        for name in sorted(os.listdir(m.path))[:n]:
            (m.path / name).read_bytes()
        m.unmount()


def test_what_the_kernel_took_back_is_read_ahead_again(mount, pack, many):
    dataset = pack(many[0])

    def measured(begin):
        m = mount(dataset, "rank=0,world=1,memory=256M")
        full_window(m)
        names = sorted(os.listdir(m.path))
        read_all(m, names[:200], many[1])
        begin()
        before = settled(m)
        for path in many[1]:  # unwatched
            drop(m.path / ".ddpfs" / "all" / path)
        for name in names[200:700]:
            assert (m.path / name).read_bytes() == many[1][decoded(name)], name
            settled(m)  # computes meanwhile
        after = stats(m)
        m.unmount()
        return before, after

    before, after = undisturbed(measured)
    assert after["refetches"] > 0
    assert after["misses"] - before["misses"] <= 64 + (after["lost"] - before["lost"])
    assert after["lost"] - before["lost"] < 250 and after["errors"] == 0


@pytest.fixture
def take_back():
    """Has the kernel take back all pages, names and inodes that are not in use, as memory pressure does."""
    control = Path("/proc/sys/vm/drop_caches")
    if not os.access(control, os.W_OK):
        pytest.skip("dropping caches needs root")
    return lambda: control.write_text("3")


def sampled(root):
    """The paths below root as torch's DistributedSampler deals them, epoch after epoch."""
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    paths = sorted(f"{c}/{name}" for c in os.listdir(root) for name in os.listdir(root / c))
    sampler = data.DistributedSampler(paths, num_replicas=1, rank=0, seed=3)
    while True:
        yield from [paths[i] for i in sampler]
        sampler.set_epoch(sampler.epoch + 1)


def listed(root):
    while True:
        yield from sorted(os.listdir(root))


@pytest.mark.parametrize("memory", ["24M", "256M"])  # less than the files take, and more
@pytest.mark.parametrize("options", ["rank=0,world=1,order=full", "view=all,layout=tree"])
def test_names_and_pages_that_the_kernel_took_back_are_there_again(mount, pack, many, take_back, options, memory):
    m = mount(pack(many[0]), f"{options},memory={memory}")
    tree = "layout=tree" in options
    opens = sampled(m.path) if tree else listed(m.path)

    def read(n):
        """Reads the next n files, epoch after epoch.  Returns the counters at its begin and its end."""
        before = settled(m)
        for i, path in enumerate(islice(opens, n)):
            assert (m.path / path).read_bytes() == many[1][path if tree else decoded(path)], path
            if i % 4 == 3:
                settled(m)  # computes meanwhile
        return before, settled(m)

    def goes_on(begin, n):
        begin()
        return read(n)

    def taken_back(begin):
        take_back()
        return goes_on(begin, 300)

    def taken_back_twice(begin):
        """The second time before the engine has fetched all again."""
        take_back()
        read(16)
        return taken_back(begin)

    read(2000)  # into the second epoch
    for taken in taken_back, taken_back_twice:
        before, after = undisturbed(taken)
        assert after["following"] == 1 and after["errors"] == 0
        assert after["lost"] > before["lost"]
        assert f"the kernel took back {after['lost']} " in tools.ddpfs("stat", m.path).stdout
        # Until the next files are there again, each open misses.  Two readings of them have 64 uses between.
        assert after["misses"] - before["misses"] <= 100
        read(400)
    # So is the next epoch, in parts of which nothing is taken back.
    for _ in range(4):
        before, after = undisturbed(lambda begin: goes_on(begin, 400))
        assert after["following"] == 1 and after["errors"] == 0
        assert after["misses"] - before["misses"] <= 100


def test_what_is_taken_back_again_and_again_does_not_fill_the_window(mount, pack, many, take_back):
    """Three times, before all is there again: some turns of what comes next are fetched, some are lost.  The engine once held
    lost ones for fetched, and nothing was read ahead any more."""
    m = mount(pack(many[0]), "view=all,layout=tree,memory=256M")
    opens = sampled(m.path)

    def read(n):
        before = settled(m)
        for i, path in enumerate(islice(opens, n)):
            assert (m.path / path).read_bytes() == many[1][path], path
            if i % 4 == 3:
                settled(m)
        return before, settled(m)

    def taken_back(begin):
        for n in 64, 16:
            take_back()
            read(n)
        take_back()
        begin()
        return read(300)

    read(2000)
    for _ in range(6):
        before, after = undisturbed(taken_back)
        assert after["misses"] - before["misses"] <= 240
        assert after["errors"] == 0
        read(400)
