# SPDX-License-Identifier: Apache-2.0
"""How many requests a store gets: neighbours that are used soon come together."""

import os
import sys
import time
from pathlib import Path

import pytest

from helpers import datasets, pages, tools
from helpers.waiting import wait_until
from mount import control

FILES, SIZE = 3000, 4096
STAGE = """
import sys
sys.path.insert(0, sys.argv[1])
import ddpfs
stage = ddpfs.Stage(sys.argv[2], batch=50, memory="64M", order="chunk", quarantine="")
print(sum(len(stage.next()) for _ in range(int(sys.argv[3]) // 50)))
"""


def drops():
    """How often the kernel was told to drop its caches: samples that it took back are fetched once more."""
    return [line for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("drop_")]


@pytest.fixture
def url(build_dir, scratch, http_store):
    datasets.write_tree(scratch / "source", classes=4, per_class=FILES // 4, sizes=(SIZE,))
    tools.mkshard("pack", "--shard-size=4M", scratch / "source", http_store.root / "train")
    http_store.set(latency_ms=5)
    return f"{http_store.url}/train"


def requests(http_store):
    return sum(answer[1].startswith("/train/shard-") for answer in http_store.answers())


def test_a_stage_reads_small_samples_by_the_megabyte(build_dir, http_store, url):
    done = tools.run([sys.executable, "-c", STAGE, tools.ROOT / "gpu_stage" / "python", url, str(FILES)],
                     env={"DDPFS_STAGE_LIB": build_dir / "gpu_stage" / "libddpfs_stage.so"})
    assert int(done.stdout) == FILES
    assert requests(http_store) <= 2.5 * FILES * SIZE / (1 << 20)


def test_a_mount_reads_a_chunk_by_one_request(http_store, url, mount):
    """Once more for the first turns, which do not wait, and where a chunk crosses the end of a shard."""
    for _ in range(8):
        before, asked = drops(), requests(http_store)
        m = mount(url, "rank=0,world=1,order=chunk,chunk=512K,pool=4M,memory=64M")
        wait_until(lambda: tools.stat_json(m.path)["idle"], "an engine at rest")
        asked = requests(http_store) - asked
        m.unmount()
        if drops() == before:
            assert 0 < asked <= 2.5 * FILES * SIZE / (512 << 10)
            return
    pytest.skip("the kernel's caches were dropped during each of 8 tries")


@pytest.fixture
def large(build_dir, scratch, http_store):
    """The URL and the bytes of a dataset whose files a disk reads one by one."""
    datasets.write_tree(scratch / "source", classes=3, per_class=100, sizes=(110_000,))
    tools.mkshard("pack", "--shard-size=16M", scratch / "source", http_store.root / "train")
    http_store.set(latency_ms=5)
    return f"{http_store.url}/train", 300 * 110_000


@pytest.mark.parametrize("order", ["chunk,chunk=1M,pool=8M", "none"], ids=["chunk", "none"])
def test_larger_files_that_lie_side_by_side_come_together(order, http_store, large, mount):
    """A MiB by a request, but for the first turns and the ends of shards."""
    url, size = large
    for _ in range(8):
        before, asked = drops(), requests(http_store)
        m = mount(url, f"rank=0,world=1,order={order},memory=256M")
        control.settled(m)
        asked = requests(http_store) - asked
        m.unmount()
        if drops() == before:
            assert 0 < asked <= 2.5 * size / (1 << 20)
            return
    pytest.skip("the kernel's caches were dropped during each of 8 tries")


def test_a_stage_reads_larger_samples_by_the_chunk(build_dir, http_store, large):
    url, size = large
    done = tools.run([sys.executable, "-c", STAGE.replace("64M", "256M"), tools.ROOT / "gpu_stage" / "python", url, "300"],
                     env={"DDPFS_STAGE_LIB": build_dir / "gpu_stage" / "libddpfs_stage.so"})
    assert int(done.stdout) == 300
    assert requests(http_store) <= 2.5 * 2 * size / (1 << 20), "two epochs at most"


@pytest.fixture
def webdataset(build_dir, http_store):
    """The URL of tars of pictures and labels, indexed where they are, and the files."""
    files = datasets.write_webdataset(http_store.root / "train", FILES, SIZE)
    said = tools.mkshard("index", http_store.root / "train").stdout
    assert f"{2 * FILES} files" in said and "samples: by key" in said, said
    http_store.set(latency_ms=5)
    return f"{http_store.url}/train", files


@pytest.mark.parametrize("order, most", [("chunk,chunk=512K,pool=4M", 80), ("full", FILES // 3)], ids=["chunk", "full"])
def test_samples_of_several_files_come_together(order, most, http_store, webdataset, mount):
    """A WebDataset: picture and label are a sample, and lie side by side.  With order=full, as many neighbours come as have
    names by then."""
    url, files = webdataset
    for _ in range(8):
        before, asked = drops(), requests(http_store)
        m = mount(url, f"rank=0,world=1,order={order},memory=64M")
        control.settled(m)
        asked = requests(http_store) - asked
        names = [name for name in os.listdir(m.path) if not name.startswith(".")]
        read = sorted((m.path / name).read_bytes() for name in names)
        m.unmount()
        assert read == sorted(files.values())
        if drops() == before:
            assert 0 < asked <= most, "a request for each"
            return
    pytest.skip("the kernel's caches were dropped during each of 8 tries")


def test_a_reader_that_begins_at_once_gets_chunks(scratch, build_dir, http_store, mount):
    """While names are announced, only the first turns and what the reader demands are requests of their own."""
    datasets.write_tree(scratch / "many", classes=4, per_class=2500, sizes=(512,))
    tools.mkshard("pack", scratch / "many", http_store.root / "train")
    http_store.set(latency_ms=20)
    counts = []
    for _ in range(4):  # a busy machine announces slowly, and the kernel may take something back
        asked = requests(http_store)
        m = mount(f"{http_store.url}/train", "rank=0,world=1,order=chunk,chunk=512K,pool=4M,memory=256M")
        for name in [name for name in os.listdir(m.path) if not name.startswith(".")][:500]:
            (m.path / name).read_bytes()
        control.settled(m)
        counts.append(requests(http_store) - asked)
        m.unmount()
        if counts[-1] <= 45:  # 10 chunks, 16 first turns
            return
    assert min(counts) <= 45, counts


def test_what_a_request_brought_is_delivered_or_wasted(http_store, url, mount):
    """The headers between the files of a chunk come with them, and nobody uses them."""
    for _ in range(8):
        before = drops()
        m = mount(url, "rank=0,world=1,order=chunk,chunk=512K,pool=4M,memory=64M")
        stats = control.settled(m)
        m.unmount()
        if drops() == before and not stats["lost"] + stats["evicted"]:
            assert 0 < stats["wasted_bytes"] == stats["read_bytes"] - stats["delivered_bytes"], stats
            return
    pytest.skip("the kernel's caches were dropped during each of 8 tries")


def test_what_the_kernel_took_back_comes_by_the_chunk(http_store, url, mount):
    """A file of which a part is gone is asked for at once, and the next ones together."""
    def measured(begin):
        m = mount(url, "rank=0,world=1,order=chunk,chunk=512K,pool=4M,memory=64M")
        names = [name for name in os.listdir(m.path) if not name.startswith(".")]
        control.settled(m)
        for name in names[:100]:
            (m.path / name).read_bytes()
        control.settled(m)
        for file in (m.path / ".ddpfs" / "all").rglob("*.bin"):  # opens here are no uses
            pages.drop(file)
        begin()
        asked = requests(http_store)
        for name in names[100:]:
            assert len((m.path / name).read_bytes()) == SIZE
        refetches = control.settled(m)["refetches"]
        m.unmount()
        return refetches, requests(http_store) - asked

    refetches, asked = pages.undisturbed(measured)
    assert refetches > 0
    assert asked <= FILES / 6, "not by one request for each"


def test_what_the_kernel_took_back_is_there_before_its_use(http_store, url, mount):
    """Now and then a file is gone.  After the first one the engine finds them, and their reader does not wait."""
    http_store.set(latency_ms=20)
    runs = []
    for _ in range(6):  # the kernel may take more meanwhile
        m = mount(url, "rank=0,world=1,order=chunk,chunk=512K,pool=4M,memory=64M")
        names = [name for name in os.listdir(m.path) if not name.startswith(".")]
        control.settled(m)
        for file in sorted((m.path / ".ddpfs" / "all").rglob("*.bin"))[::20]:  # opens here are no uses
            pages.drop(file)
        before = control.stats(m)["lost"]
        for name in names[:900]:  # of the first pool, that of 1024 files
            assert len((m.path / name).read_bytes()) == SIZE
            time.sleep(0.001)
        after = control.stats(m)
        m.unmount()
        runs.append((after["lost"] - before, after["regained"]))
        if runs[-1][0] <= 10 and runs[-1][1] >= 25:
            return
    raise AssertionError(f"lost, each a wait of 20 ms (45 without looking), and regained: {runs}")


def test_a_large_sample_is_one_request(scratch, build_dir, http_store):
    """Of any size up to what a read may have, not a request for each MiB."""
    datasets.write_tree(scratch / "large", classes=1, per_class=4, sizes=(3 << 20,))
    tools.mkshard("pack", scratch / "large", http_store.root / "train")
    done = tools.run([sys.executable, "-c", STAGE.replace("50", "2").replace("64M", "256M").replace("chunk", "full"),
                      tools.ROOT / "gpu_stage" / "python", f"{http_store.url}/train", "4"],
                     env={"DDPFS_STAGE_LIB": build_dir / "gpu_stage" / "libddpfs_stage.so"})
    assert int(done.stdout) == 4
    assert requests(http_store) <= 8, "two epochs at most"
