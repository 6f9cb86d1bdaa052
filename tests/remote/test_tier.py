# SPDX-License-Identifier: Apache-2.0
"""Mounts with a tier: what was fetched from the store once comes from the local disk, and every byte is verified.

DDPFS_KILLS says how often a server or a mount is killed (default 20; a release: 100)."""

import errno
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import datasets, mounts, tools
from helpers.private import Private
from helpers.waiting import wait_until
from mount import control

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402

SIZE = 64 << 20
KILLS = int(os.environ.get("DDPFS_KILLS", "20"))
GONE = (errno.ENOTCONN, errno.ECONNABORTED)


@pytest.fixture
def stored(build_dir, scratch, http_store):
    """A packed dataset at `URL/train`, and its files."""
    source = scratch / "source"
    files = datasets.write_tree(source, classes=3, per_class=100, sizes=(0, 1, 20_000, 31_111, 65_536))
    tools.mkshard("pack", "--shard-size=2M", source, http_store.root / "train")
    (scratch / "tier").mkdir()
    return f"{http_store.url}/train", files


def options(scratch, more="view=all,layout=tree"):
    return f"{more},memory=64M,tier={scratch / 'tier'},tier_size=64M"


def contents(path):
    return {name: data for name, data in datasets.read_tree(path).items() if not name.startswith(".ddpfs")}


def shard_bytes(http_store):
    """Bytes of shards that the store has sent."""
    return sum(int(last) - int(first) + 1 for _, path, first, last in http_store.answers() if "shard-" in path)


def read_epoch(m):
    """Reads what the root lists, in its order."""
    for name in sorted(os.listdir(m.path)):
        (m.path / name).read_bytes()


def fill(mount, dataset, read, *arguments):
    """Reads through mounts until the tier has everything: it skips blocks for which its disk is too slow."""
    for _ in range(20):
        m = mount(dataset, options(*arguments))
        read(m)
        skipped = control.settled(m)["tier_refused"]
        m.unmount()
        if not skipped:
            return
    pytest.skip("the disk of the tier is too slow on this machine")


def data_of(path):
    """The parts of a sparse file that have bytes: (first, end)."""
    with open(path, "rb") as file:
        end, size = 0, os.fstat(file.fileno()).st_size
        while end < size:
            try:
                first = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:
                return
            end = os.lseek(file.fileno(), first, os.SEEK_HOLE)
            yield first, end


@pytest.mark.parametrize("order", ["full", "chunk"])
def test_the_second_epoch_asks_the_store_for_nothing(order, stored, scratch, http_store, mount):
    url, _ = stored
    fill(mount, url, read_epoch, scratch, f"rank=0,world=1,order={order}")
    before = shard_bytes(http_store)
    assert before > 0
    m = mount(url, options(scratch, f"rank=0,world=1,order={order},epoch=1"))
    read_epoch(m)
    stats = control.settled(m)
    assert shard_bytes(http_store) == before
    assert stats["tier_misses"] == stats["tier_bad"] == stats["tier_off"] == 0 and stats["tier_hits"] > 0
    assert stats["read_bytes"] == 0


def test_readers_of_the_tier_do_not_need_the_store(stored, scratch, http_store, mount):
    url, files = stored
    fill(mount, url, lambda m: contents(m.path), scratch)
    m = mount(url, options(scratch))
    http_store.set(down=1)
    assert contents(m.path) == files


def test_a_tier_that_another_process_keeps_locked_is_gone_without(stored, scratch, mount):
    """A process that was stopped while it opened the tier; the mount waits for it for 10 s."""
    url, files = stored
    directory = os.open(scratch / "tier", os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    m = mount(url, options(scratch))
    os.close(directory)
    assert contents(m.path) == files
    assert control.stats(m)["tier_off"] == errno.ETIMEDOUT
    assert m.log().count("the mount goes on without a tier") == 1, m.log()


def test_a_damaged_tier_gives_no_wrong_byte(stored, scratch, http_store, mount):
    url, files = stored
    fill(mount, url, lambda m: contents(m.path), scratch)
    path = scratch / "tier/tier"
    with open(path, "r+b") as tier:
        for first, end in list(data_of(path)):
            for at in range(max(first, 4096), end, 10_007):
                tier.seek(at)
                byte = tier.read(1)[0]
                tier.seek(at)
                tier.write(bytes([byte ^ 0x40]))
    filled = shard_bytes(http_store)
    m = mount(url, options(scratch))
    assert contents(m.path) == files
    stats = control.settled(m)
    assert stats["tier_bad"] > 0 and stats["tier_misses"] > 0 and stats["bad_blocks"] == 0
    mended = shard_bytes(http_store)
    assert mended > filled
    m.unmount()
    # What was damaged was replaced.  A segment whose record was damaged is filled anew, over blocks that were right.
    assert contents(mount(url, options(scratch)).path) == files
    assert shard_bytes(http_store) - mended < filled / 2


def test_a_killed_server_leaves_a_tier_of_right_bytes(stored, scratch, http_store, mount):
    url, files = stored
    http_store.set(latency_ms=5)
    m = mount(url, options(scratch))
    wrong = []

    def read():
        for name, data in files.items():
            if (m.path / name).read_bytes() != data:
                wrong.append(name)

    reader = threading.Thread(target=read)
    reader.start()
    killed = 0
    while reader.is_alive() and killed < 5:
        stored_before = control.stats(m)["tier_stored_bytes"]
        wait_until(lambda: not reader.is_alive() or control.stats(m)["tier_stored_bytes"] > stored_before + 200_000,
                   "blocks in the tier")
        server = m.server_pid()
        os.kill(server, 9)
        killed += 1
        wait_until(lambda: m.server_pid() not in (0, None, server), "another server")
    reader.join()
    assert killed and not wrong
    m.unmount()
    m = mount(url, options(scratch))
    assert contents(m.path) == files
    stats = control.settled(m)
    assert stats["tier_hits"] > 0 and stats["tier_bad"] == 0


def test_kills_while_a_tier_is_written_and_read_give_no_wrong_byte(stored, scratch, http_store, mount):
    url, files = stored
    http_store.set(latency_ms=2)
    chance = random.Random(27)
    problems = []

    def read(path, names):
        for name in names:
            try:
                data = (path / name).read_bytes()
            except OSError as error:
                unmounted = error.errno == errno.ENOENT and not os.path.ismount(path)
                if error.errno not in GONE and not unmounted:
                    problems.append(error)
                return
            if data != files[name]:
                problems.append(name)

    def used(m):
        stats = control.stats(m)
        return stats["tier_stored_bytes"] + stats["tier_bytes"]

    for number in range(KILLS):
        m = mount(url, options(scratch), mountpoint=scratch / f"mnt{number}")
        identity, server = tools.stat_json(m.path)["identity"], m.server_pid()
        readers = [threading.Thread(target=read, args=(m.path, chance.sample(sorted(files), len(files))))
                   for _ in range(2)]
        for reader in readers:
            reader.start()
        enough = chance.randrange(6_000_000)
        wait_until(lambda: used(m) >= enough or not any(reader.is_alive() for reader in readers), "a used tier")
        if number % 2:
            os.kill(server, 9)  # another one follows
        else:
            mounts.kill_with_supervisor(m.process.pid, server)
            mounts.force_unmount(m.path)
        for reader in readers:
            reader.join()
        if number % 2:
            m.unmount()
        if number % 4 == 3:  # begin with an empty tier again
            # A killed process has the tier open until the last of its threads has ended.
            wait_until(lambda: tools.ddpfs("tier", f"--remove={identity}", scratch / "tier",
                                           check=False).returncode == 0, "a tier that nobody uses")
    assert not problems
    m = mount(url, options(scratch))
    assert contents(m.path) == files
    assert control.settled(m)["bad_blocks"] == 0


def test_a_group_that_was_dealt_anew_takes_the_room_of_the_old_one(build_dir, scratch, mount):
    datasets.write_tree(scratch / "source", classes=1, per_class=200, sizes=(500_000,))
    tools.mkshard("pack", scratch / "source", scratch / "data")
    (scratch / "tier").mkdir()

    def fetched(epoch):
        m = mount(scratch / "data", f"{options(scratch, 'rank=0,world=2,groups=2,redeal=4')},epoch={epoch}")
        read_epoch(m)
        stats = control.settled(m)
        m.unmount()
        assert stats["tier_refused"] == 0 or epoch in (0, 3, 4)
        return stats["read_bytes"]

    # A mount reads ahead into the next epoch, so the last ones before a deal do not count.
    assert fetched(0) >= 50_000_000 and fetched(1) <= 1_000_000
    fetched(3)
    fetched(4)
    assert fetched(5) <= 1_000_000 and fetched(6) <= 1_000_000


def test_a_mount_of_all_files_keeps_what_a_full_tier_has(build_dir, scratch, mount):
    """Its reader takes all files in each epoch: the tier is told no next uses, and does not churn."""
    files = sorted(datasets.write_tree(scratch / "source", classes=1, per_class=200, sizes=(500_000,)))
    tools.mkshard("pack", scratch / "source", scratch / "data")
    (scratch / "tier").mkdir()

    def epoch():
        m = mount(scratch / "data", options(scratch))
        for name in random.sample(files, len(files)):
            (m.path / name).read_bytes()
        stats = control.settled(m)
        m.unmount()
        return stats

    used = 0
    while (stored := epoch()["tier_stored_bytes"]) > 0:  # it skips blocks for which its disk is too slow
        used += stored
    assert 40_000_000 < used <= SIZE, "the tier is not full"
    for _ in range(2):
        stats = epoch()
        assert stats["tier_moved_bytes"] == stats["tier_stored_bytes"] == 0
        assert stats["tier_bytes"] >= used and stats["tier_refused"] > 0, stats


def check_told(before, after):
    """Between two statistics, epochs 3 to 8, less came from the origin than with a tier that keeps what it has."""
    hits, misses = (after[key] - before[key] for key in ("tier_hits", "tier_misses"))
    keep = 1 - after["tier_room_bytes"] / after["content_bytes"]
    print(f"epochs 3 to 8: {misses / (hits + misses):.3f} of what was fetched came from the origin; "
          f"with a tier that keeps: {keep:.3f}")
    assert 0.7 < keep < 0.8 and misses / (hits + misses) < keep - 0.07
    assert after["tier_told_epochs"] > 30 and after["tier_bad"] == after["errors"] == 0


@pytest.mark.parametrize("announced", [False, True], ids=["recognised", "announced"])
def test_a_recognised_order_tells_the_tier_what_comes_next(announced, build_dir, scratch, mount):
    """One of four ranks of a DistributedSampler, a tier of a quarter of the dataset.  If the tier kept what it has, three quarters of
    what is fetched would come from the origin.  So small a tier has few segments, and so keeps the best blocks not quite."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    files = sorted(datasets.write_tree(scratch / "source", classes=4, per_class=1000, sizes=(64_000,)))
    tools.mkshard("pack", scratch / "source", scratch / "data")
    (scratch / "tier").mkdir()
    m = mount(scratch / "data", f"view=all,layout=tree,memory=16M,tier={scratch / 'tier'},tier_size=64M")
    assert control.stats(m)["tier_told_epochs"] == 0

    def read(epoch, turns=slice(None)):
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(11 + epoch))[1::4].tolist()
        if announced and not turns.start:
            ddpfs.Mount(m.path).follow([files[i] for i in order], append=epoch > 0)
        for i in order[turns]:
            (m.path / files[i]).read_bytes()

    read(0, slice(0, 200))
    wait_until(lambda: control.stats(m)["tier_told_epochs"] > 30, "a tier that is told the next epochs")
    read(0, slice(200, None))
    read(1)
    before = control.settled(m)
    for epoch in range(2, 8):
        read(epoch)
    after = control.settled(m)
    check_told(before, after)
    assert after["order_source"] == ("announced" if announced else "recognised")
    assert len(after["samplers"]) == (0 if announced else 1)  # a list is read ahead, and nothing else
    assert after["recognise_search_ns"] < 1e9


DISTRIBUTED = """
    import json, os, sys, time
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    mount = sys.argv[1]

    def stats():
        with open(os.path.join(mount, ".ddpfs/stats.json")) as file:
            return json.load(file)

    class Files(Dataset):
        def __init__(self):
            self.samples = sorted(os.path.join(d, n) for d, _, names in os.walk(mount) for n in names)

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, i):
            with open(self.samples[i], "rb") as file:
                return len(file.read())

    data = Files()
    sampler = DistributedSampler(data, num_replicas=4, rank=1, seed=11)
    loader = DataLoader(data, sampler=sampler, batch_size=16, num_workers=2)
    seen = []
    for epoch in range(8):
        sampler.set_epoch(epoch)
        assert sum(len(sizes) for sizes in loader) == len(sampler)
        time.sleep(0.1)  # what was opened is counted
        seen.append(stats())
    print(json.dumps([seen[1], seen[-1]]))
    """


def test_a_trainer_under_exec_tells_the_tier_what_comes_next(build_dir, scratch):
    """As above, but a DataLoader of PyTorch that does not know ddpfs announces what its sampler draws."""
    pytest.importorskip("torch", reason="torch is not installed")
    datasets.write_tree(scratch / "source", classes=4, per_class=1000, sizes=(64_000,))
    tools.mkshard("pack", scratch / "source", scratch / "data")
    (scratch / "tier").mkdir()
    (scratch / "mnt").mkdir()
    (scratch / "train.py").write_text(textwrap.dedent(DISTRIBUTED))
    done = tools.ddpfs("exec", "-q", "-o", f"view=all,memory=16M,tier={scratch / 'tier'},tier_size=64M",
                       scratch / "data", scratch / "mnt", "--",
                       sys.executable, "-W", "ignore", scratch / "train.py", scratch / "mnt")
    before, after = json.loads(done.stdout)
    check_told(before, after)
    assert after["order_source"] == "announced"


def test_an_announced_order_that_no_sampler_draws_tells_the_tier_nothing(build_dir, scratch, mount):
    files = sorted(datasets.write_tree(scratch / "source", classes=1, per_class=200, sizes=(500_000,)))
    tools.mkshard("pack", scratch / "source", scratch / "data")
    (scratch / "tier").mkdir()
    m = mount(scratch / "data", options(scratch))
    draw = random.Random(4)
    for number in range(3):
        order = draw.choices(files, weights=range(1, 201), k=200)
        ddpfs.Mount(m.path).follow(order, append=number > 0)
        for name in order:
            (m.path / name).read_bytes()
    stats = control.settled(m)
    assert stats["tier_told_epochs"] == 0 and stats["order_source"] == "announced"
    assert stats["samplers"] == []
    assert 0 < stats["recognise_search_ns"] < 2.2e9  # fs/announced_sampler.h


def test_the_order_of_torch_tells_the_tier_what_comes_next(build_dir, scratch, mount):
    """Its tables are made beside the mount's work."""
    datasets.write_tree(scratch / "source", classes=1, per_class=160, sizes=(500_000,))
    tools.mkshard("pack", scratch / "source", scratch / "data")
    (scratch / "tier").mkdir()
    m = mount(scratch / "data", options(scratch, "rank=1,world=4,order=torch,epoch=3"))
    wait_until(lambda: control.stats(m)["tier_told_epochs"] > 30, "tables of the next epochs")
    for _ in range(2):
        read_epoch(m)
    stats = control.settled(m)
    assert stats["tier_bad"] == stats["errors"] == 0
    wait_until(lambda: control.stats(m)["tier_told_epochs"] > 30, "tables of the epochs that come next now")


def test_a_restart_keeps_the_tier(stored, scratch, http_store, mount):
    url, files = stored
    fill(mount, url, lambda m: contents(m.path), scratch)
    before = shard_bytes(http_store)
    m = mount(url, options(scratch))
    tools.ddpfs("restart", m.path)
    assert contents(m.path) == files
    assert control.settled(m)["tier_hits"] > 0 and shard_bytes(http_store) == before


@pytest.mark.parametrize("more", ["view=all,layout=tree", "rank={},world=2"])
def test_two_mounts_of_a_host_fetch_each_byte_once(more, stored, scratch, http_store, mount):
    url, files = stored
    http_store.set(latency_ms=10)
    mounts = [mount(url, options(scratch, more.format(i)), mountpoint=scratch / f"mnt{i}") for i in range(2)]
    readers = [threading.Thread(target=lambda m=m: contents(m.path)) for m in mounts]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for m in mounts:
        control.settled(m)
    size = sum(path.stat().st_size for path in http_store.root.glob("train/shard-*"))
    total = {key: sum(control.stats(m)[key] for m in mounts)
             for key in ("tier_refused", "read_bytes", "store_hedged", "store_retries", "errors")}
    most = 1.02 * size + 65_536 * total["tier_refused"]
    assert total["read_bytes"] <= most
    # On a slow machine, the client asks twice for what comes late.
    longest = max(int(last) - int(first) + 1 for _, path, first, last in http_store.answers() if "shard-" in path)
    assert shard_bytes(http_store) <= most + longest * (total["store_hedged"] + total["store_retries"]), total
    assert total["errors"] == 0


def test_two_mounts_fetch_each_byte_once_though_the_store_is_away(build_dir, scratch, http_store, mount):
    """For longer than the 10 s for which a process that hangs is waited for."""
    files = datasets.write_tree(scratch / "source", classes=1, per_class=100, sizes=(400_000,))
    tools.mkshard("pack", scratch / "source", http_store.root / "train")
    (scratch / "tier").mkdir()
    url = f"{http_store.url}/train"
    more = "view=all,layout=tree,timeout=60"
    both = [mount(url, options(scratch, more), mountpoint=scratch / f"mnt{i}") for i in range(2)]
    got = [None, None]

    def read(number):
        with ThreadPoolExecutor(12) as pool:
            data = pool.map(lambda name: (both[number].path / name).read_bytes(), sorted(files))
            got[number] = dict(zip(sorted(files), data))

    def fetched():
        return [control.stats(m)["read_bytes"] for m in both]

    http_store.set(latency_ms=200)
    readers = [threading.Thread(target=read, args=(i,)) for i in range(2)]
    for reader in readers:
        reader.start()
    wait_until(lambda: sum(fetched()) > 300_000, "some bytes")
    http_store.set(down=1)
    time.sleep(1)
    before = fetched()
    time.sleep(14)
    assert fetched() == before and None in got, "the store was not away"
    http_store.set()
    for reader in readers:
        reader.join()
    assert got == [files, files]
    stats = [control.settled(m) for m in both]
    size = sum(path.stat().st_size for path in http_store.root.glob("train/shard-*"))
    shown = [{key: s[key] for key in s if key.startswith(("tier_", "store_", "read_"))} for s in stats]
    assert sum(s["read_bytes"] for s in stats) <= 1.02 * size + 65_536 * sum(s["tier_refused"] for s in stats), shown
    assert sum(s["tier_waited"] for s in stats) > 0, shown


def test_claims_of_a_killed_mount_are_taken_over_at_once(stored, scratch, http_store, mount):
    url, files = stored
    name = max(files, key=lambda name: len(files[name]))
    first, second = (mount(url, options(scratch), mountpoint=scratch / f"mnt{i}") for i in range(2))
    # Whoever is no longer alone drops what it has.  That would wait for a read (RELIABILITY.md, "Not proven").
    for m in (first, second):
        wait_until(lambda m=m: control.stats(m)["shared"], "two mounts that share the host")
        control.settled(m)
    http_store.set(down=1)
    got = []

    def read(m):
        try:
            got.append(((m.path / name).read_bytes() == files[name], time.monotonic()))
        except OSError as error:
            assert error.errno in GONE

    readers = [threading.Thread(target=read, args=(m,)) for m in (first, second)]
    readers[0].start()
    wait_until(lambda: control.stats(first)["store_requests"] > 0, "a request")
    readers[1].start()
    time.sleep(3)
    assert not got and control.stats(second)["store_requests"] == 0, "the other mount does not wait"
    mounts.kill_with_supervisor(first.process.pid, first.server_pid())
    http_store.set()
    killed = time.monotonic()
    mounts.force_unmount(first.path)
    for reader in readers:
        reader.join()
    (right, end), = got
    assert right and end - killed < 3, "it waits for a process that has ended"


ORDERS = ("order=full", "order=full,deal=block", "order=full,groups=2", "order=torch", "order=chunk,chunk=1M,pool=4M,deal=stride")


def two_ranks(url, number, options, scratch, mount):
    """Two ranks with one tier read an epoch.  Returns bytes fetched, blocks refused by the tier, bytes stored in it, and bytes
    fetched in vain."""
    tier = scratch / f"tier{number}"
    tier.mkdir()
    mounts = [mount(url, f"rank={i},world=2,{options},tier={tier},tier_size=64M", mountpoint=scratch / f"mnt{number}-{i}")
              for i in range(2)]
    readers = [threading.Thread(target=read_epoch, args=(m,)) for m in mounts]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    stats = [control.settled(m) for m in mounts]
    for m in mounts:
        m.unmount()
    return [sum(s[key] for s in stats) for key in ("read_bytes", "tier_refused", "tier_stored_bytes", "wasted_bytes")]


@pytest.mark.parametrize("grouped", [False, True], ids=["files", "webdataset"])
def test_two_ranks_fetch_small_files_once_in_any_order(grouped, build_dir, scratch, http_store, mount):
    """Small files are merged into reads with gaps.  What a gap brings is stored, and the other rank finds it.  The samples
    of the WebDataset have their files in another order than the index."""
    if grouped:
        files = datasets.write_webdataset(http_store.root / "small", 6000, 4096)
        tools.mkshard("index", http_store.root / "small")
    else:
        files = datasets.write_tree(scratch / "small", classes=3, per_class=2000, sizes=(4096,))
        tools.mkshard("pack", scratch / "small", http_store.root / "small")
    size = sum(path.stat().st_size for path in http_store.root.glob("small/shard-*"))
    http_store.set(latency_ms=20)
    for number, order in enumerate(ORDERS[::4] if grouped else ORDERS):
        fetched, refused, stored, wasted = two_ranks(f"{http_store.url}/small", number, f"{order},memory=10M", scratch, mount)
        assert fetched <= 1.02 * size + 4608 * refused, order  # what was not stored may be fetched twice
        assert stored <= sum(map(len, files.values())), order
        # The headers between files, at least, come in vain; what is dropped before its use counts, too.
        assert refused or wasted >= fetched - stored, order


@pytest.mark.parametrize("order", ["order=chunk,chunk=1M,pool=4M,deal=stride", "order=chunk,chunk=1M,pool=4M,groups=2", "order=none"])
def test_two_ranks_fetch_larger_files_once(order, build_dir, scratch, http_store, mount):
    """Files of 110 KB are merged into reads in these orders."""
    files = datasets.write_tree(scratch / "large", classes=3, per_class=100, sizes=(110_000,))
    tools.mkshard("pack", scratch / "large", http_store.root / "large")
    http_store.set(latency_ms=20)
    fetched, refused, stored, _ = two_ranks(f"{http_store.url}/large", 0, f"{order},memory=32M", scratch, mount)
    size = sum(map(len, files.values()))
    assert fetched <= 1.02 * size + 110_000 * refused
    assert stored == size or refused


def test_mounts_of_two_users_of_a_group_share_a_tier(build_dir, pack, scratch):
    """Its directory is the group's, with the set-group-id and the sticky bit.  Root's mount without that group is refused."""
    if not shutil.which("fusermount3"):
        pytest.skip("fusermount3 is not installed")
    files = datasets.write_tree(scratch / "source", classes=2, per_class=50, sizes=(20_000,))
    dataset = pack(scratch / "source")
    for path in [dataset, *dataset.iterdir()]:
        path.chmod(path.stat().st_mode | 0o555)
    done = Private(scratch).run(f"""
        umask 077
        install -d -m 3770 -g 23456 tier
        options="view=all,layout=tree,memory=16M,tier=$PWD/tier,tier_size=64M"
        for user in 1 65534; do  # fusermount3 wants them to have names
            as="setpriv --reuid=$user --regid=$user --groups=23456"
            install -d -o $user mnt$user
            $as $ddpfs mount -q -o $options {dataset} mnt$user
            $as sh -c "cat mnt$user/class_0*/* | md5sum"
            for i in 1 2 3 4 5; do $as $ddpfs stat --json mnt$user | grep -q '"idle": true' && break; sleep 0.2; done
            $as $ddpfs stat --json mnt$user | tr -d ' ,' | grep -E '"(tier_hits|tier_refused|read_bytes)"'
            $as $ddpfs umount mnt$user
        done
        rmdir /tmp/ddpfs-1 || true  # where this user's servers put their sockets
        mkdir mnt0
        ! $ddpfs mount -q -o $options {dataset} mnt0
        """)
    first, second = [dict(re.findall(r'"(\w+)":(\d+)', part)) for part in done.stdout.split(" -\n")[1:]]
    sums = re.findall(r"^([0-9a-f]{32})", done.stdout, re.MULTILINE)
    right = hashlib.md5(b"".join(files[name] for name in sorted(files))).hexdigest()
    assert sums == [right, right], done
    assert int(first["read_bytes"]) > 0 and first["tier_hits"] == "0", done
    assert int(second["tier_hits"]) >= len(files) - int(first["tier_refused"]), done
    assert "belongs to group 23456, of which this user (0) is no member" in done.stderr, done


def test_a_full_disk_switches_the_tier_off_and_the_epoch_goes_on(stored, scratch, http_store, mount):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    url, files = stored
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M,mode=700", "none", scratch / "tier"],
                          capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {made.stderr.strip()}")
    try:
        m = mount(url, options(scratch))
        assert contents(m.path) == files
        assert control.stats(m)["tier_off"] > 0
        log = control.wait_for_log(m, "is off (No space left on device)")
        assert log.count("is off (") == 1
        assert log.count("is more than the file system of") == 1, log
        m.unmount()
    finally:
        subprocess.run(["umount", scratch / "tier"], check=True)


@pytest.mark.parametrize("read_only, error, step", [(False, errno.ENOSPC, "make room there"),
                                                    (True, errno.EROFS, "look at that disk")])
def test_a_disk_that_is_full_or_read_only_at_the_start_is_gone_without(
        read_only, error, step, stored, scratch, http_store, mount):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    url, files = stored
    place = scratch / "tier"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M,mode=700", "none", place],
                          capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {made.stderr.strip()}")
    try:
        if read_only:
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        else:
            subprocess.run(f"head -c 5M /dev/zero > {place}/fill", shell=True)
        m = mount(url, options(scratch))
        assert contents(m.path) == files
        warnings = [line for line in m.log().splitlines() if "the mount goes on without a tier" in line]
        assert len(warnings) == 1 and str(place) in warnings[0], m.log()
        assert os.strerror(error) in warnings[0] and step in warnings[0], m.log()
        stats = control.stats(m)
        assert stats["tier_off"] == error and stats["tier_hits"] == stats["tier_misses"] == 0
        shown = tools.ddpfs("stat", m.path).stdout
        assert re.search(rf"^tier_off +{os.strerror(error)}$", shown, re.MULTILINE), shown
        m.unmount()
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_restart_whose_tier_is_gone_says_that_it_is_off(stored, scratch, http_store, mount):
    url, files = stored
    m = mount(url, options(scratch))
    assert contents(m.path) == files
    stored_bytes = control.settled(m)["tier_stored_bytes"]
    shutil.rmtree(scratch / "tier")
    tools.ddpfs("restart", m.path)
    assert contents(m.path) == files
    assert "the mount goes on without a tier" in control.wait_for_log(m, "without a tier")
    stats = control.stats(m)
    assert stats["tier_off"] == errno.ENOENT
    assert stats["tier_stored_bytes"] == stored_bytes > 0, "what the earlier server counted is kept"


def test_a_dataset_on_a_disk_may_have_a_tier(stored, scratch, http_store, mount):
    _, files = stored
    dataset = http_store.root / "train"
    fill(mount, dataset, lambda m: contents(m.path), scratch)
    m = mount(dataset, options(scratch))
    assert contents(m.path) == files
    stats = control.settled(m)
    assert stats["read_bytes"] == 0 and stats["tier_hits"] > 0


def test_the_tool_shows_verifies_and_removes(stored, scratch, http_store, mount):
    url, files = stored
    place = scratch / "tier"

    def tier(*arguments):
        return json.loads(tools.ddpfs("tier", "--json", *arguments, place).stdout)

    assert "no tier" in tools.ddpfs("tier", place, check=False).stderr
    fill(mount, url, lambda m: contents(m.path), scratch)
    m = mount(url, options(scratch))
    assert contents(m.path) == files
    blocks = sum(1 for data in files.values() if data)  # each file is one block
    shown = tier()
    one, = shown["datasets"]
    assert "\ntier:\n" in tools.ddpfs("stat", m.path).stdout
    assert one["name"] == url and tools.ddpfs("tier", place).stdout.splitlines()[-1].split()[-1] == url
    assert one["in_use"] and one["identity"] == tools.stat_json(m.path)["identity"]
    assert sum(map(len, files.values())) <= one["bytes"] == shown["used_bytes"] < shown["room_bytes"] < SIZE
    assert "a mount uses" in tools.ddpfs("tier", f"--remove={url}", place, check=False).stderr
    m.unmount()
    hits = tier()["datasets"][0]["hits"]
    assert hits >= blocks

    shown = tier(f"--verify={url}")
    assert shown["verified"] == {"right": blocks, "damaged": 0, "absent": 0}
    assert shown["datasets"][0]["hits"] == hits, "a look at the tier is no hit of a trainer"
    first, _ = max(data_of(place / "tier"), key=lambda part: part[1] - part[0])
    with open(place / "tier", "r+b") as file:
        file.seek(first + 100_000)
        file.write(bytes(200_000))
    verified = tier(f"--verify={url}")["verified"]
    assert verified["damaged"] == verified["absent"] > 0 and verified["right"] + verified["absent"] == blocks
    assert one["identity"] in tools.ddpfs("tier", place).stdout

    blocks_before = os.stat(place / "tier").st_blocks
    gone = tier(f"--remove={one['identity']}")
    assert gone["datasets"] == [] and gone["used_bytes"] == 0
    assert "does not know" in tools.ddpfs("tier", f"--verify={url}", place, check=False).stderr
    before, punched = shard_bytes(http_store), os.stat(place / "tier").st_blocks < blocks_before
    assert contents(mount(url, options(scratch)).path) == files
    if punched:  # the file system can punch holes
        assert shard_bytes(http_store) - before >= sum(map(len, files.values()))


def test_the_tool_shows_names_that_are_safe_to_print(stored, scratch, http_store, build_dir):
    """A path has any bytes; the last name counts, and one that another member of a group wrote has no password either."""
    (scratch / "tier").chmod(0o700)
    odd = scratch / "a\x1b[2J\nb"
    os.symlink(http_store.root, odd)
    shutil.copytree(http_store.root / "train", scratch / "\x1b\xe9\nb")
    more = f"tier={scratch / 'tier'},tier_size=64M"
    tools.ddpfs("warm", "-o", more, scratch / "\x1b\xe9\nb")
    shown = tools.ddpfs("tier", scratch / "tier").stdout
    assert "\x1b" not in shown and len(shown.splitlines()) == 3
    assert shown.splitlines()[-1].endswith(f"{scratch}/\\x1b\xe9\\x0ab"), shown
    name = json.loads(tools.ddpfs("tier", "--json", scratch / "tier").stdout)["datasets"][0]["name"]
    assert name == f"{scratch}/\\x1b\xe9\\x0ab"
    tools.ddpfs("warm", "-o", more, odd / "train")
    assert f"  {http_store.root / 'train'}\n" in tools.ddpfs("tier", scratch / "tier").stdout


def test_a_tier_of_another_size_says_that_it_begins_empty(stored, scratch, mount):
    url, _ = stored
    first = mount(url, options(scratch))
    first.unmount()
    assert "begins empty" not in first.log()
    second = mount(url, options(scratch).replace("tier_size=64M", "tier_size=65M"))
    assert "had 64.0 MiB, so it begins empty with tier_size=65.0 MiB" in second.log()
    second.unmount()
    said = tools.ddpfs("warm", "-o", f"tier={scratch / 'tier'},tier_size=64M", url).stderr
    assert "had 65.0 MiB, so it begins empty with tier_size=64.0 MiB" in said


@pytest.mark.parametrize("given, said", [
    ("tier=/tmp", "tier_size is missing"),
    ("tier_size=1G", "tier is missing"),
    ("tier=/tmp,tier_size=1M", "from 64M to 64T"),
    ("tier=/nowhere/at/all,tier_size=64M", "there is no directory"),
])
def test_a_tier_that_cannot_be_is_refused(given, said, stored, scratch, build_dir):
    (scratch / "mnt").mkdir()
    done = subprocess.run([build_dir / "tools/ddpfs", "mount", stored[0], scratch / "mnt", "-o", f"view=all,{given}"],
                          capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and said in done.stderr, done.stderr
