# SPDX-License-Identifier: Apache-2.0
"""What a file system owes to everybody: attributes, xattrs, statfs, ends.  What POSIX says of errno, permissions, links and
listings: test_conformance.py."""

import array
import errno
import fcntl
import os
import signal
import stat
import subprocess
import termios
import threading
import time

import pytest

from helpers.mounts import is_mounted, stop_and_wait
from helpers.waiting import PATIENCE_S, wait_until
from mount.control import stats


@pytest.fixture
def m(mount, pack, tree):
    return mount(pack(tree[0]), "view=all,layout=tree")


FILE = "class_00/item_0005.bin"


def test_attributes_are_the_sources(mount, pack, scratch):
    root = scratch / "attrs"
    (root / "d/e").mkdir(parents=True)
    for i, mode in enumerate((0o644, 0o600, 0o755, 0o444, 0o4755)):
        path = root / "d" / f"f{i}"
        path.write_bytes(b"x" * (i * 1000))
        path.chmod(mode)
        os.utime(path, (1_000_000_000 + i, 1_234_567_890 + i))
    (root / "d/e/g").write_bytes(b"")
    os.utime(root / "d/e/g", (0, 0))
    m = mount(pack(root), "view=all,layout=tree")
    for i, mode in enumerate((0o644, 0o600, 0o755, 0o444, 0o755)):
        st = os.stat(m.path / "d" / f"f{i}")
        assert stat.S_IMODE(st.st_mode) == mode, "set-id bits are dropped"
        assert st.st_mtime == 1_234_567_890 + i
        assert (st.st_size, st.st_blocks) == (i * 1000, (i * 1000 + 511) // 512)
        assert (st.st_uid, st.st_gid, st.st_nlink) == (os.geteuid(), os.getegid(), 1)
    assert os.stat(m.path / "d/e/g").st_mtime == 0


def test_mount_flags(m):
    line = next(x for x in open("/proc/mounts") if f" {m.path} " in x)
    options = line.split()[3].split(",")
    assert line.split()[2] == "fuse.ddpfs"
    assert {"ro", "nosuid", "nodev", "default_permissions"} <= set(options) and "allow_other" not in options


def test_statfs_has_real_figures(m, tree):
    st = os.statvfs(m.path)
    total = sum(map(len, tree[1].values()))
    assert 0 <= st.f_blocks * st.f_frsize - total < st.f_frsize
    assert (st.f_bfree, st.f_bavail, st.f_files, st.f_ffree, st.f_namemax) == (0, 0, len(tree[1]), 0, 255)
    assert st.f_flag & os.ST_RDONLY and st.f_flag & os.ST_NOSUID


def test_xattrs(mount, pack, tree):
    import ctypes.util

    dataset = pack(tree[0])
    m = mount(dataset, "rank=1,world=2,seed=7")
    for name in os.listdir(m.path)[:20]:
        assert sorted(os.listxattr(m.path / name)) == [f"user.ddpfs.{x}" for x in ("path", "position", "xxh3")]
        path = os.getxattr(m.path / name, "user.ddpfs.path").decode()
        assert name.split("-", 2)[2] == path.replace("%", "%25").replace("/", "%2F")
        assert int(os.getxattr(m.path / name, "user.ddpfs.position")) == int(name.split("-")[1])
        xxh3 = os.getxattr(m.path / name, "user.ddpfs.xxh3").decode()
        assert len(xxh3) == 16 and int(xxh3, 16) >= 0
        if ctypes.util.find_library("xxhash"):
            lib = ctypes.CDLL(ctypes.util.find_library("xxhash"))
            lib.XXH3_64bits.restype = ctypes.c_uint64
            lib.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            assert int(xxh3, 16) == lib.XXH3_64bits(tree[1][path], len(tree[1][path]))
    assert os.listxattr(m.path) == ["user.ddpfs.view"]
    other = mount(dataset, "rank=0,world=2,seed=7")
    assert os.getxattr(m.path, "user.ddpfs.view") == os.getxattr(other.path, "user.ddpfs.view")
    third = mount(dataset, "rank=0,world=2,seed=8")
    assert os.getxattr(m.path, "user.ddpfs.view") != os.getxattr(third.path, "user.ddpfs.view")


@pytest.mark.parametrize("name", ["user.nothing", "user.ddpfs.view", "security.selinux", "security.capability",
                                  "system.posix_acl_access", "user.ddpfs.pathx"])
def test_absent_xattrs(m, name):
    with pytest.raises(OSError) as e:
        os.getxattr(m.path / FILE, name)
    assert e.value.errno in (errno.ENODATA, errno.EOPNOTSUPP)


def test_a_file_is_no_terminal(m):
    with open(m.path / FILE, "rb") as f:
        assert not os.isatty(f.fileno())
        with pytest.raises(OSError) as e:
            fcntl.ioctl(f.fileno(), termios.TCGETS, array.array("B", [0] * 64))
        assert e.value.errno == errno.ENOTTY


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_other_users_are_kept_out(m):
    out = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ls", m.path],
                         capture_output=True, text=True)
    assert out.returncode != 0 and "ermission" in out.stderr


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_unmount(mount, pack, tree, sig):
    m = mount(pack(tree[0]), "rank=0,world=2")
    os.listdir(m.path)
    m.process.send_signal(sig)
    assert m.process.wait(timeout=PATIENCE_S) == 0
    assert not os.path.ismount(m.path)


def test_sigterm_with_files_in_use(mount, pack, tree):
    m = mount(pack(tree[0]), "view=all,layout=tree")
    fd = os.open(m.path / FILE, os.O_RDONLY)
    m.process.send_signal(signal.SIGTERM)
    assert m.process.wait(timeout=PATIENCE_S) == 0
    assert not os.path.ismount(m.path)
    with pytest.raises(OSError) as e:
        os.pread(fd, 10, 0)
    assert e.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    try:
        os.close(fd)
    except OSError as e:  # close tells of the lost connection too
        assert e.errno == errno.ENOTCONN


def test_readers_in_flight_when_it_ends(mount, pack, tree):
    """No reader hangs: each gets its bytes or an error."""
    m = mount(pack(tree[0]), "view=all,layout=tree")
    stop = threading.Event()
    seen = []

    def reader():
        while not stop.is_set():
            for path, data in tree[1].items():
                try:
                    fd = os.open(m.path / path, os.O_RDONLY)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    seen.append(os.read(fd, len(data) + 1) == data)
                    os.close(fd)
                except OSError:
                    return

    readers = [threading.Thread(target=reader) for _ in range(4)]
    for r in readers:
        r.start()
    while len(seen) < 200:
        time.sleep(0.01)
    m.process.send_signal(signal.SIGTERM)
    assert m.process.wait(timeout=PATIENCE_S) == 0
    stop.set()
    for r in readers:
        r.join(PATIENCE_S)
        assert not r.is_alive()
    assert all(seen)


def test_names_in_one_directory_are_looked_up_side_by_side(mount, pack, tree, scratch):
    """The server is stopped; four lookups must all be waiting in the kernel's queue, not behind one another."""
    m = mount(pack(tree[0]), "view=all,layout=tree,watchdog=0")
    place = scratch / "fusectl"
    place.mkdir()
    if subprocess.run(["mount", "-t", "fusectl", "fusectl", place], capture_output=True).returncode != 0:
        pytest.skip("fusectl cannot be mounted here")
    waiting = place / str(os.minor(os.stat(m.path).st_dev)) / "waiting"

    def look_up(name):
        with pytest.raises(FileNotFoundError):
            os.stat(name, dir_fd=directory)

    threads = [threading.Thread(target=look_up, args=(f"nothing{i}",)) for i in range(4)]
    directory = os.open(m.path / "class_00", os.O_PATH)  # held, so that the kernel does not forget it
    server = m.server_pid()
    try:
        stop_and_wait(server)
        for t in threads:
            t.start()
        wait_until(lambda: int(waiting.read_text()) == 4, "four waiting requests")
    finally:
        os.kill(server, signal.SIGCONT)
        for t in threads:
            if t.ident:
                t.join()
        os.close(directory)
        subprocess.run(["umount", place], check=True)


def test_listing_makes_no_inodes(m, tree):
    """A listing's names are not looked up: neither by us nor behind our back."""
    before = stats(m)["lookups"]
    listed = [f for d, _, files in os.walk(m.path) for f in files]
    assert len(listed) == len(tree[1])
    assert stats(m)["lookups"] - before <= 10  # the directories themselves


def test_opens_are_no_round_trips(m, tree):
    """After the first open the kernel no longer asks: reading resident files sends nothing."""
    paths = [m.path / p for p in tree[1]]
    for _ in range(20):  # the first pass brings them in, and the kernel may take pages back at any time
        before = stats(m)
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            os.read(fd, 1 << 20)
            os.close(fd)
        after = stats(m)
        asked = {k: after[k] - before[k] for k in ("lookups", "getattrs", "reads")}
        if not any(asked.values()):
            break
    assert asked == {"lookups": 0, "getattrs": 0, "reads": 0}


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes nobody, which only root can")
def test_an_unprivileged_user_mounts_through_fusermount3(build_dir, pack, tree, scratch):
    from helpers.tools import tool

    if subprocess.run(["sh", "-c", "command -v fusermount3"], capture_output=True).returncode != 0:
        pytest.skip("fusermount3 is not installed")
    if os.stat("/dev/fuse").st_mode & 0o006 != 0o006:
        pytest.skip("/dev/fuse is closed to users on this machine")
    dataset = pack(tree[0])
    scratch.chmod(0o755)
    for path in [dataset, *dataset.iterdir()]:
        path.chmod(path.stat().st_mode | 0o555)
    mountpoint = scratch / "theirs"
    mountpoint.mkdir()
    os.chown(mountpoint, 65534, 65534)
    runtime = scratch / "run"
    runtime.mkdir(mode=0o700)
    os.chown(runtime, 65534, 65534)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                 "env", f"XDG_RUNTIME_DIR={runtime}"]
    server = subprocess.Popen([*as_nobody, tool("ddpfs"), "mount", "-f", "-o", "rank=0,world=2", dataset, mountpoint],
                              stderr=subprocess.PIPE, text=True)
    try:
        listed = None
        while server.poll() is None and not listed:
            listed = subprocess.run([*as_nobody, "ls", mountpoint], capture_output=True, text=True).stdout.split()
        assert listed and len(listed) == 50, server.stderr.read() if server.poll() is not None else listed
        assert len(list((runtime / "ddpfs").iterdir())) == 1
        out = subprocess.run([*as_nobody, "cat", *(mountpoint / n for n in listed)], capture_output=True, check=True)
        assert len(out.stdout) == sum(len(tree[1][n.split("-", 2)[2].replace("%2F", "/")]) for n in listed)
        subprocess.run([*as_nobody, "fusermount3", "-u", mountpoint], check=True)
        assert server.wait(timeout=PATIENCE_S) == 0
    finally:
        if server.poll() is None:
            server.terminate()
            server.wait(timeout=PATIENCE_S)
        server.stderr.close()


@pytest.mark.parametrize("options", ["rank=0,world=2", "view=all,layout=tree"])
def test_a_killed_supervisor_leaves_nobody_waiting(mount, pack, tree, options):
    """Its server dies with it, while its own threads use the mount: readers get an error.  On a busy machine the server
    may see the end of its channel before its signal comes: then it unmounts."""
    dataset = pack(tree[0])
    for i in range(15):
        m = mount(dataset, options)
        time.sleep(0.002 * (i % 5))
        os.kill(m.process.pid, signal.SIGKILL)
        m.process.wait(timeout=PATIENCE_S)
        try:
            while is_mounted(m.path):
                os.listdir(m.path)
        except OSError as e:
            assert e.errno in (errno.ENOTCONN, errno.ECONNABORTED)
            subprocess.run(["umount", "-l", m.path], check=True)
