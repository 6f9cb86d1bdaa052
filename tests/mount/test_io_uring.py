"""-o io_uring: requests through rings where libfuse and the kernel have them, a mount as any other where not.

Those that need rings are skipped elsewhere: libfuse 3.19, and `echo 1 > /sys/module/fuse/parameters/enable_uring`."""

import concurrent.futures
import contextlib
import errno
import mmap
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from helpers import datasets, mounts, tools
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


def test_small_reads_and_those_past_the_page_cache(pack, large, ring_mount):
    m = ring_mount(pack(large[0]), "view=all,memory=8M")
    page = mmap.mmap(-1, 1 << 20)  # aligned, as O_DIRECT wants it
    for path, data in list(large[1].items())[:20]:
        with open(m.path / path, "rb", buffering=0) as f:
            for offset in range(0, len(data) + 1, 333_333):
                assert os.pread(f.fileno(), 7777, offset) == data[offset:offset + 7777]
        fd = os.open(m.path / path, os.O_RDONLY | os.O_DIRECT)
        try:
            for offset in range(0, len(data) + 1, len(page)):
                n = os.preadv(fd, [page], offset)
                assert page[:n] == data[offset:offset + len(page)]
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


@contextlib.contextmanager
def readers(m, files, n):
    """n threads that read until the mount ends; their errors that are no sign of its end."""
    stop, errors = threading.Event(), []
    threads = [threading.Thread(target=read_until_it_ends, args=(m, files, stop, errors)) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("who", ["server", "supervisor"])
def test_a_killed_one_ends_the_mount_and_nobody_waits(pack, large, ring_mount, who):
    dataset = pack(large[0])
    for _ in range(3):
        m = ring_mount(dataset, "view=all,memory=8M")
        m.may_end_with.add(1)
        server = m.server_pid()
        with readers(m, large[1], 4) as errors:
            time.sleep(0.3)
            os.kill(server if who == "server" else m.process.pid, signal.SIGKILL)
            m.process.wait()
            wait_until(lambda server=server: not mounts.is_alive(server))
        # Without its supervisor a server ends in order: what is in flight then is answered EIO.
        assert not [e for e in errors if who == "server" or getattr(e, "errno", None) != errno.EIO]
        if who == "server":
            assert "with io_uring no other can go on" in m.log()
        with pytest.raises(OSError) as refused:
            os.listdir(m.path)
        assert refused.value.errno in ENDED
        tools.ddpfs("umount", m.path)


REFUSES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <liburing.h>
int io_uring_queue_init_params(unsigned n, struct io_uring *ring, struct io_uring_params *p)
{
	int (*real)(unsigned, struct io_uring *, struct io_uring_params *) =
	        (int (*)(unsigned, struct io_uring *, struct io_uring_params *))dlsym(RTLD_NEXT, __func__);
	return p->flags & IORING_SETUP_SQE128 ? -ENOMEM : real(n, ring, p);
}
"""


def test_rings_that_cannot_be_made_leave_a_mount_as_any_other(pack, tree, mount, ring_mount, scratch):
    dataset = pack(tree[0])
    ring_mount(dataset, "view=all").unmount()
    cc = shutil.which("cc")
    if not cc:
        pytest.skip("no C compiler to make an io_uring that refuses with")
    (scratch / "refuses.c").write_text(REFUSES)
    subprocess.run([cc, "-shared", "-fPIC", "-o", scratch / "refuses.so", scratch / "refuses.c", "-ldl"], check=True)
    m = mount(dataset, "view=all,io_uring",
              env={"LD_PRELOAD": str(scratch / "refuses.so"), **tools.sanitizers("verify_asan_link_order=0")})
    assert transport(m) == "/dev/fuse" and "libfuse cannot start the rings" in m.log()
    os.kill(m.server_pid(), signal.SIGKILL)
    assert same(m, tree[1])
    m.unmount()


def test_a_restart_is_refused_and_the_mount_goes_on(pack, tree, ring_mount):
    m = ring_mount(pack(tree[0]), "view=all")
    done = tools.ddpfs("restart", m.path, check=False)
    assert done.returncode == 1 and "unmount and mount again" in done.stderr, done.stderr
    assert same(m, tree[1])
    m.unmount()


def test_an_end_while_it_is_in_use(pack, large, ring_mount):
    """Lazily unmounted, its session lives on while the server ends: what is in flight then is answered EIO, and the directory below
    has no such file."""
    m = ring_mount(pack(large[0]), "view=all,memory=8M")
    with open(m.path / next(iter(large[1])), "rb"), readers(m, large[1], 2) as errors:
        time.sleep(0.2)
        m.process.send_signal(signal.SIGTERM)
        assert m.process.wait() == 0, m.log()
    assert {getattr(e, "errno", None) for e in errors} <= {errno.EIO, errno.ENOENT}


def test_every_thread_is_confined(pack, tree, ring_mount):
    m = ring_mount(pack(tree[0]), "view=all")
    server = Path(f"/proc/{m.server_pid()}")
    if "Seccomp:\t2" not in (server / "status").read_text():
        pytest.skip("built without a filter of system calls")
    threads = [(task / "status").read_text() for task in (server / "task").iterdir()]
    assert any("Name:\tfuse-ring-0" in status for status in threads)
    assert all("Seccomp:\t2" in status and "NoNewPrivs:\t1" in status for status in threads)
    assert same(m, tree[1])
