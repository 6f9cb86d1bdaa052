# SPDX-License-Identifier: Apache-2.0
"""What the comparison computes by itself: replacement, datasets, the reader, the bars' rows."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "compare"
sys.path.insert(0, str(HERE))

import cgroup  # noqa: E402
import data  # noqa: E402
import replacement  # noqa: E402
import stores  # noqa: E402
import table  # noqa: E402


def misses(trace, sizes, capacity, epochs, victim):
    """Page by page.  victim(cache, i, uses) chooses what goes."""
    uses = [(name, page) for part in trace for name in part for page in range(-(-sizes[name] // 4096))]
    count = sum(-(-sizes[name] // 4096) for part in trace[:epochs] for name in part)
    cache, missed, last = set(), 0, {}
    for i, use in enumerate(uses[:count]):
        missed += use not in cache
        cache.add(use)
        last[use] = i
        if len(cache) > capacity // 4096:
            cache.remove(victim(cache, i, uses, last))
    return missed * 4096


def farthest(cache, i, uses, last):
    return max(cache, key=lambda v: next((k for k in range(i + 1, len(uses)) if uses[k] == v), len(uses)))


def least_recent(cache, i, uses, last):
    return min(cache, key=lambda v: last[v])


def some_trace(rng):
    sizes = {f"f{i}": rng.randint(1, 40_000) for i in range(8)}
    return sizes, [rng.sample(sorted(sizes), len(sizes)) for _ in range(3)], 4096 * rng.randint(12, 40)


@pytest.mark.parametrize("seed", range(20))
def test_belady_is_farthest_next_use(seed):
    sizes, trace, capacity = some_trace(random.Random(seed))
    # Page by page, a cache must hold the page it just read; file by file it need not: one page of difference.
    assert abs(replacement.belady(trace, sizes, capacity, 2) - misses(trace, sizes, capacity, 2, farthest)) <= 4096


@pytest.mark.parametrize("seed", range(20))
def test_lru_misses_no_less_than_belady_and_about_as_page_by_page(seed):
    sizes, trace, capacity = some_trace(random.Random(seed))
    lru = replacement.lru(trace[:2], sizes, capacity)
    assert lru >= replacement.belady(trace, sizes, capacity, 2)
    page_by_page = misses(trace[:2], sizes, capacity, 2, least_recent)
    assert abs(lru - page_by_page) <= 0.2 * page_by_page


def test_everything_fits():
    sizes = {"a": 5000, "b": 4096}
    assert replacement.belady([["a", "b"], ["b", "a"]], sizes, 1 << 20, 2) == 3 * 4096
    assert replacement.lru([["a", "b"], ["b", "a"]], sizes, 1 << 20) == 3 * 4096


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return data.Dataset("A", 0.02, str(tmp_path_factory.mktemp("bench")))


def test_datasets_are_the_same_every_time(dataset, tmp_path):
    again = data.Dataset("A", 0.02, str(tmp_path))
    assert again.files == dataset.files
    name, size = dataset.files[7]
    first = Path(dataset.path, name).read_bytes()
    assert len(first) == size and first == Path(again.path, name).read_bytes()
    assert len({os.path.dirname(n) for n, _ in dataset.files}) == 40


def test_sizes_have_the_mean_that_is_claimed():
    rng = random.Random(5)
    sizes = [data._size("A", rng) for _ in range(20_000)]
    assert 105_000 < sum(sizes) / len(sizes) < 115_000


def read(tools, *options):
    done = subprocess.run([tools.reader, *map(str, options)], input="go\n" * 3, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "ready"
    return [json.loads(line) for line in lines[1:]]


@pytest.fixture(scope="module")
def tools(dataset):
    try:
        return stores.Tools(dataset.scratch, "build", "venv")
    except (RuntimeError, FileNotFoundError) as e:
        pytest.skip(f"the reader does not compile here: {e}")


def test_reader_reads_everything_once(dataset, tools):
    listed = dataset.write_list(dataset.path, dataset.shuffled())
    one, = read(tools, "-x", "-l", listed)
    two, again = read(tools, "-x", "-t", 3, "-p", 2, "-l", listed)
    for r in (one, two, again):
        assert (r["files"], r["bytes"], r["failures"]) == (len(dataset.files), dataset.bytes, 0)
        assert r["sum"] == one["sum"]


def test_reader_sees_changed_bytes(dataset, tools, tmp_path):
    (tmp_path / "f").write_bytes(b"one")
    before, = read(tools, "-x", "-d", tmp_path)
    (tmp_path / "f").write_bytes(b"two")
    after, = read(tools, "-x", "-d", tmp_path)
    assert before["sum"] != after["sum"]


def test_reader_takes_the_time_that_a_demand_asks_for(dataset, tools):
    listed = dataset.write_list(dataset.path, dataset.shuffled())
    for r in read(tools, "-c", "-p", 2, "-r", 400e6, "-l", listed):
        assert r["ideal_s"] == pytest.approx(dataset.bytes / 400e6, abs=1e-5)
        assert r["sec"] >= 0.99 * r["ideal_s"]


def test_reader_without_a_line_that_starts_it(tools, tmp_path):
    """It reads nothing, says so, and ends by itself; one pass that nobody waits for is a pass like any other."""
    (tmp_path / "f").write_bytes(b"one")
    for options in (["-c", "-p", "1"], ["-c", "-p", "3"], ["-p", "1"]):
        done = subprocess.run([tools.reader, *options, "-d", tmp_path], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True)
        assert (done.returncode, done.stdout) == (0, "ready\n") and "nothing is read" in done.stderr, done
    one, = read(tools, "-c", "-p", 1, "-d", tmp_path)
    assert one["files"] == 1 and one["bytes"] == 3


def test_reader_reports_what_it_cannot_read(dataset, tools, tmp_path):
    (tmp_path / "list").write_text("/no/such/file\n")
    done = subprocess.run([tools.reader, "-l", tmp_path / "list"], input="go\n", capture_output=True, text=True)
    assert done.returncode == 1 and "/no/such/file" in done.stderr


@pytest.mark.parametrize("kind", ["A", "B"])
def test_every_bar_has_its_rows(kind):
    passes = {"bytes": 2, "sec": 1, "cpu": 1, "dev_bytes": 2}
    rows = [{"row": r, "reps": [{"cold": passes, "warm": passes}]} for r in table.ROWS[kind]]
    found = table.checks(kind, rows)
    assert found and all(c.value == 1 for c in found)
    assert all(c.verdict == "not measured" for c in table.checks(kind, []))


def test_a_bar_is_met_or_not():
    assert table.Check("x", 1.0, ">=", 1.0).verdict == "met"
    assert table.Check("x", 0.9, ">=", 1.0).verdict == "NOT met"
    assert table.Check("x", 1.06, "<=", 1.05).verdict == "NOT met"


def test_cgroup_v2_files(tmp_path, monkeypatch):
    """What is written where, and how the kernel's texts are read, on a made-up hierarchy."""
    monkeypatch.setattr(cgroup, "ROOT", str(tmp_path))
    v = cgroup._V2("254:0")
    v.make()
    v.limit(1 << 30)
    v.throttle(0, 500)
    top = tmp_path / cgroup.NAME
    assert (top / "memory.max").read_text() == str(1 << 30)
    assert (top / "io.max").read_text() == "254:0 rbps=max riops=500"
    (top / "io.stat").write_text("")
    assert v.io() == [0, 0]
    (top / "io.stat").write_text("7:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"
                                 "254:0 rbytes=4096 wbytes=2 rios=9 wios=4 dbytes=0 dios=0\n")
    assert v.io() == [4096, 9]
    (top / "daemon" / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n")
    assert v.cpu("/daemon") == 2.5
    (top / "memory.stat").write_text("anon 1\nfile 2\nkernel 3\nslab 4\n")
    (top / "memory.current").write_text("10\n")
    assert v.memory("") == {"total": 10, "anon": 1, "file": 2, "kernel": 3}


@pytest.mark.parametrize("version", [cgroup._V1, cgroup._V2])
def test_cgroups_go_at_the_second_attempt(version, tmp_path, monkeypatch):
    """A process that has just ended keeps its cgroup for a moment, when others are gone already."""
    monkeypatch.setattr(cgroup, "ROOT", str(tmp_path))
    v = version.__new__(version)
    for sub in ("", "/reader", "/daemon"):
        for d in v.dirs(sub):
            os.makedirs(d, exist_ok=True)
    os.makedirs(tmp_path / "blkio" / f"{cgroup.NAME}-rule")
    busy = Path(v.dirs("/daemon")[-1]) / "process"
    busy.touch()
    with pytest.raises(OSError):
        v.done()
    busy.unlink()
    v.done()
    assert not list(tmp_path.rglob(cgroup.NAME))
