# SPDX-License-Identifier: Apache-2.0
"""A store on another host, behind a slow cable that somebody pulls out: two network namespaces (helpers/network.py)."""

import hashlib
import os
import threading
import time

import pytest

from helpers import datasets, tools
from helpers.http_store import HttpStore
from helpers.network import TwoHosts
from helpers.waiting import wait_until
from mount import control

MEGABYTES_S = 10
LATENCY_MS = 20  # of each answer of the store


@pytest.fixture
def hosts(request):
    with TwoHosts(getattr(request, "param", MEGABYTES_S)) as one:
        yield one


@pytest.fixture
def stored(hosts, build_dir, scratch):
    """The URL of a dataset of 24 MB on the host `store`, and the files' digests."""
    del build_dir
    files = datasets.write_tree(scratch / "source", classes=4, per_class=250, sizes=(20_000, 24_000, 28_000))
    (scratch / "objects").mkdir()
    tools.mkshard("pack", "--shard-size=4M", scratch / "source", scratch / "objects/train")
    with HttpStore(scratch / "objects", scratch, address=hosts.store.address, within=hosts.store.within) as store:
        store.set(latency_ms=LATENCY_MS)
        yield f"{store.url}/train", sorted(map(digest, files.values())), sum(map(len, files.values()))


def digest(data):
    return hashlib.md5(data).digest()


class Reader(threading.Thread):
    """Reads the files of an epoch in their order.  After a fifth of them it says `there`, and waits for `go`."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.names = sorted(name for name in os.listdir(path) if not name.startswith("."))
        self.path, self.digests, self.error = path, [], None
        self.there, self.go = threading.Event(), threading.Event()

    def run(self):
        try:
            for name in self.names:
                if len(self.digests) == len(self.names) // 5:
                    self.there.set()
                    self.go.wait()
                self.digests.append(digest((self.path / name).read_bytes()))
        except OSError as error:
            self.error = error


def epoch(mount, hosts, url, memory):
    """A mount on the host `trainer`, and its reader."""
    m = mount(url, f"rank=0,world=1,memory={memory},timeout=120", within=hosts.trainer.within)
    return m, Reader(m.path)


def test_an_epoch_uses_the_link_and_fetches_nothing_twice(hosts, stored, mount):
    url, digests, size = stored
    begun, before = time.monotonic(), hosts.trainer.received_bytes()
    m, reader = epoch(mount, hosts, url, "64M")
    reader.go.set()
    reader.run()
    seconds = time.monotonic() - begun
    assert reader.error is None and sorted(reader.digests) == digests
    stats = control.settled(m)
    assert stats["errors"] == stats["bad_blocks"] == 0
    received = hosts.trainer.received_bytes() - before
    # Shards have headers of tar; a file that the kernel takes back (`lost`) is fetched again, with 1024 turns at most.
    taken_back = (stats["lost"] + 1024 * stats["refetches"]) * 28_000
    assert size <= stats["read_bytes"] <= 1.1 * size + taken_back
    # A slow answer gets a second request: 5% of all bytes and 1 MiB may come twice by these, and one read of 2 MiB.
    assert stats["store_wasted_bytes"] <= stats["store_bytes"] / 20 + (4 << 20), "a third came twice once"
    # Packets have headers, and some are sent again.
    assert stats["read_bytes"] <= received <= 1.3 * stats["read_bytes"]
    # Nothing is faster than the link; and one file after the other takes 20 ms more for each, nine times as long.
    on_the_link_s = size / (MEGABYTES_S * 1e6)
    one_by_one_s = on_the_link_s + len(digests) * LATENCY_MS / 1e3
    assert 0.9 * on_the_link_s < seconds < one_by_one_s / 2, f"{seconds:.1f} s: {on_the_link_s:.1f} s on the link"


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_full_link_is_said(hosts, stored, mount):
    m, reader = epoch(mount, hosts, stored[0], "8M")
    reader.go.set()
    reader.start()
    said = set()
    while reader.is_alive():
        said.add(tools.stat_json(m.path).get("limited_by", "").partition(":")[0])
        time.sleep(0.5)
    assert "link" in said, said


def test_readers_wait_while_the_link_is_down(hosts, stored, mount):
    url, digests, _ = stored
    m, reader = epoch(mount, hosts, url, "8M")  # most of the epoch is not there yet
    reader.start()
    wait_until(reader.there.is_set, "a fifth of the epoch")
    hosts.cable(up=False)
    reader.go.set()
    wait_until(lambda: control.stats(m)["store_away_ns"] > 2e9, "a store that is away for 2 s")
    read = wait_until(lambda: stands_still(reader), "a reader that waits")
    assert reader.is_alive() and read < len(reader.names)
    hosts.cable(up=True)
    reader.join()
    assert reader.error is None and sorted(reader.digests) == digests
    stats = control.settled(m)
    assert stats["errors"] == stats["bad_blocks"] == stats["store_away_ns"] == 0
    assert stats["store_retries"] + stats["store_hedged"] > 0


def stands_still(reader):
    """How many files a reader has read, if it reads none for half a second."""
    read = len(reader.digests)
    time.sleep(0.5)
    return read if read == len(reader.digests) else 0
