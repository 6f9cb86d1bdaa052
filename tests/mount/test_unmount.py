# SPDX-License-Identifier: Apache-2.0
"""Unmounting is never refused because of what the server itself does with its mount."""

import collections
import ctypes
import errno
import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from helpers import datasets, tools
from helpers.private import Private
from helpers.waiting import wait_until

MNT_EXPIRE = 4  # <sys/mount.h>


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs")
def test_what_others_mounted_over_it_stays(pack, tree, mount):
    """Its end takes away its own mount or nothing."""
    m = mount(pack(tree[0]), "view=all")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", m.path], check=True)
    try:
        (m.path / "theirs").write_text("stays")
        m.process.terminate()
        assert m.process.wait() == 0, m.log()
        assert (m.path / "theirs").read_text() == "stays"
    finally:
        subprocess.run(["umount", m.path], check=True)
    subprocess.run(["umount", m.path], check=True)  # dead, and in nobody's way any more


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts over it")
@pytest.mark.parametrize("over", ["itself", "above", "above, with a directory of its name"])
def test_umount_by_pid_of_what_is_mounted_over(scratch, pack, tree, mount, over):
    dataset = pack(tree[0])
    place = scratch / "above" / "mnt"
    place.mkdir(parents=True)
    m = mount(dataset, "rank=0,world=1", mountpoint=place)
    hidden = place if over == "itself" else place.parent
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", hidden], check=True)
    try:
        if "name" in over:
            place.mkdir()
        done = tools.ddpfs("umount", f"@{m.process.pid}", check=False)
        assert done.returncode == 1 and "mounted over it" in done.stderr, done.stderr
    finally:
        subprocess.run(["umount", hidden], check=True)
    assert len(os.listdir(place)) > 0
    tools.ddpfs("umount", f"@{m.process.pid}")
    assert m.process.wait() == 0


@pytest.fixture
def many(scratch, pack):
    """A packed dataset of more small files than a server looks up in the time that a test takes to call umount(8)."""
    archive = scratch / "many.tar"  # the kernel makes one file of it, not 20,000
    with tarfile.open(archive, "w") as tar:
        for number in range(20_000):
            member = tarfile.TarInfo(f"class_{number % 20:02}/item_{number:05}.bin")
            member.size = 4096
            tar.addfile(member, io.BytesIO(bytes([number % 256]) * 4096))
    return pack(archive)


def read_some(mountpoint, n):
    """What a trainer opens that is stopped in mid-epoch."""
    for path in (mountpoint / ".ddpfs/epoch/0.list").read_text().splitlines()[:n]:
        (mountpoint / path).read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="the server keeps off its own mount with a privilege that only root has")
@pytest.mark.parametrize("layout", ["tree", "flat"])
def test_umount_right_after_mounting_is_not_busy(scratch, pack, mount, layout):
    """The server lists, looks up and watches most in its first moments."""
    source = scratch / "source"
    datasets.write_tree(source, classes=200, per_class=25, sizes=(100,))
    dataset = pack(source)
    for number in range(8):
        m = mount(dataset, f"rank=0,world=2,seed={number},layout={layout}")
        subprocess.run(["umount", m.path], check=True)
        assert m.process.wait() == 0, m.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="the server keeps off its own mount with a privilege that only root has")
def test_umount_in_mid_epoch_is_not_busy(many, mount):
    """A trainer stops, and the server looks up the names of what would come next."""
    for number in range(10):
        m = mount(many, f"rank=0,world=1,layout=tree,memory=512M,seed={number}")
        read_some(m.path, 300)
        subprocess.run(["umount", m.path], check=True)
        assert m.process.wait() == 0, m.log()


def lookups(root):
    """How many names were looked up, as the statistics say; `root` is a descriptor of the mount's root."""
    with open(os.open(".ddpfs/stats.json", os.O_RDONLY, dir_fd=root), "rb") as stats:
        return json.loads(stats.read().rstrip(b"\0 \n"))["lookups"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the server keeps off its own mount with a privilege that only root has")
def test_looking_names_up_never_makes_the_mount_busy(many, mount):
    """MNT_EXPIRE says EBUSY as an unmount would, and EAGAIN if it is not; what uses the mount then takes the mark away."""
    m = mount(many, "rank=0,world=1,layout=tree,memory=512M")
    read_some(m.path, 300)
    libc, said = ctypes.CDLL(None, use_errno=True), collections.Counter()
    while said.total() < 5000:
        assert libc.umount2(bytes(m.path), MNT_EXPIRE) == -1
        said[ctypes.get_errno()] += 1
        os.stat(m.path)
    assert set(said) == {errno.EAGAIN}, said
    m.unmount()


@pytest.mark.skipif(os.geteuid() != 0, reason="the server keeps off its own mount with a privilege that only root has")
def test_names_are_looked_up_without_a_walk_to_the_mountpoint(many, mount):
    """Such a walk makes umount(8) fail if it comes at that moment.  Here walks to the mountpoint end in a tmpfs."""
    m = mount(many, "rank=0,world=1,layout=tree,memory=512M")
    root = os.open(m.path, os.O_RDONLY | os.O_DIRECTORY)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", m.path], check=True)
    try:
        before = lookups(root)
        with open(os.open(".ddpfs/epoch/0.list", os.O_RDONLY, dir_fd=root)) as names:
            paths = names.read().splitlines()
        for path in paths[:300]:
            os.close(os.open(path, os.O_RDONLY, dir_fd=root))
        wait_until(lambda: lookups(root) > before + 2000, "names are looked up ahead")
    finally:
        os.close(root)
        subprocess.run(["umount", m.path], check=True)
    m.unmount()


AS_NOBODY = """
import json, subprocess, sys, time
from pathlib import Path

ddpfs, dataset, mountpoint = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def lookups():
    return json.loads((mountpoint / ".ddpfs/stats.json").read_bytes().rstrip(b"\\0 \\n"))["lookups"]

for number in range(3):
    options = f"rank=0,world=1,layout=tree,memory=512M,seed={number}"
    subprocess.run([ddpfs, "mount", "-o", options, dataset, mountpoint], check=True)
    for path in (mountpoint / ".ddpfs/epoch/0.list").read_text().splitlines()[:300]:
        (mountpoint / path).read_bytes()
    before = -1
    while before != lookups():
        before = lookups()
        time.sleep(0.3)
    print("looked up", before)
    subprocess.run(["fusermount3", "-u", mountpoint], check=True)
    while any(str(mountpoint) == line.split()[1] for line in open("/proc/mounts")):
        time.sleep(0.01)
"""


def test_a_user_who_unmounts_what_nobody_reads_is_not_refused(many, build_dir, scratch):
    """Without CAP_SYS_ADMIN a look-up makes the mount busy: there are none while its trainer stands still."""
    private = Private(scratch)
    mountpoint = private.directory_of_nobody("mnt")
    program = private.directory / "program.py"
    program.write_text(AS_NOBODY)
    done = private.run(f"$nobody {sys.executable} {program} $ddpfs {many} {mountpoint}")
    looked_up = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    # Some are looked up until 0.1 s after the last open: on a busy machine these can be most.
    assert len(looked_up) == 3 and min(looked_up) < 20_000, looked_up
