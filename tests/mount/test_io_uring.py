"""-o io_uring: requests through rings where libfuse and the kernel have them, a mount as any other where not.

Those that need rings are skipped elsewhere: libfuse 3.19, and `echo 1 > /sys/module/fuse/parameters/enable_uring`."""

import concurrent.futures
import errno
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from helpers import datasets, tools
from helpers.waiting import wait_until

ENDED = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED}


def transport(m):
    return tools.stat_json(m.path)["transport"]


@pytest.fixture
def ring_mount(mount):
    """mount(), skipped with the log's own reason where the mount has no rings."""
    def make(dataset, options, **how):
        m = mount(dataset, f"{options},io_uring", **how)
        if transport(m) != "io_uring":
            pytest.skip(next((line for line in m.log().splitlines() if "io_uring:" in line), "no rings"))
        return m
    return make


@pytest.fixture
def large(scratch):
    """Files of all sizes: some span blocks, some READs."""
    root = scratch / "source"
    return root, datasets.write_tree(root, classes=4, per_class=40, sizes=(0, 1, 100, 4096, 70_000, 1_048_576, 3_500_000))


def same(m, files):
    return all((m.path / path).read_bytes() == data for path, data in files.items())


def test_without_the_option_requests_come_through_the_device(pack, tree, mount):
    m = mount(pack(tree[0]), "view=all")
    assert transport(m) == "/dev/fuse"
    assert "io_uring:" not in m.log()


def test_libfuses_environment_alone_makes_no_rings(pack, tree, mount):
    m = mount(pack(tree[0]), "view=all", env={"FUSE_URING_ENABLE": "1"})
    assert transport(m) == "/dev/fuse" and same(m, tree[1])
    os.kill(m.server_pid(), signal.SIGKILL)
    assert same(m, tree[1])
    m.unmount()


def test_a_mount_that_asks_is_one_with_rings_or_says_why_not(pack, tree, mount):
    m = mount(pack(tree[0]), "view=all,io_uring")
    said = [line for line in m.log().splitlines() if "io_uring:" in line]
    if transport(m) == "io_uring":
        assert not said
    else:
        assert transport(m) == "/dev/fuse" and len(said) == 1, m.log()
        assert "the mount goes on without" in said[0]
        # ... and another server can go on
        tools.ddpfs("restart", m.path)
        assert transport(m) == "/dev/fuse" and tools.stat_json(m.path)["restarts"] == 1
        assert len([line for line in m.log().splitlines() if "io_uring:" in line]) == 1
    assert same(m, tree[1])
    m.unmount()


def test_every_byte(pack, large, ring_mount):
    m = ring_mount(pack(large[0]), "view=all,memory=8M")
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda item: (m.path / item[0]).read_bytes() == item[1], large[1].items()))
    m.unmount()


def test_direct_and_small_reads(pack, large, ring_mount):
    m = ring_mount(pack(large[0]), "view=all,memory=8M")
    for path, data in list(large[1].items())[:20]:
        fd = os.open(m.path / path, os.O_RDONLY)
        try:
            for offset in range(0, len(data) + 1, 333_333):
                assert os.pread(fd, 7777, offset) == data[offset:offset + 7777]
        finally:
            os.close(fd)


def test_an_epoch_read_ahead(pack, large, ring_mount):
    m = ring_mount(pack(large[0]), "rank=0,world=1,memory=16M")
    for epoch in range(3):
        names = sorted(name for name in os.listdir(m.path) if name[0].isdigit())
        assert len(names) == len(large[1])
        for name in names:
            path = os.getxattr(m.path / name, "user.ddpfs.path").decode()
            assert (m.path / name).read_bytes() == large[1][path]
    assert tools.stat_json(m.path)["epoch"] == 2
    m.unmount()


def test_lists_and_names_that_are_not_there(pack, tree, ring_mount):
    m = ring_mount(pack(tree[0]), "rank=0,world=1")
    listed = (m.path / ".ddpfs" / "epoch" / "5.list").read_text().splitlines()
    assert sorted(listed) == sorted(tree[1])
    assert not any((m.path / f"absent-{n}").exists() for n in range(200))
    m.unmount()


def read_until_it_ends(m, files, stop, errors):
    while not stop.is_set():
        for path, data in files.items():
            try:
                if (m.path / path).read_bytes() != data:
                    errors.append(AssertionError(path))
            except OSError as e:
                if e.errno not in ENDED:
                    errors.append(e)
                return


@pytest.mark.parametrize("who", ["server", "supervisor"])
def test_a_killed_server_ends_the_mount_and_nobody_waits(pack, large, ring_mount, who):
    dataset = pack(large[0])
    for _ in range(3):
        m = ring_mount(dataset, "view=all,memory=8M")
        m.may_end_with.add(1)
        stop, errors = threading.Event(), []
        readers = [threading.Thread(target=read_until_it_ends, args=(m, large[1], stop, errors)) for _ in range(4)]
        for reader in readers:
            reader.start()
        time.sleep(0.3)
        os.kill(m.server_pid() if who == "server" else m.process.pid, signal.SIGKILL)
        for reader in readers:
            reader.join()
        stop.set()
        # Without its supervisor a server ends in order: what is in flight then is answered EIO.
        assert not [e for e in errors if who == "server" or getattr(e, "errno", None) != errno.EIO]
        m.process.wait()
        if who == "server":
            assert "with io_uring no other can go on" in m.log()
        with pytest.raises(OSError) as refused:
            os.listdir(m.path)
        assert refused.value.errno in ENDED
        tools.ddpfs("umount", m.path)


def test_a_restart_is_refused_and_the_mount_goes_on(pack, tree, ring_mount):
    m = ring_mount(pack(tree[0]), "view=all")
    done = tools.ddpfs("restart", m.path, check=False)
    assert done.returncode == 1 and "unmount and mount again" in done.stderr, done.stderr
    assert same(m, tree[1])
    m.unmount()


def test_an_end_while_it_is_in_use(pack, large, ring_mount):
    """Lazily unmounted, its session lives on while the server ends."""
    m = ring_mount(pack(large[0]), "view=all,memory=8M")
    stop, errors = threading.Event(), []
    reader = threading.Thread(target=read_until_it_ends, args=(m, large[1], stop, errors))
    with open(m.path / next(iter(large[1])), "rb"):
        reader.start()
        time.sleep(0.2)
        m.process.send_signal(signal.SIGTERM)
        assert m.process.wait() == 0, m.log()
        stop.set()
        reader.join()
    assert not [e for e in errors if not isinstance(e, FileNotFoundError)]  # the directory below


def test_the_server_stays_confined(pack, tree, ring_mount):
    m = ring_mount(pack(tree[0]), "view=all")
    status = Path(f"/proc/{m.server_pid()}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    wait_until(lambda: same(m, tree[1]))
