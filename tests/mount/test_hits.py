# SPDX-License-Identifier: Apache-2.0
"""Hits and misses: opens of watched names, told apart by whether a READ reached the server."""

import json
import os
import subprocess
import sys
import threading

import pytest

from helpers import tools
from helpers.datasets import content
from helpers.waiting import wait_until
from mount import control

KIB = 1024
# However long a busy machine takes from an open to its READ, the two belong together.
PATIENT = {"DDPFS_TEST_PAIR_MS": "600000"}
COUNTS = "opens hits misses reads unwatched_reads asked_bytes cached_bytes".split()


@pytest.fixture
def dataset(pack, scratch):
    """60 files, a few over 1 MiB (several READs each), none empty."""
    files = {}
    for i in range(60):
        path = f"c{i % 3}/f{i:03d}"
        files[path] = content(path, 3000 * KIB if i % 20 == 7 else 1 + i * 333)
        (scratch / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "tree" / path).write_bytes(files[path])
    return pack(scratch / "tree"), files


def counts(m):
    stats = control.stats(m)
    assert stats["hits"] + stats["misses"] == stats["opens"]
    return {key: stats[key] for key in COUNTS}


def since(m, before):
    return {key: value - before[key] for key, value in counts(m).items()}


def read_cold(path):
    """Whatever is in the page cache, every byte comes from the server, which is not told that it lost something."""
    with open(os.open(path, os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as f:
        return f.read()


def names(m, layout, files):
    return sorted(os.listdir(m.path)) if layout == "flat" else sorted(files)


@pytest.mark.parametrize("order", ["full", "chunk", "torch", "none"])
@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_everything_cold(mount, dataset, layout, order):
    m = mount(dataset[0], f"rank=0,world=1,advance=off,memory=64M,layout={layout},order={order}", env=PATIENT)
    names_ = names(m, layout, dataset[1])
    for name in names_:  # names known, window full
        (m.path / name).read_bytes()
    control.settled(m)  # nothing is read ahead: what is dropped from the page cache stays dropped
    before = counts(m)
    for name in names_:
        read_cold(m.path / name)
    after = since(m, before)
    assert after["opens"] == after["misses"] == 60 and after["hits"] == after["unwatched_reads"] == 0
    assert after["reads"] > 60
    size = sum(map(len, dataset[1].values()))
    assert size - 60 < after["asked_bytes"] <= size
    assert after["cached_bytes"] <= (0 if layout == "tree" else after["reads"]), "a flat name's bytes are rounded"


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_everything_resident(mount, dataset, layout):
    m = mount(dataset[0], f"rank=0,world=1,advance=off,memory=64M,layout={layout}", env=PATIENT)
    for _ in range(20):  # the first pass brings some in, and the kernel may take pages back at any time
        before = counts(m)
        for name in names(m, layout, dataset[1]):
            (m.path / name).read_bytes()
        after = since(m, before)
        assert after["opens"] == 60 and after["unwatched_reads"] == 0
        assert (after["misses"] == 0) == (after["reads"] == 0)
        if after["reads"] == 0:
            break
    assert after["hits"] == 60
    assert after["cached_bytes"] == after["asked_bytes"] > 60 * KIB


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_the_unwatched_names_count_for_themselves(mount, dataset, layout):
    m = mount(dataset[0], f"rank=0,world=1,memory=64M,layout={layout}")
    before = counts(m)
    for path, data in dataset[1].items():
        assert read_cold(m.path / ".ddpfs/all" / path) == data
    after = since(m, before)
    assert (after["opens"], after["hits"], after["misses"]) == (0, 0, 0)
    assert after["unwatched_reads"] == after["reads"] >= 60
    # The other way round: hits stay hits when somebody copies the same files afterwards.
    for path in dataset[1]:  # whatever is not there yet
        (m.path / ".ddpfs/all" / path).read_bytes()
    counts(m)  # drains the READs
    threading.Event().wait(0.3)
    for name in names(m, layout, dataset[1]):
        (m.path / name).read_bytes()
    counts(m)  # drains the opens; READs that come FS_HIT_COUNTING_PAIR_MS later are not theirs
    threading.Event().wait(0.3)
    before = counts(m)
    for path in dataset[1]:
        read_cold(m.path / ".ddpfs/all" / path)
    assert since(m, before)["misses"] == 0
    assert since(m, before)["unwatched_reads"] >= 50, "but for the files that were missed just before"


def test_an_epoch_s_directory_is_not_watched(mount, dataset):
    m = mount(dataset[0], "rank=0,world=1,memory=64M,order=full")
    before = counts(m)
    for name in os.listdir(m.path / ".ddpfs/epoch/5"):
        read_cold(m.path / ".ddpfs/epoch/5" / name)
    after = since(m, before)
    assert after["opens"] == after["misses"] == 0
    assert after["unwatched_reads"] == after["reads"] >= 60


def test_names_of_other_epochs_and_ranks(mount, dataset):
    m = mount(dataset[0], "rank=0,world=2,memory=64M,order=full", env=PATIENT)
    ours = sorted(os.listdir(m.path))
    later = sorted(os.listdir(m.path / ".ddpfs/epoch/7"))
    other = mount(dataset[0], "rank=1,world=2,memory=64M,order=full")
    theirs = sorted(os.listdir(other.path))
    assert not set(theirs) & set(ours)
    control.settled(m)  # nothing is read ahead: what is dropped from the page cache stays dropped
    before = counts(m)
    for name in ours[:10] + later[:10] + theirs[:10]:
        read_cold(m.path / name)
    after = since(m, before)
    assert (after["opens"], after["misses"], after["unwatched_reads"]) == (30, 30, 0)


def test_an_open_that_misses_twice(mount, dataset):
    m = mount(dataset[0], "rank=0,world=1,memory=64M,layout=tree", env=PATIENT)
    before = counts(m)
    with open(m.path / "c0/f057", "rb", buffering=0) as f:
        for _ in range(3):
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(f.fileno(), 100, 0)
    after = since(m, before)
    assert (after["opens"], after["misses"], after["reads"], after["unwatched_reads"]) == (1, 1, 3, 0)


READER = """
import os, sys
for name in sys.argv[1:]:
    with open(os.open(name, os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as f:
        f.read()
"""


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_two_processes(mount, dataset, layout):
    """Both read the same files past the page cache: whose open is whose READ is chance, the sums are not."""
    m = mount(dataset[0], f"rank=0,world=1,advance=off,memory=64M,layout={layout}", env=PATIENT)
    paths = [m.path / name for name in names(m, layout, dataset[1])]
    last = counts(m)
    children = [subprocess.Popen([sys.executable, "-c", READER, *paths]) for _ in range(2)]
    while any(child.poll() is None for child in children):
        now = counts(m)
        assert all(now[key] >= last[key] for key in COUNTS), "none of them falls"
        last = now
    assert [child.returncode for child in children] == [0, 0]
    last = counts(m)
    assert last["opens"] <= 120, "two opens of a name right after each other may be one event"
    assert 60 <= last["misses"] + 2 and last["misses"] <= last["opens"]
    assert last["unwatched_reads"] == 0


def test_top_stat_and_metrics_follow(mount, dataset):
    m = mount(dataset[0], "rank=0,world=1,memory=64M,layout=tree")
    for path in dataset[1]:
        read_cold(m.path / ".ddpfs/all" / path)
    shown = dict(line.split(None, 1) for line in tools.ddpfs("stat", m.path).stdout.splitlines() if " " in line.strip())
    stats = tools.stat_json(m.path)
    assert (shown["opens"], shown["hits"], shown["misses"]) == ("0 opens",) * 3
    assert int(shown["unwatched_reads"].removesuffix(" reads")) == stats["unwatched_reads"] == stats["reads"] >= 60
    metrics = (m.path / ".ddpfs/metrics").read_text()
    assert f"}} {stats['unwatched_reads']}\n" in metrics.split("\nddpfs_unwatched_reads_total")[1].split("#")[0]
    assert "\nddpfs_misses_total{" in metrics

    stop = threading.Event()

    def copy():
        while not stop.is_set():
            for path in dataset[1]:
                read_cold(m.path / ".ddpfs/all" / path)
                (m.path / path).read_bytes()  # just brought in by the other name
    copier = threading.Thread(target=copy)
    (m.path / "c0/f000").read_bytes()
    copier.start()
    try:
        # A server that answers late on a busy machine has no rates.
        total = wait_until(lambda: (shown := json.loads(tools.ddpfs("top", "--json", "-n1", "-d0.5", m.path).stdout)["total"])
                           ["hit_rate"] is not None and shown, "a hit rate")
    finally:
        stop.set()
        copier.join()
    assert 0 <= total["hit_rate"] <= 1
    assert total["misses"] <= total["opens"]
