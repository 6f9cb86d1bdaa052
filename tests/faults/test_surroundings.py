# SPDX-License-Identifier: Apache-2.0
"""What surrounds a mount changes or is scarce: memory of its cgroup, the clock on the wall."""

import errno
import os
import shutil
import signal
import subprocess

import pytest

from helpers import datasets, seccomp, tools
from mount.control import stats

MIB = 1 << 20


# ---- a cgroup at its limit ----


@pytest.mark.parametrize("memory", ["16M", "256M"])
def test_a_cgroup_at_its_limit(cgroup, scratch, pack, mount, memory):
    """Server and reader in a cgroup with memory= and as much as both promise to need besides: the kernel takes pages back, kills
    nobody, and every byte is right.  A memory= beyond the cgroup is cut down to what is left of it then."""
    if "DDPFS_REPORTS" in os.environ:
        pytest.skip("memory of a sanitizer would count too")
    root = scratch / "source"
    datasets.write_tree(root, classes=6, per_class=100, sizes=(4096, 110_000, 300_000, 700_000))
    dataset = pack(root)
    wanted = subprocess.run("cat class_*/* | md5sum", shell=True, cwd=root, capture_output=True, text=True, check=True).stdout
    limited = cgroup((16 + 64) * MIB)
    with limited.inside():
        m = mount(dataset, f"view=all,layout=tree,memory={memory}")
        for _ in range(2):
            done = subprocess.run("cat class_*/* | md5sum", shell=True, cwd=m.path, capture_output=True, text=True, check=True)
            assert done.stdout == wanted
    now = stats(m)
    assert limited.events().get("oom_kill", 0) == 0 and now["restarts"] == now["errors"] == 0
    assert ("is more than this host or cgroup has: 16.0 MiB are used" in m.log()) == (memory == "256M")
    m.unmount()


# ---- the clock on the wall ----


# Years forward, back before 1970, and on: another time at each look.
CLOCK = r"""
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static _Atomic unsigned looks;
static long off(void)
{
	static const long jumps[] = { 0, 315360000, -630720000, 3600, -3600, 4000000000, -1 };
	return jumps[looks++ % 7];
}
int clock_gettime(clockid_t clock, struct timespec *t)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, t);
	if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += off();
	return rc;
}
time_t time(time_t *ret)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	if (ret)
		*ret = t.tv_sec;
	return t.tv_sec;
}
int gettimeofday(struct timeval *tv, void *tz)
{
	struct timespec t;
	(void)tz;
	clock_gettime(CLOCK_REALTIME, &t);
	tv->tv_sec = t.tv_sec;
	tv->tv_usec = t.tv_nsec / 1000;
	return 0;
}
"""


def test_clock_jumps(scratch, pack, mount):
    """A clock that shows another year whenever it is looked at: epochs, counters, waits and a successor are as ever."""
    cc = shutil.which("cc") or shutil.which("gcc")
    if not cc:
        pytest.skip("no C compiler to make a clock with")
    (scratch / "clock.c").write_text(CLOCK)
    subprocess.run([cc, "-shared", "-fPIC", "-o", scratch / "clock.so", scratch / "clock.c"], check=True)
    env = {"LD_PRELOAD": str(scratch / "clock.so"), **tools.sanitizers("verify_asan_link_order=0")}
    root = scratch / "source"
    files = datasets.write_tree(root, classes=4, per_class=50)
    m = mount(pack(root), "rank=0,world=1,order=full,memory=16M", env=env)
    for epoch in range(3):
        names = sorted(os.listdir(m.path))
        assert len(names) == len(files) and all(name.startswith(f"{epoch:04d}-") for name in names)
        for name in names:
            assert (m.path / name).read_bytes() == files[name.split("-", 2)[2].replace("%2F", "/")]
        (m.path / ".ddpfs" / "stats.json").read_bytes()
        if epoch == 1:
            os.kill(m.server_pid(), 9)
    now = stats(m)
    assert now["epoch"] == 2 and now["opens"] == 3 * len(files) and now["errors"] == 0
    assert now["uptime_s"] < 10_000 and now["wait_max_ns"] < 10_000 * 10**9
    m.unmount()


# ---- the environment ----


def test_libfuses_environment_makes_no_rings(pack, tree, mount):
    """FUSE_URING_ENABLE makes libfuse 3.18 and later ask for fuse-over-io_uring: the kernel would wait for its rings for ever."""
    m = mount(pack(tree[0]), "view=all", env={"FUSE_URING_ENABLE": "1"})
    assert all((m.path / path).read_bytes() == data for path, data in tree[1].items())
    os.kill(m.server_pid(), signal.SIGKILL)
    assert all((m.path / path).read_bytes() == data for path, data in tree[1].items())


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_a_ring_that_cannot_be_entered_leaves_pread_threads(pack, tree, mount, error):
    """A filter of system calls that admits io_uring_setup and refuses io_uring_enter (an old profile of a container runtime)."""
    dataset = pack(tree[0])

    def work():
        m = mount(dataset, "view=all")
        assert all((m.path / path).read_bytes() == data for path, data in tree[1].items())
        assert stats(m)["io"] == "pread"
        m.unmount()

    seccomp.refused(seccomp.IO_URING_ENTER, error, work)
