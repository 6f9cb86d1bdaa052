# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all Python tests.  `tests/run` runs them; by hand: `pytest tests/mount` with a build in build/."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from helpers import datasets, mounts, tools
from helpers.cgroup import Cgroup

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # a shell starts background jobs with SIGINT ignored
HANG_SECONDS = 300  # a test that takes this long hangs: its mounts are aborted so that it fails and the run goes on


def pytest_addoption(parser):
    parser.addoption("--trainers", action="store_true", help="also run the tests marked `trainers`")


def pytest_configure(config):
    def interrupted(_signum, _frame):
        raise KeyboardInterrupt  # so that every fixture's cleanup runs

    def forked():  # a worker that is terminated ends, also where an exception would be lost (in a __del__)
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)

    for number in ENDING:
        signal.signal(number, interrupted)
    os.register_at_fork(after_in_child=forked)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--trainers"):
        return
    kept = [item for item in items if not item.get_closest_marker("trainers")]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(scope="session")
def build_dir():
    """The build under test; the test fails (it is not skipped) when there is none."""
    build = tools.build_dir()
    assert (build / "build.ninja").exists(), f"no build in {build}: meson setup build && ninja -C build"
    return build


@pytest.fixture(autouse=True)
def sanitizers():
    """tests/run --sanitize: what a sanitizer reported of any program of the test, a server's successor included, fails it."""
    reports = os.environ.get("DDPFS_REPORTS")
    before = set(os.listdir(reports)) if reports else set()
    yield
    said = [(Path(reports) / name).read_text(errors="replace") for name in sorted(set(os.listdir(reports)) - before)] \
        if reports else []
    assert not said, "\n".join(said)


@pytest.fixture
def compared(record_property):
    """compared(name, version): the test compares with this library.  tests/run prints the versions at its end."""
    return lambda name, version: record_property("compared", f"{name} {version}")


@pytest.fixture
def scratch():
    """A directory for one test, with a short path (mountpoints, sockets), emptied of mounts and removed at the end."""
    place = Path(tempfile.mkdtemp(prefix="ddpfs-test."))
    with mounts.Watchdog(place, HANG_SECONDS) as watchdog:
        yield place
    left = mounts.force_unmount(place)
    shutil.rmtree(place, ignore_errors=True)
    assert not watchdog.fired, f"the test hung: its mounts were aborted after {HANG_SECONDS} s"
    assert not left, f"the test left mounts behind: {left}"


@pytest.fixture
def pack(build_dir, scratch):
    """pack(source, *options) -> path of a new dataset packed from `source`."""
    made = []

    def make(source, *options):
        dataset = scratch / f"dataset{len(made)}"
        tools.mkshard("pack", *options, source, dataset)
        made.append(dataset)
        return dataset

    return make


@pytest.fixture
def mount(build_dir, scratch):
    """mount(dataset, "rank=0,world=2") -> Mount with .path, .process, .log(), .unmount(); undone at the end."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    mounter = mounts.Mounter(scratch)
    yield mounter
    complaints = mounter.close()
    assert not complaints, "\n".join(complaints)


@pytest.fixture
def tree(scratch):
    """(directory, {path: bytes}): 100 files in 5 classes with sizes at the edges."""
    root = scratch / "tree"
    return root, datasets.write_tree(root)


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """scikit-learn's digits as an image folder: train/<digit>/*.png, val/<digit>/*.png."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pytest.importorskip("PIL", reason="Pillow is not installed")
    from trainers.make_digits import write

    root = tmp_path_factory.mktemp("digits")
    write(root)
    return root


@pytest.fixture
def cgroup():
    """cgroup(limit_bytes): a memory cgroup with this limit (helpers/cgroup.py)."""
    made = []

    def make(limit):
        made.append(Cgroup(limit))
        return made[-1]

    yield make
    for one in made:
        one.close()
