# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of ddpfs's subcommands."""

import subprocess

import pytest

from helpers import datasets, mounts, tools
from helpers.private import Private


@pytest.fixture
def private(build_dir, scratch):
    return Private(scratch)


@pytest.fixture
def dataset(pack, tree):
    """A packed dataset of 100 files in 5 classes."""
    return pack(tree[0])


@pytest.fixture
def mountpoint(scratch):
    path = scratch / "mnt"
    path.mkdir()
    return path


@pytest.fixture
def background(scratch):
    """background(dataset, mountpoint, options, *arguments): `ddpfs mount` as a user does it; unmounted at the end."""
    made = []

    def mount(dataset, mountpoint, options="rank=0,world=2", *arguments, **kwargs):
        made.append(mountpoint)
        return tools.ddpfs("mount", "-o", options, *arguments, dataset, mountpoint, **kwargs)

    yield mount
    for path in made:
        if mounts.is_mounted(path):
            subprocess.run(["umount", "-l", path], check=True)


def count(path):
    return len(datasets.read_tree(path))
