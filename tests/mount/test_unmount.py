"""Unmounting is never refused because of what the server itself does with its mount."""

import os
import subprocess

import pytest

from helpers import datasets, tools


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


@pytest.mark.skipif(os.geteuid() != 0, reason="the server keeps off its own mount with a privilege that only root has")
def test_umount_right_after_mounting_is_not_busy(scratch, pack, mount):
    source = scratch / "source"
    datasets.write_tree(source, classes=10, per_class=500, sizes=(100,))
    dataset = pack(source)
    refused = 0
    for number in range(15):  # the server lists ahead most in its first moments
        m = mount(dataset, f"rank=0,world=2,seed={number}")
        done = subprocess.run(["umount", m.path], capture_output=True, text=True)
        if done.returncode != 0:  # it holds the mount for the microseconds of a lookup, once a listing (fs/sink.c)
            assert "busy" in done.stderr, done.stderr
            refused += 1
            m.unmount()
        assert m.process.wait() == 0, m.log()
    assert refused <= 3
