# SPDX-License-Identifier: Apache-2.0
"""The server dies, hangs or is replaced under its readers, and they do not notice.

DDPFS_KILLS says how often it is killed in the long tests (default 20; a release: 100)."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "mount"))

import control
from helpers import datasets, mounts, tools
from helpers.waiting import wait_until
from helpers.pages import caches_dropped, resident

KILLS = int(os.environ.get("DDPFS_KILLS", "20"))
WORLD = 2
GONE = (errno.ENOTCONN, errno.ECONNABORTED)


def resends():
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1].split("-")[0])) >= (6, 9)


needs_resend = pytest.mark.skipif(not resends(), reason="the kernel cannot hand requests out again (Linux 6.9 can)")


@pytest.fixture
def source(scratch):
    root = scratch / "source"
    datasets.write_tree(root, classes=8, per_class=150, sizes=(100, 4096, 20_000, 110_000, 300_000))
    return root


@pytest.fixture
def ranks(source):
    """ranks(mountpoint...) -> one reading process a mountpoint, each of its own rank; killed at the end."""
    started = []

    def start(*mountpoints):
        for rank, path in enumerate(mountpoints):
            started.append(subprocess.Popen(
                [sys.executable, Path(__file__).with_name("rank.py"), source, path, str(rank), str(WORLD)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent))
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def preload(scratch):
    """preload(name, source, *flags) -> the environment in which a program has these functions before libc's."""
    cc = shutil.which("cc") or shutil.which("gcc")
    if not cc:
        pytest.skip("no C compiler")

    def make(name, source, *flags):
        code, library = scratch / f"{name}.c", scratch / f"{name}.so"
        code.write_text(source)
        subprocess.run([cc, "-shared", "-fPIC", *flags, "-o", library, code, "-ldl"], check=True)
        return {"LD_PRELOAD": str(library), **tools.sanitizers("verify_asan_link_order=0")}

    return make


def finish(processes):
    """What each has read, epoch by epoch."""
    for process in processes:
        process.stdin.close()
    results = [[json.loads(line) for line in process.stdout] for process in processes]
    for process in processes:
        assert process.wait() == 0
    return results


def all_right(results, source):
    """No error, no wrong byte, every epoch once and in turn, and the ranks' parts together are all files."""
    everything = sorted(str(p.relative_to(source)) for p in source.rglob("*") if p.is_file())
    for epochs in results:
        assert [e["errors"] for e in epochs] == [[]] * len(epochs)
        assert [e["wrong"] for e in epochs] == [[]] * len(epochs)
        assert [e["epoch"] for e in epochs] == list(range(len(epochs))), "the progress was lost, or an epoch skipped"
    for parts in zip(*results):
        assert sorted(path for part in parts for path in part["paths"]) == everything


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return "X"


def name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def children(supervisor):
    try:
        return [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    except OSError:
        return []


def server_of(supervisor):
    """The server there is, or will be in a moment: the youngest child that is not dead, and no greeter or who unmounts."""
    while True:
        alive = [pid for pid in children(supervisor) if name(pid) == "ddpfs-server" and state(pid) not in "ZX"]
        if alive:
            return alive[-1]
        assert state(supervisor) not in "ZX", "the supervisor has ended"
        time.sleep(0.001)


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def wait_for_another(m, before):
    while (now := server_of(m.process.pid)) == before:
        time.sleep(0.002)
    return now


def told_of_threads(pid, what):
    """What /proc tells of each of its threads: comm, or wchan, where in the kernel it waits."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # it has just ended
            found.append(Path(f"/proc/{pid}/task/{task}/{what}").read_text().strip())
    return found


def wait_until_dead(pid):
    """Each thread of the process has ended."""
    def there():
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return True
        return all(state(f"{pid}/task/{task}") in "ZX" for task in tasks)

    wait_until(there, f"the end of process {pid}")


def stat(m):
    return tools.stat_json(m.path)


def report(name, results, restarts):
    pauses = sorted((e["pause_ms"] for epochs in results for e in epochs), reverse=True)
    files = sum(e["files"] for epochs in results for e in epochs)
    print(f"{name}: {restarts} servers replaced, {files} files read, longest pauses between two files {pauses[:5]} ms")


# Killed


@needs_resend
@pytest.mark.parametrize("memory", ["16M", "256M"])  # the engine never rests; all becomes resident
def test_kill_9_again_and_again(scratch, pack, source, mount, ranks, memory):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    dataset = pack(source)
    both = [mount(dataset, f"rank={rank},world={WORLD},order=full,memory={memory}") for rank in range(WORLD)]
    processes = ranks(*(m.path for m in both))
    for _ in range(KILLS):
        time.sleep(rng.uniform(0, 0.3))
        kill(server_of(rng.choice(both).process.pid))
    results = finish(processes)
    all_right(results, source)
    restarts = sum(stat(m)["restarts"] for m in both)
    report(f"kill -9, memory={memory}", results, restarts)
    assert restarts >= KILLS // 2  # one that is killed before it was seen by the supervisor counts once
    for m in both:
        m.unmount()


@needs_resend
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_crash(pack, source, mount, ranks, number):
    m = mount(pack(source), "rank=0,world=1,order=full,memory=16M", env=tools.CRASHING)
    processes = ranks(m.path)
    time.sleep(0.3)
    before = server_of(m.process.pid)
    kill(before, number)
    wait_for_another(m, before)
    all_right(finish(processes), source)
    assert stat(m)["restarts"] == 1
    assert f"died of signal {int(number)}" in m.log() and "answers again" in m.log()


@needs_resend
def test_a_server_that_stands_still_is_replaced(pack, source, mount, ranks):
    m = mount(pack(source), "rank=0,world=1,order=full,memory=16M,watchdog=1")
    processes = ranks(m.path)
    time.sleep(0.3)
    before = server_of(m.process.pid)
    kill(before, signal.SIGSTOP)
    wait_for_another(m, before)
    all_right(finish(processes), source)
    assert "did not answer for 1 s" in m.log()


@needs_resend
@pytest.mark.parametrize("where", ["main", "worker", "engine"])
def test_a_server_with_a_thread_that_hangs_is_replaced(pack, source, mount, ranks, where):
    """The others go on: a deadlock of one's own, unlike a stop from outside."""
    m = mount(pack(source), "rank=0,world=1,order=full,memory=16M,watchdog=1", env={"DDPFS_TEST_HANG": where})
    processes = ranks(m.path)
    name = m.path / ".ddpfs" / "all" / "class_00" / "item_0000.bin"
    assert os.getxattr(name, "user.ddpfs.path") == b"class_00/item_0000.bin"
    while "answers again" not in m.log():
        time.sleep(0.05)
    all_right(finish(processes), source)
    assert stat(m)["restarts"] >= 1 and "did not answer for 1 s" in m.log()  # more where a second is short


def test_a_page_cache_that_takes_or_drops_nothing_stops_nobody(pack, source, mount, ranks):
    """The kernel holds our thread up there while somebody waits for a READ: the READ must be answered all the same, and the
    mount can be ended."""
    dataset = pack(source)
    both = [mount(dataset, "rank=0,world=1,order=full,memory=16M", env={"DDPFS_TEST_HANG": where})
            for where in ("store", "drop")]
    for epochs in finish(ranks(*(m.path for m in both))):
        all_right([epochs], source)
    assert [stat(m)["restarts"] for m in both] == [0, 0]
    both[0].process.terminate()
    subprocess.run(["umount", both[1].path], check=True)
    for m in both:
        assert m.process.wait() == 0, m.log()
        assert "does not end: killing it" in m.log() and not mounts.is_mounted(m.path)


def test_servers_that_all_hang_are_given_up(pack, source, mount):
    """And nobody is left who waits for one of them."""
    m = mount(pack(source), "rank=0,world=1,watchdog=1", env={"DDPFS_TEST_HANG": "worker:1000"})
    m.may_end_with.add(1)
    ask = f"import os\ntry: os.getxattr({str(m.path)!r}, 'user.ddpfs.view')\nexcept OSError as e: print(e.errno)"
    readers = [subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True,
                                preexec_fn=tools.die_with_parent) for _ in range(3)]
    assert m.process.wait() == 1
    for reader in readers:
        said = reader.communicate()[0]
        assert int(said) in GONE
    assert "5 times within 60 s" in m.log() and "did not answer for 1 s" in m.log()
    tools.ddpfs("umount", m.path)


def test_a_server_that_stands_still_is_left_alone_without_watchdog(pack, source, mount):
    m = mount(pack(source), "rank=0,world=1,watchdog=0")
    before = server_of(m.process.pid)
    os.listdir(m.path)
    kill(before, signal.SIGSTOP)
    time.sleep(1.5)  # not a proof, but what watchdog=1 would not survive
    kill(before, signal.SIGCONT)
    assert os.listdir(m.path) and stat(m)["restarts"] == 0


def test_the_trainers_progress_is_kept(pack, source, mount):
    m = mount(pack(source), "rank=0,world=1,order=full,seed=3")
    names = sorted(os.listdir(m.path))
    for name in names[:500]:
        os.close(os.open(m.path / name, os.O_RDONLY))
    tools.ddpfs("ctl", m.path, "state", 400)
    before = stat(m)
    assert before["opened"] == 500
    kill(before["server_pid"])
    after = stat(m)
    assert after["server_pid"] != before["server_pid"] and after["pid"] == before["pid"] == m.process.pid
    assert after["restarts"] == 1
    assert {k: after[k] for k in ("epoch", "opened", "position", "advance", "view_identity")} == \
        {k: before[k] for k in ("epoch", "opened", "position", "advance", "view_identity")}
    assert json.loads(tools.ddpfs("ctl", m.path, "state").stdout)["start"] == 400
    for name in names[500:700]:
        os.close(os.open(m.path / name, os.O_RDONLY))
    assert stat(m)["opened"] == 700
    assert sorted(os.listdir(m.path))[0].startswith("0001-")
    tools.ddpfs("ctl", m.path, "epoch", 7)
    kill(stat(m)["server_pid"])
    assert (stat(m)["epoch"], stat(m)["advance"]) == (7, "off")


def test_counters_go_on(pack, source, mount):
    """What was shown never falls, by whatever end of the server; opens are neither lost nor counted twice."""
    m = mount(pack(source), "rank=0,world=1,order=full,seed=3,memory=16M", env=tools.CRASHING)
    names = sorted(os.listdir(m.path))
    counters = ("opens", "hits", "misses", "reads", "read_reply_bytes", "delivered_bytes", "read_bytes", "fetched", "listings",
                "entries", "lookups", "getattrs", "waited_ns", "evicted", "asked_bytes", "cached_bytes")
    before = stat(m)
    for part in range(4):
        for name in names[part * 50:(part + 1) * 50]:
            (m.path / name).read_bytes()
        now = wait_until(lambda: (s := stat(m))["opens"] >= (part + 1) * 50 and s, "a successor that looks at opens")
        assert all(now[key] >= before[key] for key in counters)
        assert now["opens"] == (part + 1) * 50 == now["hits"] + now["misses"] and now["restarts"] == part
        if part == 1 and resends():
            tools.ddpfs("restart", m.path)
        else:
            kill(now["server_pid"], signal.SIGSEGV if part == 2 else signal.SIGKILL)
            wait_until_dead(now["server_pid"])  # a thread that is alive takes events, and them with it
        before = now
    after = stat(m)
    assert after["restarts"] == 4 and all(after[key] >= before[key] for key in counters)
    assert after["listings"] > 0 and after["fetched"] > 0 and after["read_bytes"] > 0
    metrics = (m.path / ".ddpfs" / "metrics").read_text()
    assert f'ddpfs_opens_total{{mountpoint="{m.path}",rank="0"}} 200\n' in metrics


def test_opens_while_there_is_no_server_are_counted(pack, source, mount):
    """The kernel has the files, so nobody asks the server; the events wait for its successor."""
    m = mount(pack(source), "rank=0,world=1,order=full,seed=3,watchdog=0")
    names = sorted(os.listdir(m.path))[:300]
    for name in names:
        with open(m.path / name, "rb") as f:
            f.read()
    opened = stat(m)["opened"]
    tools.ddpfs("ctl", m.path, "epoch", 0)  # counts anew; the names are the same
    server = stat(m)["server_pid"]
    waker = threading.Timer(10, kill, [server])  # should the kernel have forgotten a name meanwhile
    mounts.stop_and_wait(server)
    waker.start()
    for name in names:
        os.close(os.open(m.path / name, os.O_RDONLY))
    waker.cancel()
    kill(server)
    assert opened == 300
    # A successor that answers already may have to find its watches first.
    wait_until(lambda: stat(m)["opened"] == 300, "the opens of the time without a server")


def test_what_is_resident_stays_so(pack, source, mount):
    """A successor does not read again what the page cache holds, nor count past its budget."""
    m = mount(pack(source), "rank=0,world=1,order=full,seed=3,memory=512M")
    names = sorted(os.listdir(m.path))
    for name in names:
        with open(m.path / name, "rb") as f:
            f.read()
    before = control.settled(m)
    kill(before["server_pid"])
    after = control.settled(m)
    held = sum(path.stat().st_size for path in source.rglob("*.*"))
    assert held <= before["resident_bytes"] and 0.9 * held < after["resident_bytes"] < 512 << 20  # with buffers, on both sides
    assert after["read_bytes"] - before["read_bytes"] < 0.1 * held
    here = [name for name in names[:100] if resident(m.path / name) >= (m.path / name).stat().st_size]
    for name in here:  # the kernel may have taken others back
        with open(m.path / name, "rb") as f:
            f.read()
    assert stat(m)["reads"] <= after["reads"] + len(here) / 2


def test_killed_while_the_kernel_does_not_know_the_root(pack, source, mount):
    """A successor must not ask its own mount for anything before it answers it: here the kernel would ask back."""
    m = mount(pack(source), "rank=0,world=1,watchdog=0")
    os.listdir(m.path)
    server = stat(m)["server_pid"]
    assert control.ask(m, "epoch", set=0)["ok"]  # the root's attributes are forgotten, and nothing new is read ahead
    kill(server)
    assert len(os.listdir(m.path)) == len([p for p in source.rglob("*") if p.is_file()])


WAITING_THREAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>
static void *wait_for_itself(void *arg)
{
	char value[256];
	while (access(getenv("WAIT_WHEN"), F_OK) < 0)
		usleep(1000);
	getxattr(getenv("WAIT_FOR"), "user.ddpfs.path", value, sizeof(value));
	return arg;
}
int pthread_setname_np(pthread_t thread, const char *name)
{
	int (*real)(pthread_t, const char *) = (int (*)(pthread_t, const char *))dlsym(RTLD_NEXT, "pthread_setname_np");
	pthread_t waiting;
	if (strcmp(name, "helper") == 0 && access(getenv("WAIT_WHEN"), F_OK) < 0)
		pthread_create(&waiting, NULL, wait_for_itself, NULL);
	return real(thread, name);
}
"""


@needs_resend
@pytest.mark.parametrize("watchdog", [0, 1])
def test_a_thread_that_waits_for_its_own_dead_server_hides_no_death(pack, source, mount, scratch, watchdog):
    """It has the same descriptors as all others and cannot be killed, so nothing closes and nobody can be reaped: what the
    kernel does to a thread of ours that drops pages while a READ has one of them locked."""
    cc = shutil.which("cc") or shutil.which("gcc")
    if not cc:
        pytest.skip("no C compiler to make the thread with")
    (scratch / "waiting.c").write_text(WAITING_THREAD)
    subprocess.run([cc, "-shared", "-fPIC", "-o", scratch / "waiting.so", scratch / "waiting.c"], check=True)
    when, path = scratch / "when", scratch / "mnt0/.ddpfs/all/class_00/item_0000.bin"
    m = mount(pack(source), f"rank=0,world=1,order=full,watchdog={watchdog}",
              env={"LD_PRELOAD": str(scratch / "waiting.so"), "WAIT_WHEN": str(when), "WAIT_FOR": str(path),
                   "DDPFS_TEST_HANG": "worker", "DDPFS_SECCOMP": "off", **tools.sanitizers("verify_asan_link_order=0")})
    assert str(path).startswith(str(m.path))
    before = server_of(m.process.pid)
    wait_until(lambda: "helper" in told_of_threads(before, "comm"), "the helper, which begins that thread")
    when.write_text("")
    wait_until(lambda: "request_wait_answer" in told_of_threads(before, "wchan"), "the thread that waits")
    kill(before)
    wait_for_another(m, before)
    assert len(os.listdir(m.path)) == len([p for p in source.rglob("*") if p.is_file()])
    assert stat(m)["restarts"] == 1


@needs_resend
def test_a_listing_goes_on(pack, source, mount):
    """One getdents before the death, the rest after it: no name twice, none missing, one epoch."""
    m = mount(pack(source), "rank=0,world=1,order=full,seed=3")
    wanted = sorted(os.listdir(m.path))
    with os.scandir(m.path) as entries:
        names = [next(entries).name]
        kill(server_of(m.process.pid))
        names += [entry.name for entry in entries]
    assert sorted(names) == wanted


# The end


def test_a_server_that_keeps_crashing_is_given_up(pack, source, mount):
    m = mount(pack(source), "rank=0,world=1", env=tools.CRASHING)
    m.may_end_with.add(1)
    waiting = subprocess.Popen(["sh", "-c", f"while ls {m.path} >/dev/null 2>&1; do :; done"],
                               preexec_fn=tools.die_with_parent)
    while m.process.poll() is None:
        for pid in children(m.process.pid):
            if name(pid) == "ddpfs-server":  # not whoever looks for leaks
                kill(pid, signal.SIGSEGV)
        time.sleep(0.005)
    assert m.process.returncode == 1
    assert "5 times within 60 s" in m.log() and "signal 11" in m.log() and "ddpfs umount" in m.log()
    waiting.wait()  # nobody waits for ever
    with pytest.raises(OSError) as e:
        os.listdir(m.path)
    assert e.value.errno in GONE
    tools.ddpfs("umount", m.path)
    assert not mounts.is_mounted(m.path)


NO_THREADS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static int made;
static pid_t by;
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
	        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
	char text[16] = "";
	int fd = open(getenv("NO_THREADS"), O_RDONLY | O_CLOEXEC);
	if (by != getpid())
		made = 0;
	by = getpid();
	if (fd >= 0) {
		(void)!read(fd, text, sizeof(text) - 1);
		close(fd);
		if (++made > atoi(text))
			return EAGAIN;
	}
	return real(thread, attr, run, arg);
}
"""


@needs_resend
@pytest.mark.parametrize("n", range(9))  # of its 8 threads here: engine's, workers, toucher, watcher, helper
def test_a_successor_that_gets_too_few_threads_is_tried_again(pack, source, mount, scratch, preload, n):
    few = scratch / "few"
    m = mount(pack(source), "rank=0,world=1,order=full,memory=16M,threads=2",
              env={**preload("threads", NO_THREADS), "NO_THREADS": str(few)})
    before = m.server_pid()
    few.write_text(str(n))
    kill(before)
    wait_until(lambda: "trying again" in m.log() or "answers again" in m.log(), "a successor")
    reading = subprocess.Popen(["cat", m.path / ".ddpfs" / "all" / "class_00" / os.listdir(source / "class_00")[0]],
                               stdout=subprocess.DEVNULL)
    few.unlink()
    assert reading.wait() == 0
    assert m.log().count("trying again") <= 1, m.log()
    m.unmount()


def test_a_replaced_dataset_ends_the_mount(pack, source, mount, scratch):
    """The kernel has inodes and pages of the old one: another one under the same numbers would be a mixture."""
    dataset = pack(source)
    (source / "class_00/item_0000.bin").write_bytes(b"changed")
    m = mount(dataset, "rank=0,world=1")
    m.may_end_with.add(1)
    other = pack(source)
    dataset.rename(scratch / "old")
    other.rename(dataset)
    kill(server_of(m.process.pid))
    assert m.process.wait() == 1
    assert "another dataset lies there now" in m.log()
    with pytest.raises(OSError):
        os.listdir(m.path)


def away(dataset, m):
    """The dataset is renamed, and the server killed: back when the supervisor has said that it waits."""
    moved = dataset.rename(dataset.with_name("away"))
    kill(server_of(m.process.pid))
    wait_until(lambda: "trying again for" in m.log(), "the line that it waits")
    return moved


@needs_resend
def test_a_dataset_that_is_away_for_a_moment_is_waited_for(pack, source, mount, scratch):
    """Renamed, or an automounter that takes its time: more tries than a server that crashes has, and readers wait."""
    dataset = pack(source)
    m = mount(dataset, "view=all,layout=tree,memory=8M")
    moved = away(dataset, m)
    reader = subprocess.Popen(["cat", m.path / "class_07/item_0149.bin"], stdout=subprocess.PIPE,
                              preexec_fn=tools.die_with_parent)
    tried = set()
    while len(tried) < 3:
        tried.update(children(m.process.pid))
        assert m.process.poll() is None and reader.poll() is None, m.log()
        time.sleep(0.001)
    moved.rename(dataset)
    assert reader.communicate()[0] == (source / "class_07/item_0149.bin").read_bytes()
    wait_until(lambda: "answers again after" in m.log(), "the line that it is back")
    assert m.log().count("trying again for") == 1 and "No such file" in m.log()


def test_a_dataset_that_stays_away_ends_the_mount(pack, source, mount):
    dataset = pack(source)
    m = mount(dataset, "view=all,layout=tree,timeout=1")
    m.may_end_with.add(1)
    away(dataset, m)
    with pytest.raises(OSError) as e:
        while True:
            os.listdir(m.path)
    assert e.value.errno in GONE
    assert m.process.wait() == 1
    assert "and so did others for 1 s" in m.log()


@pytest.mark.parametrize("how", ["umount", "signal"])
def test_a_mount_whose_dataset_is_away_can_be_ended(pack, source, mount, how):
    dataset = pack(source)
    m = mount(dataset, "view=all,layout=tree,timeout=3600")
    away(dataset, m)
    if how == "umount":  # lazily: else umount(8) calls statfs(2) first, which waits for a server
        subprocess.run(["umount", "-l", m.path], check=True)
    else:
        m.process.terminate()
    assert m.process.wait() == 0, m.log()
    assert not mounts.is_mounted(m.path)


@needs_resend
def test_a_restart_beside_a_replaced_dataset_is_refused(pack, source, mount):
    """What can be known before is no reason to end the mount, which shows the old one on."""
    dataset = pack(source)
    m = mount(dataset, "view=all,layout=tree")
    before = datasets.read_tree(m.path)
    (source / "class_00/item_0000.bin").write_bytes(b"changed")
    tools.mkshard("pack", "--force", source, dataset)
    done = tools.ddpfs("restart", m.path, check=False)
    assert done.returncode == 1 and f"'{dataset}': another dataset lies there now" in done.stderr
    assert datasets.read_tree(m.path) == before and stat(m)["restarts"] == 0


@needs_resend
@pytest.mark.parametrize("how", ["umount", "restart", "kill", "signal"])
def test_a_directory_above_the_mountpoint_is_renamed(pack, source, mount, scratch, how):
    """Linux allows it: the mount is elsewhere then, and goes on there."""
    (scratch / "above/mnt").mkdir(parents=True)
    m = mount(pack(source), "view=all,layout=tree", mountpoint=scratch / "above/mnt")
    before, server = datasets.read_tree(m.path), server_of(m.process.pid)
    (scratch / "above").rename(scratch / "renamed")
    m.path = scratch / "renamed/mnt"
    if how == "umount":
        tools.ddpfs("umount", m.path)
    elif how == "signal":
        m.process.terminate()
    else:
        if how == "restart":
            tools.ddpfs("restart", m.path)
        else:
            kill(server)
            wait_for_another(m, server)
        assert datasets.read_tree(m.path) == before and stat(m)["mountpoint"] == str(m.path)
        m.unmount()
    assert m.process.wait() == 0 and not mounts.is_mounted(m.path)


def test_killed_while_unmounting(pack, source, mount):
    dataset = pack(source)
    for delay in range(12):
        m = mount(dataset, "rank=0,world=1")
        server = server_of(m.process.pid)
        umount = subprocess.Popen([tools.tool("ddpfs"), "umount", m.path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(delay * 0.002)
        kill(server)
        said, _ = umount.communicate()
        if umount.returncode != 0 and mounts.is_mounted(m.path):  # it died before the request: a successor serves on
            tools.ddpfs("umount", m.path)
        assert not mounts.is_mounted(m.path), said
        assert m.process.wait() == 0, m.log()


def test_killed_while_a_signal_ends_it(pack, source, mount):
    dataset = pack(source)
    for delay in range(12):
        m = mount(dataset, "rank=0,world=1")
        server = server_of(m.process.pid)
        m.process.terminate()
        time.sleep(delay * 0.001)
        kill(server)
        assert m.process.wait() == 0, m.log()
        assert not mounts.is_mounted(m.path)


def test_umount_while_no_server_runs(pack, source, mount):
    """umount(8) needs no server, and the supervisor starts none for a mount that is gone."""
    m = mount(pack(source), "rank=0,world=1,watchdog=0")
    server = server_of(m.process.pid)
    kill(server, signal.SIGSTOP)
    while state(server) != "T":
        time.sleep(0.001)
    subprocess.run(["umount", "-l", m.path], check=True)
    kill(server)
    assert m.process.wait() == 0, m.log()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_supervisor_ends_the_mount(pack, source, mount, stopped):
    m = mount(pack(source), "rank=0,world=1,memory=16M")
    server = server_of(m.process.pid)
    if stopped:
        kill(server, signal.SIGSTOP)
    m.process.kill()
    m.process.wait()
    with pytest.raises(OSError) as e:
        while True:
            os.listdir(m.path)
    assert e.value.errno in GONE
    while state(server) not in "ZX":
        time.sleep(0.01)
    tools.ddpfs("umount", m.path)
    assert not mounts.is_mounted(m.path)


# An older kernel, without FUSE_NOTIFY_RESEND.  The INIT that the server gets does not offer it.


OLD_KERNEL = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/fuse.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>
ssize_t read(int fd, void *buf, size_t size)
{
	ssize_t (*real)(int, void *, size_t) = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
	ssize_t n = real(fd, buf, size);
	struct fuse_in_header *head = buf;
	if (n >= (ssize_t)(sizeof(*head) + sizeof(struct fuse_init_in)) && head->opcode == FUSE_INIT && head->len == n)
		((struct fuse_init_in *)(head + 1))->flags2 &= ~(1u << 7);
	return n;
}
#ifdef NO_CLONE
int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *);
	va_end(args);
	if (request == FUSE_DEV_IOC_CLONE) {
		errno = ENOTTY;
		return -1;
	}
	int (*real)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	return real(fd, request, arg);
}
#endif
"""


@pytest.fixture
def old_kernel(preload):
    return lambda *flags: preload("old", OLD_KERNEL, *flags)


def test_without_resend_requests_in_flight_fail_and_the_mount_goes_on(pack, source, mount, ranks, old_kernel):
    m = mount(pack(source), "rank=0,world=1,order=full,memory=16M", env=old_kernel())
    processes = ranks(m.path)
    rng = random.Random(1)
    m.may_end_with.add(1)
    for _ in range(KILLS):
        time.sleep(rng.uniform(0, 0.2))
        kill(server_of(m.process.pid))
    [epochs] = finish(processes)
    assert all(e["wrong"] == [] for e in epochs)
    failed = [code for e in epochs for _, code in e["errors"]]
    if "cannot hand its requests" in m.log():  # a kill in the moment of a store: fs/test_supervisor.c
        assert set(failed) <= set(GONE)
        assert m.process.wait() == 1
        return
    assert set(failed) <= {errno.ECONNABORTED}
    report("without resend", [epochs], stat(m)["restarts"])
    assert "ECONNABORTED" in m.log()
    done = tools.ddpfs("restart", m.path, check=False)
    assert done.returncode == 1 and "6.9" in done.stderr
    for name in sorted(os.listdir(m.path))[:50]:
        (m.path / name).read_bytes()


def test_without_resend_and_clone_the_mount_ends_with_its_server(pack, source, mount, ranks, old_kernel):
    m = mount(pack(source), "rank=0,world=1,order=full,memory=16M", env=old_kernel("-DNO_CLONE"))
    m.may_end_with.add(1)
    processes = ranks(m.path)
    time.sleep(0.2)
    kill(server_of(m.process.pid))
    assert m.process.wait() == 1
    [epochs] = finish(processes)
    assert all(e["wrong"] == [] for e in epochs)
    assert {code for e in epochs for _, code in e["errors"]} <= set(GONE)


# Other ways to mount


@needs_resend
def test_through_fusermount3_as_a_user(pack, source, scratch):
    from helpers.private import Private

    if not shutil.which("fusermount3"):
        pytest.skip("fusermount3 is not installed")
    private = Private(scratch)
    private.directory_of_nobody("mnt")
    dataset = pack(source)
    for path in [dataset, *dataset.iterdir()]:
        path.chmod(path.stat().st_mode | 0o555)
    done = private.run(f"""
        $nobody $ddpfs mount -o rank=0,world=1,order=full,memory=16M {dataset} mnt
        $nobody sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do
            pid=$({tools.tool("ddpfs")} stat --json mnt | sed -n "s/.*\\"server_pid\\": \\([0-9]*\\).*/\\1/p"); kill -9 $pid; sleep 0.1
        done' &
        for i in 1 2 3; do $nobody sh -c 'cat mnt/.ddpfs/all/class_0*/*' | md5sum; echo 3 >/proc/sys/vm/drop_caches; done
        wait $!
        $nobody $ddpfs stat --json mnt | grep '"restarts"'
        $nobody $ddpfs umount mnt
        cat {source}/class_0*/* | md5sum
        """)
    lines = done.stdout.split("\n")
    assert lines[0] == lines[1] == lines[2] == lines[4], done
    assert '"restarts": 10' in lines[3]


@needs_resend
def test_under_exec(pack, source, scratch):
    dataset = pack(source)
    mountpoint = scratch / "mnt"
    mountpoint.mkdir()
    process = subprocess.Popen(
        [tools.tool("ddpfs"), "exec", "-q", "-o", "rank=0,world=1,order=full,memory=16M", dataset, mountpoint, "--",
         sys.executable, Path(__file__).with_name("rank.py"), source, mountpoint, "0", "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        supervisor = None
        while not supervisor:
            found = [m for m in json.loads(tools.ddpfs("ls", "--json").stdout) if m["mountpoint"] == str(mountpoint)]
            supervisor = found[0]["pid"] if found else None
        for _ in range(10):
            time.sleep(0.05)
            kill(server_of(supervisor))
        all_right(finish([process]), source)
    finally:
        process.kill()
        process.wait()
    while state(supervisor) not in "ZX":
        time.sleep(0.01)


# ddpfs restart


@needs_resend
def test_restart_under_load(pack, source, mount, ranks):
    m = mount(pack(source), "rank=0,world=1,order=full,memory=16M")
    processes = ranks(m.path)
    before = stat(m)["server_pid"]
    done = tools.ddpfs("restart", m.path)
    assert done.stdout == done.stderr == ""
    after = stat(m)
    assert (after["restarts"], after["pid"]) == (1, m.process.pid) and after["server_pid"] != before
    kill(after["server_pid"])  # the new supervisor supervises
    wait_for_another(m, after["server_pid"])
    for _ in range(4):
        tools.ddpfs("restart", m.path)
    all_right(finish(processes), source)
    assert stat(m)["restarts"] == 6
    m.unmount()


@needs_resend
def test_restart_asked_of_a_server_that_has_just_begun(scratch, pack, mount):
    """The request waits in the socket, which outlives the servers: the successor takes it before it is ready to serve."""
    root = scratch / "wide"
    datasets.write_tree(root, classes=2000, per_class=1, sizes=(10,))
    m = mount(pack(root), "view=all,layout=tree")
    for _ in range(3):
        before = stat(m)
        mounts.stop_and_wait(before["server_pid"])
        with control.connect(m) as sock:
            sock.sendall(json.dumps({"cmd": "restart", "program": tools.tool("ddpfs")}).encode() + b"\n")
            kill(before["server_pid"])
            assert json.loads(sock.makefile("rb").readline())["ok"]
        wait_until(lambda: stat(m)["restarts"] == before["restarts"] + 2, "the other program's server")
    assert "did not answer" not in m.log()


@needs_resend
def test_restart_in_the_background_with_another_program(pack, source, scratch):
    """A copy of the program, which then is deleted, as an upgrade does it: options, state and log stay."""
    dataset = pack(source)
    mountpoint = scratch / "mnt"
    mountpoint.mkdir()
    copy = scratch / "ddpfs"
    shutil.copy(tools.tool("ddpfs"), copy)
    options = f"rank=1,world=2,order=chunk,seed=18446744073709551615,umask=077,log={scratch / 'log'}"
    tools.ddpfs("mount", "-o", options, dataset, mountpoint)
    before = tools.stat_json(mountpoint)
    listed = os.listdir(mountpoint)
    tools.run([copy, "restart", mountpoint])
    after = tools.stat_json(mountpoint)
    assert os.readlink(f"/proc/{after['pid']}/exe") == os.readlink(f"/proc/{after['server_pid']}/exe") == str(copy)
    changed = {k for k in before if before[k] != after[k]}
    assert after["view_identity"] == before["view_identity"] and {"server_pid", "restarts"} <= changed
    assert not changed & {"pid", "seed", "order", "rank", "world", "memory_bytes", "mountpoint", "epoch"}
    assert os.listdir(mountpoint) == listed and os.stat(mountpoint / listed[0]).st_mode & 0o077 == 0
    kill(after["server_pid"])
    assert os.listdir(mountpoint) == listed
    tools.stat_json(mountpoint)
    said = (scratch / "log").read_text()
    assert "died of signal 9" in said or "was killed" in said  # the second: its memory takes long to go away
    tools.ddpfs("umount", mountpoint)
    assert not mounts.is_mounted(mountpoint)


@needs_resend
@pytest.mark.parametrize("program,said", [
    ("#!/bin/sh\necho this version cannot go on >&2\nexit 1\n", "this version cannot go on"),
    ("#!/bin/sh\nexit 0\n", "does not answer"), ("#!/no/such/interpreter\n", "No such file"), (None, "no program")])
def test_a_program_that_cannot_go_on_is_refused(pack, source, mount, scratch, program, said):
    m = mount(pack(source), "rank=0,world=1")
    path = scratch / "program"
    if program:
        path.write_text(program)
        path.chmod(0o755)
    before = stat(m)["server_pid"]
    reply = control.ask(m, "restart", program=str(path))
    assert not reply["ok"] and said in reply["error"]
    assert stat(m)["server_pid"] == before and stat(m)["restarts"] == 0


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_recognised_order_is_gone_on_with(pack, source, mount, how):
    """In the middle of an epoch, without an open more: the successor knows the order, and reads ahead from where its trainer is."""
    m = mount(pack(source), "layout=tree,view=all,order=full,memory=256M")
    paths = (m.path / ".ddpfs/epoch/5.list").read_text().splitlines()
    half = len(paths) // 2

    def recognised():
        stats = stat(m)
        return stats if stats["recognise_queue"] == 0 and stats["idle"] else None

    for path in paths[:half]:
        (m.path / path).read_bytes()
    before = wait_until(lambda: (s := recognised()) and s["samplers"] and s, "the order is recognised")
    assert before["samplers"][0]["text"] == "ddpfs's own order, epoch 5", before["samplers"]
    pid = m.server_pid()
    if how == "kill":
        kill(pid)
    else:
        tools.ddpfs("restart", m.path)
    wait_for_another(m, pid)
    restored = wait_until(recognised, "reading ahead")
    assert restored["fetched"] > 0, "idle before the order that was left is followed"
    misses, drops = stat(m)["misses"], caches_dropped()
    for path in paths[half:half + 24]:
        (m.path / path).read_bytes()
    after = wait_until(recognised, "reading ahead")
    (sampler,) = after["samplers"]
    assert sampler["text"] == "ddpfs's own order, epoch 5", sampler
    assert sampler["after"] == 0, "it was recognised anew"
    assert half <= sampler["turn"] <= half + 24, sampler
    lost = after["lost"] + after["evicted"]
    if caches_dropped() == drops:  # by nobody in between
        assert after["misses"] - misses <= lost, after
