# SPDX-License-Identifier: Apache-2.0
"""Errors of the Python module name parameters as Python has them, not options of a command line or fields of C."""

import re
import sys

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import tools  # noqa: E402

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402

FOREIGN = re.compile(r"(^|\s)-o\s|(^|[\s'`])--[a-z]|--help|\bTry\b|memory_bytes|device_bytes|options\.|/proc/self/fd|"
                     "-FILE")


@pytest.fixture(autouse=True)
def programs(build_dir, monkeypatch):
    monkeypatch.setenv("DDPFS_STAGE_LIB", str(build_dir / "gpu_stage" / "libddpfs_stage.so"))
    monkeypatch.setenv("DDPFS_PROGRAM", str(build_dir / "tools" / "ddpfs"))


@pytest.fixture
def dataset(pack, tree):
    return pack(tree[0])


def said(call):
    with pytest.raises((OSError, RuntimeError, ValueError)) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(("options", "says"), [
    ({}, "rank=R,world=W"), ({"rank": 0}, "world=W"), ({"world": 2}, "rank=R"), ({"rank": 2, "world": 2}, "rank=2"),
    ({"rank": "a", "world": 1}, "rank=a"), ({"view": "x"}, "view"),
    ({"view": "all", "rank": 0, "world": 1}, "view=all"),
    ({"rank": 0, "world": 1, "foo": 3}, r"'foo': ddpfs\(1\)"), ({"rank": 0, "world": 1, "memory": "1K"}, "memory"),
    ({"rank": 0, "world": 1, "order": "x"}, "order=x"), ({"rank": 0, "world": 1, "seed": -1}, "seed=-1"),
    ({"rank": 0, "world": 1, "state": "{}"}, "state="), ({"rank": 0, "world": 1, "subdir": "none"}, "subdir"),
], ids=str)
def test_a_mount_that_is_refused(dataset, options, says):
    def mount():
        with ddpfs.mounted(dataset, **options):
            pass

    text = said(mount)
    assert re.search(says, text) and not FOREIGN.search(text), text


def test_a_mount_that_is_asked_for_what_it_has_not(dataset, mount):
    with ddpfs.mounted(dataset, rank=0, world=1) as place:
        for call, says in ((lambda: place.state(0, -1), "trained"), (lambda: place.state(0, 1 << 40), "trained"),
                           (lambda: place.state("x", 1), "epoch"), (lambda: place.set_epoch(-1), "-1"),
                           (lambda: place.set_epoch("a"), "epoch")):
            text = said(call)
            assert says in text and not FOREIGN.search(text), text


@pytest.mark.parametrize(("options", "says"), [
    ({"memory": 1}, "memory"), ({"order": "x"}, "order=x"), ({"rank": 3, "world": 2}, "rank 3"),
    ({"on_bad": "x"}, "on_bad=x"), ({"state": "{}"}, "state"), ({"subdir": "nope"}, "subdir"),
    ({"start": 10**9}, "start"), ({"backend": "x"}, "backend"),
], ids=str)
def test_a_stage_that_is_refused(dataset, options, says):
    text = said(lambda: ddpfs.Stage(dataset, **{"memory": "64M", **options}).next())
    assert says in text and not FOREIGN.search(text), text
