# SPDX-License-Identifier: Apache-2.0
"""What POSIX and Linux say a read-only file system does, as pjdfstest asks a writable one: errno of every change,
permissions, link counts, types, positions in listings, handles."""

import concurrent.futures
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import signal
import stat
import struct
import subprocess
import sys

import pytest

from helpers import datasets
from helpers.waiting import wait_until
from mount.control import ask, settled, stats

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
FILE, DIRECTORY = "class_00/item_0005.bin", "class_00"
DROP_CACHES = "/proc/sys/vm/drop_caches"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users, which only root can")


def call(name, *args):
    """A function of libc with -1 and errno made an OSError."""
    rc = getattr(libc, name)(*[os.fsencode(a) if isinstance(a, (str, os.PathLike)) else a for a in args])
    if rc == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return rc


def fails(operation):
    """The errno's name, or "done"."""
    try:
        operation()
    except OSError as e:
        return errno.errorcode[e.errno]
    return "done"


def with_fd(path, flags, operation):
    def run():
        fd = os.open(path, flags)
        try:
            operation(fd)
        finally:
            os.close(fd)
    return run


def tries(path, flags):
    """For fails(): an open that is undone."""
    return with_fd(path, flags, lambda fd: None)


@pytest.fixture
def m(mount, pack, tree):
    return mount(pack(tree[0]), "view=all,layout=tree")


def changes(root, elsewhere):
    """(what, errno, operation): every way to change a file system, on names that are there and names that are not."""
    here, new, directory, ddpfs = root / FILE, root / DIRECTORY / "new", root / DIRECTORY, root / ".ddpfs"
    creating = [(f"open {flag} of a new name", "EROFS", tries(new, getattr(os, flag) | os.O_CREAT))
                for flag in ("O_RDONLY", "O_WRONLY", "O_RDWR")]
    opening = [(f"open {flag}", "EROFS", tries(here, getattr(os, flag)))
               for flag in ("O_WRONLY", "O_RDWR", "O_TRUNC")]
    nodes = [(f"mknod of a {name}", "EROFS", lambda k=kind: os.mknod(new, k | 0o644, os.makedev(1, 3)))
             for name, kind in (("file", stat.S_IFREG), ("fifo", stat.S_IFIFO), ("socket", stat.S_IFSOCK),
                                ("character device", stat.S_IFCHR), ("block device", stat.S_IFBLK))
             if os.geteuid() == 0 or kind not in (stat.S_IFCHR, stat.S_IFBLK)]
    rd, dirfd = os.O_RDONLY, os.O_RDONLY | os.O_DIRECTORY
    return creating + opening + nodes + [
        ("open O_CREAT|O_WRONLY", "EROFS", tries(here, os.O_CREAT | os.O_WRONLY)),
        ("open O_CREAT|O_EXCL", "EEXIST", tries(here, os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        ("open O_APPEND", "EROFS", tries(here, os.O_WRONLY | os.O_APPEND)),
        ("open O_TMPFILE", "EROFS", tries(directory, os.O_TMPFILE | os.O_RDWR)),
        ("open a directory to write", "EISDIR", tries(directory, os.O_WRONLY)),
        ("open stats to write", "EROFS", tries(ddpfs / "stats.json", os.O_RDWR)),
        ("create below .ddpfs", "EROFS", tries(ddpfs / "new", os.O_CREAT | os.O_WRONLY)),
        ("create a sample's flat name", "EROFS",
         tries(ddpfs / "epoch/0/0000-0000000000-x", os.O_CREAT | os.O_WRONLY)),
        ("mkdir", "EROFS", lambda: os.mkdir(new)),
        ("mkdir of a file", "EEXIST", lambda: os.mkdir(here)),
        ("mknod of a file", "EEXIST", lambda: os.mknod(here)),
        ("rmdir", "EROFS", lambda: os.rmdir(directory)),
        ("rmdir of the mountpoint", "EBUSY", lambda: os.rmdir(root)),
        ("unlink", "EROFS", lambda: os.unlink(here)),
        ("unlink of nothing", "EROFS", lambda: os.unlink(new)),
        ("rename", "EROFS", lambda: os.rename(here, new)),
        ("rename over a file", "EROFS", lambda: os.rename(here, root / DIRECTORY / "item_0006.bin")),
        ("rename out", "EXDEV", lambda: os.rename(here, elsewhere / "new")),
        ("rename in", "EXDEV", lambda: os.rename(elsewhere / "file", new)),
        ("renameat2 RENAME_EXCHANGE", "EROFS", lambda: call("renameat2", AT_FDCWD, here, AT_FDCWD, directory, 2)),
        ("link", "EROFS", lambda: os.link(here, new)),
        ("link over a file", "EEXIST", lambda: os.link(here, root / DIRECTORY / "item_0006.bin")),
        ("link out", "EXDEV", lambda: os.link(here, elsewhere / "new")),
        ("symlink", "EROFS", lambda: os.symlink("x", new)),
        ("symlink over a file", "EEXIST", lambda: os.symlink("x", here)),
        ("chmod", "EROFS", lambda: os.chmod(here, 0o777)),
        ("fchmod", "EROFS", with_fd(here, rd, lambda fd: os.fchmod(fd, 0o777))),
        ("chown", "EROFS", lambda: os.chown(here, 1, 1)),
        ("chown to nobody new", "EROFS", lambda: os.chown(here, -1, -1)),
        ("fchown", "EROFS", with_fd(here, rd, lambda fd: os.fchown(fd, 1, 1))),
        ("utimensat", "EROFS", lambda: os.utime(here, (1, 1))),
        ("utimensat, now", "EROFS", lambda: os.utime(here)),
        ("futimens", "EROFS", with_fd(here, rd, lambda fd: os.utime(fd, (1, 1)))),
        ("truncate", "EROFS", lambda: os.truncate(here, 0)),
        ("truncate to its size", "EROFS", lambda: os.truncate(here, os.stat(here).st_size)),
        ("truncate of a directory", "EISDIR", lambda: os.truncate(directory, 0)),
        ("ftruncate", "EINVAL", with_fd(here, rd, lambda fd: os.ftruncate(fd, 0))),
        ("fallocate", "EBADF",
         with_fd(here, rd, lambda fd: call("fallocate", fd, 0, ctypes.c_long(0), ctypes.c_long(1)))),
        ("write", "EBADF", with_fd(here, rd, lambda fd: os.write(fd, b"x"))),
        ("pwrite", "EBADF", with_fd(here, rd, lambda fd: os.pwrite(fd, b"x", 0))),
        ("copy_file_range into it", "EBADF",
         with_fd(here, rd, lambda fd: os.copy_file_range(fd, fd, 1, 0, 100))),
        ("setxattr", "EROFS", lambda: os.setxattr(here, "user.x", b"y")),
        ("setxattr of one of ours", "EROFS", lambda: os.setxattr(here, "user.ddpfs.path", b"y")),
        ("setxattr of the root", "EROFS", lambda: os.setxattr(root, "user.ddpfs.view", b"y")),
        ("fsetxattr", "EROFS", with_fd(here, rd, lambda fd: os.setxattr(fd, "user.x", b"y"))),
        ("removexattr", "EROFS", lambda: os.removexattr(here, "user.ddpfs.path")),
        ("ACL", "EROFS", lambda: os.setxattr(here, "system.posix_acl_access", struct.pack("<I", 2))),
        ("access W_OK", "EROFS", lambda: call("access", here, os.W_OK)),
        ("mmap shared and writable", "EACCES",
         with_fd(here, rd, lambda fd: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))),
        ("FS_IOC_SETFLAGS", "EROFS",
         with_fd(here, rd, lambda fd: fcntl.ioctl(fd, 0x40086602, struct.pack("l", 0)))),
        ("mount in it", "ENOENT", lambda: call("mount", "none", new, b"tmpfs", 0, None)),
        ("write through a directory", "EBADF", with_fd(directory, dirfd, lambda fd: os.write(fd, b"x"))),
    ]


def test_every_change_is_refused(m, tree, scratch):
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(b"x")
    bad = [(what, got, expected) for what, expected, operation in changes(m.path, elsewhere)
           if (got := fails(operation)) != expected]
    assert not bad
    assert datasets.read_tree(m.path) == tree[1]


@ROOT_ONLY
def test_a_mount_that_root_remounts_writable_has_no_way_to_write(m, tree, scratch):
    """The superblock's flag is root's to take away.  The server then refuses what the kernel asks for, and what a
    failed write left in the page cache is thrown away."""
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(b"x")
    call("mount", "none", m.path, None, MS_REMOUNT | MS_NOSUID | MS_NODEV, None)
    assert not os.statvfs(m.path).f_flag & os.ST_RDONLY
    harmless = {"open O_WRONLY", "open O_RDWR", "open O_APPEND", "open O_CREAT|O_WRONLY", "open stats to write",
                "access W_OK", "chown to nobody new"}
    done = [what for what, _, operation in changes(m.path, elsewhere)
            if fails(operation) == "done" and what not in harmless]
    assert not done
    with open(m.path / FILE, "r+b", buffering=0) as f:
        assert fails(lambda: f.write(b"other bytes")) == "ENOSYS"
        assert fails(lambda: call("fallocate", f.fileno(), 0, ctypes.c_long(0), ctypes.c_long(1))) == "ENOTSUP"
        assert fails(lambda: f.truncate(1)) == "ENOSYS"
    assert datasets.read_tree(m.path) == tree[1]


# ---- permissions ----

AS = """
import os, sys
uid, gid, groups = int(sys.argv[1]), int(sys.argv[2]), [int(g) for g in sys.argv[3].split(",") if g]
os.setgroups(groups); os.setgid(gid); os.setuid(uid)
for path in sys.argv[4:]:
    said = ""
    for letter, flag in zip("rwx", (os.R_OK, os.W_OK, os.X_OK)):
        said += letter if os.access(path, flag) else "-"
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read()
        said += " read"
    except PermissionError:
        said += " EACCES"
    print(said)
"""


def as_user(uid, gid, groups, *paths):
    out = subprocess.run([sys.executable, "-c", AS, str(uid), str(gid), ",".join(map(str, groups)), *map(str, paths)],
                         capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout.splitlines()


@pytest.fixture
def modes(scratch):
    """Files and directories of every class of modes."""
    root = scratch / "modes"
    root.mkdir()
    for mode in (0o400, 0o040, 0o004, 0o644, 0o755, 0o111, 0o000, 0o4755, 0o2755, 0o1644):
        path = root / f"f{mode:04o}"
        path.write_bytes(b"x")
        path.chmod(mode)
    for mode in (0o755, 0o700, 0o711, 0o744, 0o3777):
        path = root / f"d{mode:04o}"
        path.mkdir()
        (path / "f").write_bytes(b"x")
        path.chmod(mode)
    scratch.chmod(0o755)
    return root


@ROOT_ONLY
@pytest.mark.parametrize("who, uid, gid, groups, bits", [
    ("owner", 1001, 2001, [], 0o700), ("group", 1002, 1002, [2002, 2001], 0o070), ("other", 1002, 1002, [2002], 0o007)])
def test_modes_hold_for(mount, pack, modes, who, uid, gid, groups, bits):
    m = mount(pack(modes), "view=all,layout=tree,allow_other,uid=1001,gid=2001")
    names = sorted(p.name for p in modes.iterdir())
    shift = {0o700: 6, 0o070: 3, 0o007: 0}[bits]
    expected = []
    for name in names:
        mode = (int(name[1:], 8) & bits) >> shift
        can = "r" if mode & 4 else "-", "-", "x" if mode & 1 else "-"
        expected.append("".join(can) + (" read" if mode & 4 else " EACCES"))
    assert as_user(uid, gid, groups, *(m.path / n for n in names)) == expected
    inner = as_user(uid, gid, groups, *(m.path / n / "f" for n in names if n[0] == "d"))
    assert inner == ["r-- read" if (int(n[1:], 8) & bits) >> shift & 1 else "--- EACCES" for n in names if n[0] == "d"]


@ROOT_ONLY
def test_programs_run_as_modes_say_and_never_as_another_user(mount, pack, scratch):
    root = scratch / "programs"
    root.mkdir()
    for name, mode in (("run", 0o755), ("not", 0o644), ("suid", 0o6755)):
        (root / name).write_bytes(open("/usr/bin/id", "rb").read())
        (root / name).chmod(mode)
    scratch.chmod(0o755)
    m = mount(pack(root), "view=all,layout=tree,allow_other")
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    assert subprocess.run([m.path / "run", "-u"], capture_output=True, text=True, **nobody).stdout == "65534\n"
    assert subprocess.run([m.path / "suid", "-u"], capture_output=True, text=True, **nobody).stdout == "65534\n"
    assert fails(lambda: subprocess.run([m.path / "not"], **nobody)) == "EACCES"
    m.unmount()
    m = mount(pack(root), "view=all,layout=tree,allow_other,noexec")
    assert fails(lambda: subprocess.run([m.path / "run"])) == "EACCES"


# ---- links, types, names ----

@pytest.fixture
def nested(scratch):
    """Directories with 0, 1 and 3 subdirectories."""
    root = scratch / "nested"
    for path in ("a/x/f", "a/y/f", "a/z/f", "b/one/deep/f", "c/f", "common.csv"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return root


@pytest.mark.parametrize("options", ["view=all,layout=tree", "rank=1,world=2,layout=tree", "rank=0,world=2",
                                     "rank=all,world=2,layout=tree", "rank=all,world=2"])
def test_link_counts_and_listings_agree(mount, pack, nested, options):
    """A directory has 2 links and one for each subdirectory that is listed (find(1) counts on it), a file 1; d_type and
    d_ino are st_mode's and st_ino's; "." is the directory and ".." the one above."""
    m = mount(pack(nested), options)
    seen = 0
    views = [m.path / f"rank{rank}" for rank in range(2)] if "rank=all" in options else [m.path]
    for top in m.path, *(view / name for view in views for name in (".ddpfs", ".ddpfs/all", ".ddpfs/epoch")):
        for directory, subdirectories, _ in os.walk(top):
            here = os.stat(directory)
            hidden = 1 if top.name == "epoch" and directory == str(top) else 0
            assert here.st_nlink in (2 + len(subdirectories), 2 + len(subdirectories) + hidden), directory
            entries = {name: (ino, kind) for ino, _, kind, name in entries_of(directory)}
            assert entries["."] == (here.st_ino, stat.S_IFDIR >> 12)
            if directory != str(m.path):
                assert entries[".."] == (os.stat(os.path.join(directory, "..")).st_ino, stat.S_IFDIR >> 12)
            for name, (ino, kind) in entries.items():
                if name in (".", ".."):
                    continue
                st = os.lstat(os.path.join(directory, name))
                assert (ino, kind) == (st.st_ino, st.st_mode >> 12), name
                assert st.st_nlink == 1 or stat.S_ISDIR(st.st_mode)
                seen += 1
    assert seen >= 20


def test_errno_of_names(m, scratch):
    here = m.path / FILE
    (scratch / "loop").symlink_to("loop")
    (scratch / "link").symlink_to(here)
    os.symlink(m.path / DIRECTORY, scratch / "dir")
    expected = [
        (m.path / ("x" * 255), "ENOENT"), (m.path / ("x" * 256), "ENAMETOOLONG"),
        (m.path / DIRECTORY / ("\xff" * 128), "ENAMETOOLONG"),
        (os.path.join(m.path, *["x"] * 2100), "ENAMETOOLONG"), (os.path.join(m.path, *["."] * 2000, FILE), "done"),
        (f"{here}/", "ENOTDIR"), (f"{here}/.", "ENOTDIR"), (f"{here}/..", "ENOTDIR"), (f"{here}/x", "ENOTDIR"),
        (m.path / DIRECTORY / "..", "done"), (m.path / "", "done"), (f"{m.path}/nothing/", "ENOENT"),
        (scratch / "loop", "ELOOP"), (scratch / "link", "done"), (scratch / "dir" / "item_0005.bin", "done"),
    ]
    assert [(p, fails(lambda: os.stat(p))) for p, _ in expected] == expected
    assert fails(lambda: os.readlink(here)) == "EINVAL"
    assert fails(tries(scratch / "link", os.O_RDONLY | os.O_NOFOLLOW)) == "ELOOP"
    assert fails(tries(here, os.O_RDONLY | os.O_DIRECTORY)) == "ENOTDIR"
    assert fails(with_fd(m.path / DIRECTORY, os.O_RDONLY, lambda fd: os.read(fd, 1))) == "EISDIR"
    assert fails(tries(m.path / "new", os.O_RDONLY | os.O_DIRECTORY | os.O_CREAT)) in ("EINVAL", "EROFS")
    assert fails(lambda: os.chdir(here)) == "ENOTDIR"


def test_one_name_means_one_inode(m):
    """Names that only look alike are others."""
    for wrong in (FILE.upper(), FILE + " ", FILE + "\n", "class_00/ITEM_0005.bin", "class_0/item_0005.bin"):
        assert fails(lambda: os.stat(m.path / wrong)) == "ENOENT"
    for right in (f"{DIRECTORY}/../{FILE}", f"./{FILE}", FILE.replace("/", "//"), f".ddpfs/all/{FILE}"):
        assert os.stat(os.path.join(m.path, right)).st_ino == os.stat(m.path / FILE).st_ino


# ---- positions in listings ----

def entries_at(fd, size=32768):
    """One getdents64: [(inode, offset of the next, type, name)]."""
    buf = ctypes.create_string_buffer(size)
    n = libc.syscall(ctypes.c_long(217 if os.uname().machine == "x86_64" else 61), fd, buf, size)
    if n < 0:
        raise OSError(ctypes.get_errno(), "getdents64")
    found, at = [], 0
    while at < n:
        ino, off, length, kind = struct.unpack_from("<QqHB", buf, at)
        name = buf.raw[at + 19:at + length].split(b"\0", 1)[0]
        found.append((ino, off, kind, os.fsdecode(name)))
        at += length
    return found


def entries_of(directory, size=32768):
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = []
        while some := entries_at(fd, size):
            found += some
        return found
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def big_source(tmp_path_factory):
    root = tmp_path_factory.mktemp("big")
    (root / "d").mkdir()
    for i in range(1500):
        (root / "d" / f"{'x' * (i % 60)}{i}").touch()
    for i in range(50):
        (root / "d" / f"sub{i}").mkdir()
        (root / "d" / f"sub{i}/f").touch()
    (root / "labels.csv").touch()
    return root


@pytest.mark.parametrize("options, directory", [
    ("view=all,layout=tree", "d"), ("rank=0,world=2,layout=tree", "d"), ("rank=0,world=2", ""),
    ("view=all,layout=tree", ".ddpfs/all/d"), ("rank=1,world=2", ".ddpfs/epoch/7")])
def test_listings_go_on_from_any_position(mount, pack, big_source, options, directory):
    """telldir and seekdir: from each position that an entry gave, its successor follows, whatever the buffer's size, in
    another order, by another reader; rewinddir begins anew."""
    m = mount(pack(big_source), options + ",advance=off")
    path = m.path / directory
    whole = entries_of(path)
    names = [e[3] for e in whole]
    assert len(set(names)) == len(names) > 700 and len({e[1] for e in whole}) == len(whole)
    for size in (600, 4096, 1 << 20):
        assert entries_of(path, size) == whole
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2)]
    rng = random.Random(1)
    for i in range(300):
        at = rng.randrange(len(whole) - 1)
        fd = fds[i % 2]
        os.lseek(fd, whole[at][1], os.SEEK_SET)
        some = entries_at(fd, rng.choice((600, 5000)))
        assert some == whole[at + 1:at + 1 + len(some)] and some
    os.lseek(fds[0], whole[-1][1], os.SEEK_SET)
    assert entries_at(fds[0]) == []
    os.lseek(fds[0], 0, os.SEEK_SET)
    assert entries_at(fds[0])[:2] == whole[:2]
    assert fails(lambda: entries_at(fds[0], 16)) == "EINVAL"
    for fd in fds:
        os.close(fd)


def test_readers_of_one_directory_do_not_mix(mount, pack, big_source):
    """Pieces of a listing are made ahead: readers side by side, with buffers of several sizes, of two directories, see
    each its own."""
    m = mount(pack(big_source), "rank=0,world=2,order=full,advance=off")
    paths = [m.path, m.path / ".ddpfs/epoch/7", m.path / ".ddpfs/all/d"]
    whole = {path: entries_of(path) for path in paths}

    def read(i):
        path, size = paths[i % 3], (600, 4096, 1 << 20, 5000)[i % 4]
        return all(entries_of(path, size) == whole[path] for _ in range(10))

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert all(pool.map(read, range(24)))


def test_the_listing_size_follows_the_names(mount, pack, big_source):
    """What opendir(3) takes as its buffer's size: 192 bytes a name."""
    m = mount(pack(big_source), "view=all,layout=tree")
    assert os.stat(m.path).st_blksize == 4096
    assert os.stat(m.path / "d").st_blksize == 256 << 10
    assert os.stat(m.path / "d/sub0").st_blksize == 4096 == os.stat(m.path / "d/sub0/f").st_blksize
    flat = mount(pack(big_source), "rank=0,world=2")
    assert os.stat(flat.path).st_blksize == 256 << 10
    assert os.stat(flat.path / ".ddpfs/epoch/7").st_blksize == 256 << 10
    assert os.stat(flat.path / ".ddpfs").st_blksize == 4096


# ---- handles, as an NFS server uses them ----

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def handle_of(path):
    handle, mount_id = Handle(bytes=128), ctypes.c_int()
    call("name_to_handle_at", AT_FDCWD, path, ctypes.byref(handle), ctypes.byref(mount_id), 0)
    return handle


@contextlib.contextmanager
def opened(mountpoint, handle, flags=os.O_RDONLY):
    root = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = call("open_by_handle_at", root, ctypes.byref(handle), flags)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(root)


def by_handle(mountpoint, handle, flags=os.O_RDONLY):
    with opened(mountpoint, handle, flags) as fd:
        return os.fstat(fd).st_ino


@ROOT_ONLY
def test_handles_mean_the_same_in_every_mount_of_the_dataset(mount, pack, nested):
    """Taken from one mount, opened in another that has never heard of them: as after a restart of an NFS server."""
    dataset = pack(nested)
    first = mount(dataset, "view=all,layout=tree")
    second = mount(dataset, "view=all,layout=tree")
    for directory, _, names in os.walk(first.path):
        here = os.path.relpath(directory, first.path)
        with opened(second.path, handle_of(directory), os.O_RDONLY | os.O_DIRECTORY) as fd:
            assert sorted(os.listdir(fd)) == sorted(os.listdir(directory))
            assert os.path.normpath(os.readlink(f"/proc/self/fd/{fd}")) == os.path.normpath(second.path / here)
        for name in names:
            with opened(second.path, handle_of(os.path.join(directory, name))) as fd:
                assert os.read(fd, 10) == b"x"
                assert os.fstat(fd).st_ino == os.stat(os.path.join(directory, name)).st_ino


def handles_below(mountpoint):
    """[(handle, inode, content of a file or None of a directory)] of all that is listed."""
    found = []
    for directory, _, names in os.walk(mountpoint):
        found.append((handle_of(directory), os.stat(directory).st_ino, None))
        for path in (os.path.join(directory, name) for name in names):
            with open(path, "rb") as f:
                found.append((handle_of(path), os.fstat(f.fileno()).st_ino, f.read()))
    return found


def open_all(mountpoint, handles):
    for handle, inode, content in handles:
        with opened(mountpoint, handle) as fd:
            assert os.fstat(fd).st_ino == inode
            if content is None:
                os.listdir(fd)
            else:
                assert os.pread(fd, len(content) + 1, 0) == content


@ROOT_ONLY
@pytest.mark.parametrize("options", ["view=all,layout=tree", "rank=0,world=1,advance=off"])
def test_handles_outlast_servers_epochs_and_what_the_kernel_forgets(mount, pack, tree, options):
    """An NFS client keeps a handle as long as it likes: the server may be another one by then, the names another epoch's, and
    the kernel may have dropped the inode."""
    m = mount(pack(tree[0]), options)
    handles = handles_below(m.path)
    assert sum(content is not None for _, _, content in handles) == len(tree[1])
    open_all(m.path, handles)
    first = m.server_pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: m.server_pid() != first)
    open_all(m.path, handles)
    if "rank" in options:
        assert ask(m, "epoch", set=7)["epoch"] == 7
        assert all(name.startswith("0007-") for name in os.listdir(m.path) if name[0].isdigit())
        open_all(m.path, handles)

    def forgotten():
        """Whether the kernel had to ask for files that it had known."""
        before = settled(m)["lookups"]
        with open(DROP_CACHES, "w", encoding="ascii") as f:
            f.write("2")
        open_all(m.path, handles)
        return stats(m)["lookups"] - before

    if not os.access(DROP_CACHES, os.W_OK):
        pytest.skip(f"{DROP_CACHES} cannot be written here")
    assert wait_until(forgotten, "a file that the kernel had dropped") > 0


@ROOT_ONLY
def test_handles_of_nothing_are_estale(m):
    handle = handle_of(m.path / FILE)
    good = bytes(handle.data)
    for inode in (0, 2, 1 << 30, (1 << 48) + 5, (1 << 63) + 1, (1 << 64) - 1, *(1 << i for i in range(10, 64, 7))):
        for generation in (0, 1):
            struct.pack_into("<III", handle.data, 0, inode >> 32, inode & 0xffffffff, generation)
            said = fails(lambda: by_handle(m.path, handle))
            assert said in ("ESTALE", "EISDIR", "done"), hex(inode)
            if generation == 1:
                assert said == "ESTALE"
    handle.data[:] = good
    with opened(m.path, handle) as fd:
        assert os.pread(fd, 1 << 20, 0) == (m.path / FILE).read_bytes()
    assert fails(lambda: by_handle(m.path, handle, os.O_WRONLY)) == "EROFS"


@ROOT_ONLY
def test_handles_of_hidden_names_are_right_or_estale(mount, pack, nested):
    """A directory that its parent does not list is found by handle only as long as the kernel knows it."""
    dataset = pack(nested)
    first, second = (mount(dataset, "view=all,layout=tree") for _ in range(2))
    for name in ("", "all", "all/a", "all/a/x", "all/c/f", "epoch", "epoch/0", "epoch/9", "epoch/3.list", "stats.json",
                 "state"):
        path = first.path / ".ddpfs" / name
        handle, inode = handle_of(path), os.stat(path).st_ino
        assert by_handle(first.path, handle) == inode
        try:
            assert by_handle(second.path, handle) == inode
        except OSError as e:
            assert e.errno == errno.ESTALE


# ---- owners and modes as asked ----

def everything_below(mountpoint):
    """Every kind of node that a mount shows."""
    hidden = (".ddpfs", ".ddpfs/all", ".ddpfs/epoch", ".ddpfs/epoch/0", ".ddpfs/epoch/0.list", ".ddpfs/epoch/0.list0",
              ".ddpfs/stats.json", ".ddpfs/metrics", ".ddpfs/state")
    yield mountpoint
    yield from (mountpoint / name for name in hidden)
    for top in (mountpoint, mountpoint / ".ddpfs/all"):
        for directory, subdirectories, files in os.walk(top):
            yield from (mountpoint / directory / name for name in subdirectories + files)


@pytest.mark.parametrize("layout", ["rank=0,world=1", "view=all,layout=tree"])
@pytest.mark.parametrize("options, uid, gid, umask", [
    ("", None, None, 0), ("uid=1001", 1001, None, 0), ("gid=2001", None, 2001, 0), ("umask=0027", None, None, 0o027),
    ("uid=nobody,gid=daemon,umask=777", 65534, 1, 0o777), ("uid=2147483647,gid=0,umask=0", 2147483647, 0, 0)])
def test_owner_group_and_mask_hold_for_all(mount, pack, modes, options, uid, gid, umask, layout):
    """uid=, gid=, umask= are about everything that is shown; what is not given is the mounting user's.  Modes are the
    sources' without set-id bits and the mask's; what has no source is 0755 and 0444."""
    dataset = pack(modes)
    mask = os.umask(0o077)  # the process's own is not taken
    try:
        m = mount(dataset, ",".join(filter(None, (layout, options))))
    finally:
        os.umask(mask)
    uid, gid = os.geteuid() if uid is None else uid, os.getegid() if gid is None else gid
    seen = 0
    for path in everything_below(m.path):
        st = os.lstat(path)
        assert (st.st_uid, st.st_gid) == (uid, gid), path
        name = os.path.basename(path)
        if "/epoch" not in str(path) and (source := modes / name.split("-", 2)[-1].replace("%2F", "/")).exists():
            expected = os.stat(source).st_mode & 0o1777
        elif path == m.path and "tree" in layout or name == "all":
            expected = os.stat(modes).st_mode & 0o1777
        else:
            expected = 0o755 if stat.S_ISDIR(st.st_mode) else 0o444
            assert ".ddpfs" in str(path) or path == m.path or name == "f"
            expected = 0o644 if name == "f" else expected
        assert stat.S_IMODE(st.st_mode) == expected & ~umask, path
        seen += 1
    assert seen > 40
