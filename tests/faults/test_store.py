# SPDX-License-Identifier: Apache-2.0
"""The disk below a mount fails, hangs, changes or is not all there: readers get the right bytes or an error, never others.

A failing or hanging disk is another ddpfs mount that holds the shards as files: a flipped bit below it makes it answer EIO for
one stretch of a shard, and a stopped server makes it hang for as long as the test likes."""

import errno
import json
import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import datasets, mounts, tools
from helpers.waiting import wait_until
from mount.control import directory, settled, stats
from mount.test_read import wait_for_log

GONE = (errno.EIO, errno.ESTALE)
SIZES = (0, 1, 700, 4096, 20_000, 65_536)


@pytest.fixture
def source(scratch):
    root = scratch / "tree"
    return root, datasets.write_tree(root, classes=4, per_class=24, sizes=SIZES)


@pytest.fixture
def dataset(source, pack):
    made = pack(source[0], "--shard-size=256K")
    assert len(list(made.glob("shard-*"))) > 4
    return made


def where(dataset):
    """{path: (shard's name, offset, length)}"""
    entries = [json.loads(line) for line in tools.mkshard("ls", "--json", dataset).stdout.splitlines()]
    return {e["path"]: (f"shard-{e['shard']:06d}.tar", e["offset"], e["size"]) for e in entries}


def read_or_gone(m, path):
    """The file's bytes, or None where it cannot be had."""
    try:
        return (m.path / path).read_bytes()
    except OSError as e:
        assert e.errno in GONE, (path, e)
        return None


def read_all(m, files):
    """Reads every file; whatever comes is right.  Returns the paths that could not be had."""
    lost = set()
    for path, data in files.items():
        got = read_or_gone(m, path)
        assert got in (None, data), path
        if got is None:
            lost.add(path)
    return lost


@pytest.fixture
def on_a_store(mount, pack, dataset):
    """on_a_store() -> (mount whose files are the dataset's, its packing): what a disk is to another mount."""
    def make():
        store = pack(dataset, "--container=bare", "--common=")
        return mount(store, "view=all,layout=tree,watchdog=0"), store

    return make


# ---- a disk that fails ----


def test_a_stretch_that_cannot_be_read(mount, dataset, source, on_a_store):
    """EIO from the disk for one shard: the files there fail, each with a line in the log, and no others."""
    below, store = on_a_store()
    victim = sorted(dataset.glob("shard-*"))[2].name
    entry = next(json.loads(line) for line in tools.mkshard("ls", "--json", store).stdout.splitlines() if victim in line)
    with open(store / f"shard-{entry['shard']:06d}.ddpfs" if (store / "shard-000000.ddpfs").exists()
              else next(p for p in sorted(store.glob("shard-*")) if f"{entry['shard']:06d}" in p.name), "r+b") as f:
        f.seek(entry["offset"] + entry["size"] // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 16]))
    m = mount(below.path, "view=all,layout=tree")
    lost = read_all(m, source[1])
    there = {path for path, (shard, _, size) in where(dataset).items() if shard == victim and size}
    assert lost and lost <= there
    wait_for_log(m, victim)
    done = tools.mkshard("verify", below.path, check=False)
    assert done.returncode == 1 and victim in done.stderr


# ---- a disk that hangs ----


def test_a_disk_that_hangs(mount, dataset, source, on_a_store):
    """Files in memory are read as ever; the reader of another waits, and goes on when the disk does."""
    below, _ = on_a_store()
    (below.path / "index.ddpfs").read_bytes()
    m = mount(below.path, "view=all,layout=tree,watchdog=0")
    paths = [path for path in sorted(source[1]) if source[1][path]]
    warm, cold = paths[:20], paths[-1]
    for path in warm:
        assert (m.path / path).read_bytes() == source[1][path]
    os.stat(m.path / cold)
    server = stats(below)["server_pid"]
    got = []
    reader = threading.Thread(target=lambda: got.append((m.path / cold).read_bytes()))
    os.kill(server, signal.SIGSTOP)
    try:
        reader.start()
        for _ in range(5):
            for path in warm:
                assert (m.path / path).read_bytes() == source[1][path]
        assert sorted(os.listdir(m.path)) == sorted({path.split("/")[0] for path in source[1]})
        assert not got and reader.is_alive()
    finally:
        os.kill(server, signal.SIGCONT)
    reader.join()
    assert got == [source[1][cold]]
    assert read_all(m, source[1]) == set()


def test_a_disk_that_hangs_is_no_hang_of_the_server(mount, dataset, source, on_a_store):
    """More readers wait for it than there are workers.  The watchdog sees workers and engine wait for the disk."""
    below, _ = on_a_store()
    (below.path / "index.ddpfs").read_bytes()
    m = mount(below.path, "view=all,layout=tree,watchdog=1")
    shards = {shard: path for path, (shard, _, size) in where(dataset).items() if size}
    warm = list(shards.values())  # all shards are open then
    cold = [path for path in sorted(source[1]) if source[1][path] and path not in warm][:10]
    for path in warm:
        assert (m.path / path).read_bytes() == source[1][path]
    for path in cold:
        os.stat(m.path / path)
    server, before = stats(below)["server_pid"], stats(m)["worker_reads"]
    got = {}
    readers = [threading.Thread(target=lambda path=path: got.update({path: (m.path / path).read_bytes()})) for path in cold]
    os.kill(server, signal.SIGSTOP)
    try:
        for reader in readers:
            reader.start()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            for path in warm:
                assert (m.path / path).read_bytes() == source[1][path]
            assert os.listdir(m.path) and not got
            time.sleep(0.1)
    finally:
        os.kill(server, signal.SIGCONT)
    for reader in readers:
        reader.join()
    assert got == {path: source[1][path] for path in cold}
    assert stats(m)["restarts"] == 0 and stats(m)["worker_reads"] > before


@pytest.fixture
def hanging(mount, dataset, source, on_a_store):
    """A mount whose readers wait for a disk that hangs: a thread that answers the kernel waits in its own read.
    .mount; .disk: the process to which SIGCONT goes; .readers: threads; .got: {path: bytes or errno}; .right: the same,
    if nothing goes wrong"""
    below, _ = on_a_store()
    (below.path / "index.ddpfs").read_bytes()
    m = mount(below.path, "view=all,layout=tree")
    warm = list({shard: path for path, (shard, _, size) in where(dataset).items() if size}.values())
    cold = [path for path in sorted(source[1]) if source[1][path] and path not in warm][:4]
    for path in warm:  # all shards are open then
        assert (m.path / path).read_bytes() == source[1][path]
    for path in cold:
        os.stat(m.path / path)
    disk, before, got = stats(below)["server_pid"], settled(m)["worker_reads"], {}

    def read(path):
        try:
            got[path] = (m.path / path).read_bytes()
        except OSError as error:
            got[path] = error.errno

    readers = [threading.Thread(target=read, args=[path]) for path in cold]
    os.kill(disk, signal.SIGSTOP)
    try:
        for reader in readers:
            reader.start()
        wait_until(lambda: stats(m)["worker_reads"] > before, "a thread that reads by itself")
        right = {path: source[1][path] for path in cold}
        yield SimpleNamespace(mount=m, disk=disk, readers=readers, got=got, right=right)
    finally:
        os.kill(disk, signal.SIGCONT)
        for reader in readers:
            reader.join()


def processes_of(m):
    """The server and what else the supervisor has started."""
    return [int(pid) for pid in Path(f"/proc/{m.process.pid}/task/{m.process.pid}/children").read_text().split()]


def nothing_is_left_of(m, processes):
    assert not mounts.is_mounted(m.path)
    assert not [pid for pid in processes if mounts.is_alive(pid)]
    assert not (directory() / f"{m.process.pid}.sock").exists()


def test_a_disk_that_hangs_delays_the_end_by_ten_seconds(hanging):
    """The supervisor kills a server that does not end.  Its threads in the disk's reads end when the disk goes on, and
    its readers get an error then."""
    m, processes = hanging.mount, processes_of(hanging.mount)
    began = time.monotonic()
    m.process.terminate()
    assert m.process.wait() == 0, m.log()
    assert time.monotonic() - began > 9
    assert "the server does not end: killing it" in m.log()
    assert not mounts.is_mounted(m.path)
    os.kill(hanging.disk, signal.SIGCONT)
    for reader in hanging.readers:
        reader.join()
    assert set(hanging.got.values()) <= {errno.ENOTCONN, errno.ECONNABORTED}, hanging.got
    wait_until(lambda: not any(map(mounts.is_alive, processes)), "the end of the killed server")
    nothing_is_left_of(m, processes)


def test_a_disk_that_goes_on_lets_the_server_end(hanging):
    """SIGTERM comes while the disk hangs.  The readers get their bytes, and the server ends by itself."""
    m, processes = hanging.mount, processes_of(hanging.mount)
    m.process.terminate()
    wait_until(lambda: not mounts.is_mounted(m.path), "the unmount")
    os.kill(hanging.disk, signal.SIGCONT)
    assert m.process.wait() == 0, m.log()
    for reader in hanging.readers:
        reader.join()
    assert hanging.got == hanging.right
    assert "killing it" not in m.log()
    nothing_is_left_of(m, processes)


def test_umount_while_a_disk_hangs(hanging):
    """It is refused, because there are readers, and changes nothing."""
    m, processes = hanging.mount, processes_of(hanging.mount)
    done = tools.ddpfs("umount", m.path, check=False)
    assert done.returncode == 1 and f"in use by process {os.getpid()}" in done.stderr, done.stderr
    os.kill(hanging.disk, signal.SIGCONT)
    for reader in hanging.readers:
        reader.join()
    assert hanging.got == hanging.right
    tools.ddpfs("umount", m.path)
    assert m.process.wait() == 0, m.log()
    nothing_is_left_of(m, processes)


# ---- shards that change under a live mount ----


@pytest.mark.parametrize("how", ["cut", "emptied", "removed", "replaced by another", "overwritten", "grown"])
def test_a_shard_changes_under_a_mount(mount, dataset, source, how):
    m = mount(dataset, "view=all,layout=tree,memory=8M")
    first = sorted(source[1])[5]
    assert (m.path / first).read_bytes() == source[1][first]
    places = where(dataset)
    victim = max(dataset.glob("shard-*"), key=lambda p: (p.stat().st_size, p.name))
    size = victim.stat().st_size
    victim.chmod(0o644)
    if how == "cut":
        os.truncate(victim, size // 2)
    elif how == "emptied":
        os.truncate(victim, 0)
    elif how == "removed":
        victim.unlink()
    elif how == "replaced by another":
        beside = dataset / "beside"
        beside.write_bytes(datasets.content("other", size))
        beside.rename(victim)
    elif how == "overwritten":
        victim.write_bytes(datasets.content("other", size))
    else:
        with open(victim, "ab") as f:
            f.write(bytes(4096))
    lost = read_all(m, source[1])
    assert all(places[path][0] == victim.name for path in lost)
    if how in ("cut", "emptied", "overwritten"):  # others may be read on through the descriptor that is open
        assert {path for path, (shard, at, n) in places.items() if shard == victim.name and n and at > size // 2} & lost
    assert os.listdir(m.path)


def test_a_fifo_in_a_shards_place(mount, dataset, source):
    """Its files are refused at once, and nothing waits for somebody to write into it: no reader, no server, no mounting."""
    places = where(dataset)
    victim = sorted(dataset.glob("shard-*"))[1]
    there = {path for path, (shard, _, size) in places.items() if shard == victim.name and size}
    victim.rename(victim.with_suffix(".away"))
    os.mkfifo(victim)
    m = mount(dataset, "view=all,layout=tree,memory=8M")
    assert read_all(m, source[1]) == there
    wait_for_log(m, victim.name)
    server = stats(m)["server_pid"]
    os.kill(server, signal.SIGKILL)
    assert read_all(m, source[1]) == there
    assert stats(m)["server_pid"] != server
    tools.ddpfs("restart", m.path)
    victim.with_suffix(".away").rename(victim)
    assert read_all(m, source[1]) == set()


def test_a_fifo_in_the_quarantine_lists_place(mount, dataset):
    os.mkfifo(dataset / "quarantine.ddpfs")
    place = dataset.with_name("place")
    place.mkdir()
    done = tools.ddpfs("mount", "-o", "view=all,layout=tree,on_bad=skip", dataset, place, check=False)
    assert done.returncode == 1 and "quarantine.ddpfs': not a quarantine list" in done.stderr


# ---- limits ----


def test_few_descriptors(mount, dataset, source):
    m = mount(dataset, "view=all,layout=tree")
    server = stats(m)["server_pid"]
    used = len(os.listdir(f"/proc/{server}/fd"))
    resource.prlimit(server, resource.RLIMIT_NOFILE, (used + 2, used + 2))
    lost = set()
    for path, data in source[1].items():
        try:
            assert (m.path / path).read_bytes() == data
        except OSError as e:
            assert e.errno in (*GONE, errno.EMFILE, errno.ENFILE, errno.ENOMEM), e
            lost.add(path)
    assert len(lost) < len(source[1])


def test_no_more_address_space(mount, dataset, source):
    """RLIMIT_AS at what the server has: bytes are right or an error says why; and right again when the limit is gone."""
    if os.environ.get("DDPFS_BUILD", "").endswith("build-asan"):
        pytest.skip("AddressSanitizer ends a program in which its own mmap fails")
    m = mount(dataset, "view=all,layout=tree")
    server = stats(m)["server_pid"]
    with open(f"/proc/{server}/statm") as f:
        pages = int(f.read().split()[0])
    resource.prlimit(server, resource.RLIMIT_AS, (pages * 4096, resource.RLIM_INFINITY))
    for path, data in source[1].items():
        try:
            assert (m.path / path).read_bytes() == data
        except OSError as e:
            assert e.errno in (*GONE, errno.ENOMEM), e
    resource.prlimit(server, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for path, data in source[1].items():
        assert (m.path / path).read_bytes() == data


def test_a_read_only_disk(mount, dataset, source, scratch):
    place = scratch / "ro"
    place.mkdir()
    if subprocess.run(["mount", "--bind", dataset, place], capture_output=True).returncode:
        pytest.skip("may not bind-mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        m = mount(place, "view=all,layout=tree")
        assert read_all(m, source[1]) == set()
        for args in ("verify", "--quarantine", place), ("index", "--force", place), ("pack", source[0], place / "d"):
            done = tools.mkshard(*args, check=False)
            assert done.returncode == 1 and "Read-only file system" in done.stderr, (args, done.stderr)
        tools.mkshard("verify", place)
        m.unmount()
    finally:
        subprocess.run(["umount", place], check=True)


# ---- the mount goes away ----


def test_a_lazy_unmount_under_a_reader(mount, dataset, source):
    """umount -l: who has a file open reads it to its end; the server ends when the last one has gone."""
    m = mount(dataset, "view=all,layout=tree")
    path = max(source[1], key=lambda p: len(source[1][p]))
    with open(m.path / path, "rb", buffering=0) as f:
        assert f.read(100) == source[1][path][:100]
        subprocess.run(["umount", "-l", m.path], check=True)
        assert not mounts.is_mounted(m.path)
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert f.read() == source[1][path][100:]
    assert m.process.wait() == 0
