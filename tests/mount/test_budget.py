# SPDX-License-Identifier: Apache-2.0
"""The budget of a mount without `memory=`: what its dataset can use, within half of what host and cgroup leave free."""

import contextlib
import io
import random
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from helpers import datasets, mounts, tools
from helpers.waiting import wait_until
from mount.control import directory, stats

MIB = 1 << 20
MOST_OVER = 1.1  # more than the contents: names, landing memory
ALL = "all that the dataset can use"


def write_tar(path, dirs, per_dir):
    """Files of 100 bytes.  Returns their paths."""
    paths = [f"c{d:02d}/{i:04d}" for d in range(dirs) for i in range(per_dir)]
    with tarfile.open(path, "w") as tar:
        for name in paths:
            member = tarfile.TarInfo(name)
            member.size = 100
            tar.addfile(member, io.BytesIO(name.encode().ljust(100)))
    return paths


@pytest.fixture
def dataset(scratch, pack):
    """60 MB in 600 files, and what a mount of it wants at least."""
    files = datasets.write_tree(scratch / "source", classes=6, per_class=100, sizes=(100_000,))
    return pack(scratch / "source"), sum(len(content) for content in files.values())


def why(m):
    return stats(m)["memory_why"]


def test_a_small_dataset_has_all_that_it_can_use(mount, dataset):
    path, content_bytes = dataset
    m = mount(path, "view=all,layout=tree")
    now = stats(m)
    assert now["memory_why"] == ALL
    assert content_bytes < now["memory_bytes"] < MOST_OVER * content_bytes + 128 * MIB


def test_a_given_budget_is_kept(mount, dataset):
    now = stats(mount(dataset[0], "view=all,layout=tree,memory=96M"))
    assert now["memory_bytes"] == 96 * MIB and now["memory_why"] == "memory= was given"


def test_other_mounts_of_small_datasets_take_nothing_away(mount, dataset, tree, pack):
    tiny = pack(tree[0])
    others = [mount(tiny, f"view=all,layout=tree,seed={i}") for i in range(3)]
    m = mount(dataset[0], "view=all,layout=tree")
    for one in (m, *others):
        wait_until(lambda: why(one) == ALL, "the budget that it wants")


def test_a_budget_shrinks_and_grows_with_what_the_cgroup_leaves(cgroup, scratch, mount, dataset):
    path, content_bytes = dataset
    limited = cgroup(400 * MIB)
    with limited.inside():
        m = mount(path, f"view=all,layout=tree,log_level=debug,log={scratch / 'log'}")
        wait_until(lambda: why(m) == ALL, "the budget that it wants")
        hog = subprocess.Popen([sys.executable, "-c", "import sys; held = b'x' * (240 << 20); print('has it', flush=True); "
                                "sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        hog.stdout.readline()
        wait_until(lambda: stats(m)["memory_bytes"] < content_bytes + 32 * MIB and "leave" in why(m), "a smaller budget")
    finally:
        hog.communicate()
    wait_until(lambda: why(m) == ALL and stats(m)["memory_bytes"] > content_bytes + 64 * MIB, "the budget that it wants")
    said = [line for line in (scratch / "log").read_text().splitlines() if line.startswith("ddpfs: debug: memory: ")]
    assert len(said) >= 2 and said[-1].endswith(ALL), "log_level=debug tells each change"
    m.unmount()


def test_mounts_of_a_cgroup_share_what_it_leaves(cgroup, scratch, pack, mount, dataset):
    """Two of them, of different datasets, cannot have what each wants; when one has ended, the other one has it."""
    path, content_bytes = dataset
    other = pack(scratch / "source")
    limited = cgroup(560 * MIB)
    with limited.inside():
        first = mount(path, "view=all,layout=tree")
        wait_until(lambda: why(first) == ALL, "the budget that it wants")
        second = mount(other, "view=all,layout=tree")
        for m in (first, second):
            wait_until(lambda: "2 mounts in use" in why(m), "a shared budget")
    second.unmount()
    wait_until(lambda: why(first) == ALL, "the budget that it wants")
    first.unmount()


def test_names_of_listed_directories_count_once(cgroup, scratch, pack, mount):
    """They are charged to the cgroup, and the budget has room for them: what they take is not taken once more."""
    paths = write_tar(scratch / "source.tar", dirs=2000, per_dir=20)  # the next turns have few files of each
    dataset = pack(scratch / "source.tar")
    names_bytes = len(paths) * 1490  # 60 MB
    random.Random(1).shuffle(paths)
    (scratch / "order").write_text("\n".join(paths))
    limited = cgroup(300 * MIB)
    with limited.inside():
        m = mount(dataset, "view=all,layout=tree")
    tools.ddpfs("ctl", m.path, "follow", scratch / "order")
    # Nobody reads, so only the directories of the first window are listed.
    wait_until(lambda: (now := stats(m))["idle"] and now["names_bytes"] > names_bytes * 0.4, "listed directories")
    listed = stats(m)["names_bytes"]
    time.sleep(3)  # the budget is looked at every 2 s
    left = float(re.search(r"([0-9.]+) MiB", why(m))[1]) * MIB
    assert left > 300 * MIB - limited.anon_bytes() - listed / 2
    m.unmount()


def greeter_of(m):
    """The process that finds the other mounts, and tells the server of them (fs/host_sharing.h)."""
    found = []
    for child in Path(f"/proc/{m.process.pid}/task/{m.process.pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has just ended
            found += [child] if Path(f"/proc/{child}/comm").read_text() == "ddpfs-greeter\n" else []
    return found


@pytest.mark.parametrize("hidden", [False, True], ids=["seen", "hidden"])
def test_a_mount_whose_server_is_dead_takes_nothing_away(cgroup, scratch, pack, mount, dataset, hidden):
    dead = mount(pack(scratch / "source"), "view=all,layout=tree")
    mounts.kill_with_supervisor(dead.process.pid, dead.server_pid())
    dead.process.wait()
    if hidden:  # below another mount, where nobody can ask it
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", dead.path], check=True)
    try:
        with cgroup(560 * MIB).inside():
            m = mount(dataset[0], "view=all,layout=tree")
            # It removes the dead one's socket first.
            wait_until(lambda: not (directory() / f"{dead.process.pid}.sock").exists() and not greeter_of(m), "the end of the greeter")
            assert why(m) == ALL
            m.unmount()
    finally:
        if hidden:
            subprocess.run(["umount", dead.path], check=True)
        subprocess.run(["umount", "-l", dead.path], check=True)
