# SPDX-License-Identifier: Apache-2.0
"""`.ddpfs/`: never listed, always there."""

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import tools
from mount import control
from mount.test_flat import NAME, decode, dealt

FIELDS = """rank world epoch position hits misses wait_p50_ns wait_p99_ns wait_max_ns read_bytes delivered_bytes
    wasted_bytes window_bytes resident_bytes depth opens listings lookups errors uptime_s waited_ns
    epoch_reads epoch_waited_ns epoch_wait_p50_ns epoch_wait_p99_ns epoch_wait_max_ns epochs device_rate""".split()


@pytest.mark.parametrize("options", ["rank=0,world=2", "view=all,layout=tree"])
def test_hidden_and_reachable(mount, pack, tree, options):
    m = mount(pack(tree[0]), options)
    assert ".ddpfs" not in os.listdir(m.path)
    assert sorted(os.listdir(m.path / ".ddpfs")) == ["all", "epoch", "metrics", "state", "stats.json"]
    assert not os.path.exists(m.path / ".ddpfs/nothing")


def test_list_is_the_epoch_in_order(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=1,world=2,seed=7")
    for epoch in (0, 1, 99):
        expected = "".join(path + "\n" for _, path in dealt(m.path / f".ddpfs/epoch/{epoch}"))
        assert (m.path / f".ddpfs/epoch/{epoch}.list").read_text() == expected
        assert os.stat(m.path / f".ddpfs/epoch/{epoch}.list").st_size == len(expected)


def test_list0_holds_any_name(mount, pack, scratch):
    paths = ["plain", "two\nlines", "c/\n", "c/\xff\xfe"]
    for i, path in enumerate(paths):
        path = os.path.join(os.fsencode(scratch / "odd"), path.encode("latin-1"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(bytes([i]))
    m = mount(pack(scratch / "odd"), "rank=0,world=1,order=full,seed=3")
    assert sorted(os.listdir(m.path / ".ddpfs/epoch")) == ["0", "0.list", "0.list0"]
    for epoch in (0, 4):
        raw = (m.path / f".ddpfs/epoch/{epoch}.list0").read_bytes()
        assert os.stat(m.path / f".ddpfs/epoch/{epoch}.list0").st_size == len(raw)
        assert raw.replace(b"\0", b"\n") == (m.path / f".ddpfs/epoch/{epoch}.list").read_bytes()
        listed = raw.removesuffix(b"\0").split(b"\0")
        assert sorted(listed) == sorted(path.encode("latin-1") for path in paths)
        names = [os.path.join(os.fsencode(m.path), b".ddpfs/epoch/%d" % epoch, name)
                 for name in sorted(os.listdir(os.fsencode(m.path / f".ddpfs/epoch/{epoch}")))]
        assert listed == [os.getxattr(name, "user.ddpfs.path") for name in names], "in the epoch's order"


def test_any_range_of_a_list(mount, pack, scratch):
    root = scratch / "many"
    for i in range(3000):
        path = root / f"d{i % 7}" / ("x" * (i % 50) + str(i))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    m = mount(pack(root), "rank=0,world=1,seed=1")
    path = m.path / ".ddpfs/epoch/3.list"
    whole = path.read_bytes()
    assert len(whole.splitlines()) == 3000
    with open(path, "rb", buffering=0) as f:
        for offset in range(0, len(whole) + 10, 997):
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(f.fileno(), 333, offset) == whole[offset:offset + 333]


def test_many_lists_at_once(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda e: (m.path / f".ddpfs/epoch/{e}.list").read_text(), [e % 12 for e in range(96)]))
    assert all(texts[i] == texts[i % 12] for i in range(96))
    assert len(set(texts)) == 12


@pytest.mark.parametrize("name", ["x", "01", "-1", "4294967296", "1.lis", ".list", "1.list.list", ".list0", "1.list00", "18446744073709551616"])
def test_what_is_no_epoch(mount, pack, tree, name):
    m = mount(pack(tree[0]), "rank=0,world=2")
    assert not os.path.exists(m.path / ".ddpfs/epoch" / name)


def test_an_epoch_directory_knows_its_epoch_only(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    other = os.listdir(m.path / ".ddpfs/epoch/1")[0]
    assert not os.path.exists(m.path / ".ddpfs/epoch/0" / other)
    assert os.path.exists(m.path / other)
    inodes = {os.stat(m.path / f".ddpfs/epoch/{e}").st_ino for e in range(5)} | {os.stat(m.path).st_ino}
    assert len(inodes) == 6


def test_stats_have_their_fields_and_follow(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=1,world=2,seed=7")

    def read():
        threading.Event().wait(0.03)  # a snapshot lives for 20 ms
        text = (m.path / ".ddpfs/stats.json").read_text()
        assert len(text) == os.stat(m.path / ".ddpfs/stats.json").st_size
        raw = (m.path / ".ddpfs/stats.json").read_bytes()
        assert raw.rstrip(b"\r").endswith(b"}\n"), "a terminal shows nothing of the padding"
        return json.loads(text)

    before = read()
    assert set(FIELDS) <= set(before)
    assert (before["rank"], before["world"], before["epoch"], before["opens"]) == (1, 2, 0, 0)
    names = os.listdir(m.path)
    for name in names[:10]:
        (m.path / name).read_bytes()
    after = read()
    assert after["opens"] == 10
    assert after["hits"] + after["misses"] == 10
    assert after["stored_bytes"] + after["read_reply_bytes"] >= sum(
        len(tree[1][decode(NAME.fullmatch(n)[3])]) for n in names[:10])
    for n in range(2, 22):  # the kernel may take pages back at any time
        before = read()
        for name in names[:10]:
            (m.path / name).read_bytes()
        after = read()
        assert after["opens"] == 10 * n
        if after["reads"] == before["reads"]:
            break
    assert after["misses"] == before["misses"], "a second read is the page cache's"
    assert after["hits"] == before["hits"] + 10


def test_stats_read_by_many_are_always_whole(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")

    def reader(_):
        for _ in range(100):
            json.loads((m.path / ".ddpfs/stats.json").read_text())
            json.loads((m.path / ".ddpfs/state").read_text())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(reader, range(8)))


def test_waits_are_told_by_epoch(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,order=full")

    def read_files(n):
        """Past the page cache, whatever was read ahead into it."""
        for path in [p for p in sorted(tree[1]) if tree[1][p]][:n]:
            with open(m.path / ".ddpfs/all" / path, "rb") as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert f.read() == tree[1][path]

    def stats():
        return tools.stat_json(m.path)

    read_files(20)
    first = stats()
    assert first["epoch"] == 0 and first["epoch_reads"] == first["reads"] >= 4
    assert 0 < first["epoch_wait_p50_ns"] <= first["epoch_wait_p99_ns"] <= first["epoch_wait_max_ns"]
    assert first["epoch_wait_max_ns"] <= first["epoch_waited_ns"] == first["waited_ns"]
    tools.ddpfs("ctl", m.path, "epoch", "3")
    second = stats()
    assert second["epoch"] == 3 and second["waited_ns"] == first["waited_ns"]
    assert [second[f"epoch_{key}"] for key in ("reads", "waited_ns", "wait_p50_ns", "wait_max_ns")] == [0, 0, 0, 0]
    assert second["epochs"] == [{"epoch": 0, "reads": first["reads"], "waited_ns": first["waited_ns"],
                                 **{f"wait_{q}_ns": first[f"epoch_wait_{q}_ns"] for q in ("p50", "p99", "max")}}]
    read_files(len(tree[1]))
    last = stats()
    assert [e["epoch"] for e in last["epochs"]] == [0, 3]
    assert last["epochs"][0] == second["epochs"][0] and sum(e["reads"] for e in last["epochs"]) == last["reads"]
    assert sum(e["waited_ns"] for e in last["epochs"]) == last["waited_ns"]


METRIC = re.compile(r'(ddpfs_[a-z][a-z0-9_]*)\{mountpoint="((?:[^"\\\n]|\\[\\"n])*)",rank="([0-9]+)"\} ([0-9]+)')


def test_metrics_are_prometheus_text(mount, pack, tree, scratch):
    """Strictly: HELP, TYPE, value for each metric, nothing twice, nothing else; any path is a legal label."""
    long = scratch / 'a "quoted" \\ name' / ("d" * 200) / ("e" * 200)
    m = mount(pack(tree[0]), "rank=1,world=2", mountpoint=long)
    text = (m.path / ".ddpfs/metrics").read_text()
    assert text.endswith("\n")
    lines = [line for line in text.split("\n") if line]
    assert lines and len(lines) % 3 == 0
    typed = {}
    for about, kind, value in zip(lines[0::3], lines[1::3], lines[2::3]):
        name, label, rank, _ = METRIC.fullmatch(value).groups()
        assert re.fullmatch(rf"# HELP {name} [^\\]+\.", about)
        assert name not in typed
        typed[name] = re.fullmatch(rf"# TYPE {name} (counter|gauge)", kind)[1]
        assert name.endswith("_total") == (typed[name] == "counter")
        assert rank == "1" and label.startswith(str(scratch))
    beside = {"pid", "server_pid", "seed", "groups", "redeal"}  # what names the mount and its view
    numbers = {key for key, value in tools.stat_json(m.path).items() if type(value) is int} - beside
    search = {key for key in numbers if key.startswith("recognise_")}  # goes with `samplers`
    numbers -= search - {"recognise_queue", "recognise_behind"}
    assert {name.removeprefix("ddpfs_").removesuffix("_total") for name in typed} == numbers, "none is cut off"
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    assert len(list(parser.text_string_to_metric_families(text))) == len(typed)


def test_state_is_what_was_recorded_not_what_was_opened(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    for name in os.listdir(m.path):
        (m.path / name).read_bytes()

    def state():
        return json.loads((m.path / ".ddpfs/state").read_text())

    assert (state()["epoch"], state()["start"], state()["seed"]) == (0, 0, 7)
    assert control.ask(m, "state", steps=40)["state"]["start"] == 40
    assert state() == control.ask(m, "state")["state"]
    assert (state()["epoch"], state()["start"]) == (0, 40)
    assert control.ask(m, "state", steps=100)["state"]["start"] == 0, "a whole epoch is the next one's beginning"
    assert state()["epoch"] == 1
    assert not control.ask(m, "state", steps=1000)["ok"]


def test_all_is_the_whole_dataset_on_every_rank(mount, pack, tree):
    from helpers.datasets import read_tree

    m = mount(pack(tree[0]), "rank=0,world=4")
    assert read_tree(m.path / ".ddpfs/all") == tree[1]
    assert control.stats(m)["opens"] == 0, "nobody watches all/"
