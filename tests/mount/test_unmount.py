"""Unmounting is never refused because of what the server itself does with its mount."""

import os
import subprocess

import pytest

from helpers import datasets


@pytest.mark.skipif(os.geteuid() != 0, reason="the server keeps off its own mount with a privilege that only root has")
def test_umount_right_after_mounting_is_not_busy(scratch, pack, mount):
    source = scratch / "source"
    datasets.write_tree(source, classes=10, per_class=500, sizes=(100,))
    dataset = pack(source)
    for number in range(15):  # the server lists ahead most in its first moments
        m = mount(dataset, f"rank=0,world=2,seed={number}")
        done = subprocess.run(["umount", m.path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert m.process.wait() == 0, m.log()
