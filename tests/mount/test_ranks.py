# SPDX-License-Identifier: Apache-2.0
"""Several ranks in one mount: each is what a mount of that rank alone shows, and goes on by itself."""

import json
import mmap
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from helpers import mounts, tools
from helpers.datasets import read_tree
from helpers.waiting import wait_until
from mount import control
from mount.test_epochs import epoch_of
from mount.test_flat import dealt

WORLD = 4


def ranks_of(m, world=WORLD):
    return [m.path / f"rank{rank}" for rank in range(world)]


def listing(path):
    """{path below: inode number or None for directories} of a directory, without .ddpfs."""
    found = {}
    for directory, dirs, files in os.walk(path):
        for name in files + dirs:
            full = os.path.join(directory, name)
            found[os.path.relpath(full, path)] = None if name in dirs else os.stat(full).st_ino
    return found


def read_all(path):
    for name in sorted(os.listdir(path)):
        (path / name).read_bytes()


def read_from_server(path):
    """Reads a file past the page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    os.readv(fd, [mmap.mmap(-1, 4096)])
    os.close(fd)


def ctl(path, *words):
    return json.loads(tools.ddpfs("ctl", "--json", path, *words).stdout)


def test_the_root_lists_the_ranks(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD}")
    assert sorted(os.listdir(m.path)) == [f"rank{r}" for r in range(WORLD)]
    for path in ranks_of(m):
        assert os.stat(path / "..").st_ino == os.stat(m.path).st_ino == 1
        assert os.stat(path / ".").st_ino == os.stat(path).st_ino
    assert not (m.path / ".ddpfs").exists() and not (m.path / "rank4").exists() and not (m.path / "rank01").exists()
    assert os.stat(m.path).st_nlink == 2 + WORLD


def test_a_range_shows_the_ranks_of_a_host(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=4-5,world=8,seed=2")
    assert sorted(os.listdir(m.path)) == ["rank4", "rank5"]
    alone = mount(pack(tree[0]), "rank=5,world=8,seed=2")
    assert os.listdir(m.path / "rank5") == os.listdir(alone.path)


@pytest.mark.parametrize("layout", ["flat", "tree"])
@pytest.mark.parametrize("order", ["full", "chunk", "torch"])
def test_each_rank_is_what_its_own_mount_shows(mount, pack, tree, layout, order):
    dataset = pack(tree[0])
    options = f"world={WORLD},seed=5,layout={layout},order={order}"
    m = mount(dataset, f"rank=0-{WORLD - 1},{options}")
    for rank, path in enumerate(ranks_of(m)):
        alone = mount(dataset, f"rank={rank},{options}")
        for epoch in 0, 3:
            control.ask(alone, "epoch", set=epoch)
            ctl(path, "epoch", epoch)
            assert os.listdir(path) == os.listdir(alone.path)
            assert listing(path) == listing(alone.path)  # inode numbers of files, too
        for name in "all", "epoch/2":
            assert sorted(os.listdir(path / ".ddpfs" / name)) == sorted(os.listdir(alone.path / ".ddpfs" / name))
        for name in "epoch/2.list", "state":
            assert (path / ".ddpfs" / name).read_bytes() == (alone.path / ".ddpfs" / name).read_bytes()
        assert os.getxattr(path, "user.ddpfs.view") == os.getxattr(alone.path, "user.ddpfs.view")
        assert read_tree(path / ".ddpfs/all") == tree[1]
        alone.unmount()


@pytest.mark.parametrize("world", [1, 3, 7])
def test_ranks_partition_the_set(mount, pack, tree, world):
    m = mount(pack(tree[0]), f"rank=all,world={world},seed=3,tail=short")
    for epoch in 0, 1:
        ctl(m.path, "epoch", epoch)
        seen = [step for path in ranks_of(m, world) for step in dealt(path)]
        assert [step for step, _ in sorted(seen)] == list(range(len(tree[1])))
        assert sorted(path for _, path in seen) == sorted(tree[1])


def test_files_are_right_in_every_rank(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD}")
    for path in ranks_of(m):
        for (_, name), entry in zip(dealt(path), sorted(os.listdir(path))):
            assert (path / entry).read_bytes() == tree[1][name]


def test_a_file_is_one_inode_in_all_ranks(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},layout=tree")
    name = sorted(tree[1])[0]
    assert len({os.stat(path / name).st_ino for path in ranks_of(m)}) == 1
    assert len({os.stat(path / ".ddpfs/all").st_ino for path in ranks_of(m)}) == WORLD
    one, other = ranks_of(m)[:2]
    assert os.getxattr(one / name, "user.ddpfs.position")
    ctl(other, "epoch", 1)
    with pytest.raises(OSError, match="No data"):  # in which rank?
        os.getxattr(one / name, "user.ddpfs.position")


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_epochs_advance_in_each_rank_by_itself(mount, pack, tree, layout):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7,layout={layout}")
    zero, one = ranks_of(m)[:2]
    before = listing(zero)
    for name in sorted(listing(one)):
        if (one / name).is_file():
            (one / name).read_bytes()
    os.listdir(one)
    assert ctl(one, "epoch")["epoch"] == 1 and ctl(zero, "epoch")["epoch"] == 0
    assert ctl(zero, "epoch")["opened"] == 0
    assert listing(zero) == before


def test_epoch_and_advance_are_set_for_one_rank_or_for_all(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7")
    paths = ranks_of(m)
    assert ctl(paths[2], "epoch", 5)["epoch"] == 5
    assert [epoch_of(path) for path in paths] == [0, 0, 5, 0]
    assert ctl(m.path, "epoch") == {"epoch": 0, "turns": len(tree[1]), "opened": 0, "advance": "off"}  # of all
    ctl(m.path, "epoch", 9)
    assert [epoch_of(path) for path in paths] == [9] * WORLD
    ctl(paths[1], "advance", "auto")
    for path in paths:
        read_all(path)
    assert [epoch_of(path) for path in paths] == [9, 10, 9, 9]


def test_the_state_of_one_rank_is_its_own(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7")
    paths = ranks_of(m)
    ctl(paths[3], "state", 40)
    states = [json.loads((path / ".ddpfs/state").read_text()) for path in paths]
    assert [s["start"] for s in states] == [0, 0, 0, 40]
    ctl(m.path, "state", 60)
    states = [json.loads((path / ".ddpfs/state").read_text()) for path in paths]
    assert [s["start"] for s in states] == [60] * WORLD


def test_statistics_of_one_rank_and_of_all(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7", env={"DDPFS_TEST_PAIR_MS": "600000"})
    paths = ranks_of(m)
    names = sorted(os.listdir(paths[3]))
    for name in names[:7]:
        (paths[3] / name).read_bytes()
    (paths[1] / sorted(os.listdir(paths[1]))[0]).read_bytes()

    for target in paths[3], paths[3] / ".ddpfs", paths[3] / names[0]:  # a directory of it, and a file in it
        of = tools.stat_json(target)
        assert (of["rank"], of["world"], of["ranks"], of["opened"], of["opens"]) == (3, WORLD, 1, 7, 7)
        assert of["hits"] + of["misses"] == of["opens"] and of["turns"] == len(names)
    of = tools.stat_json(m.path)
    assert (of["rank"], of["ranks"], of["opened"], of["opens"]) == (0, WORLD, 8, 8)
    assert of["turns"] == len(tree[1]) // 2, "of the ranks that have a reader"
    assert json.loads((paths[1] / ".ddpfs/stats.json").read_text())["opened"] == 1
    metrics = [(path / ".ddpfs/metrics").read_text() for path in paths]
    assert 'ddpfs_opened{mountpoint="%s",rank="1"} 1\n' % m.path in metrics[1]
    # Counters of the server are in one file, so sums over ranks are right; and of a rank that somebody reads.
    assert ["ddpfs_read_bytes_total" in text for text in metrics] == [False, True, False, False]
    assert tools.stat_json(paths[0])["window_bytes"] == 0, "nobody reads this rank"
    wait_until(lambda: tools.stat_json(paths[3])["fetched"], "files read ahead for rank 3")
    asked = [tools.stat_json(path)["asked_bytes"] for path in paths]
    assert asked[3] == 7 * asked[1] > 0 == asked[0], "flat names count with the mean size"
    assert 0 <= tools.stat_json(paths[3])["cached_bytes"] <= asked[3]
    tools.ddpfs("restart", m.path)
    assert [tools.stat_json(path)["asked_bytes"] for path in paths] == asked


def test_a_bind_mount_is_its_rank(mount, pack, tree, scratch):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7")
    pod = scratch / "pod"
    pod.mkdir()
    subprocess.run(["mount", "--bind", m.path / "rank2", pod], check=True)
    try:
        assert os.listdir(pod) == os.listdir(m.path / "rank2")
        ctl(pod, "epoch", 4)
        assert [epoch_of(path) for path in ranks_of(m)] == [0, 0, 4, 0]
        assert tools.stat_json(pod / os.listdir(pod)[0])["rank"] == 2
    finally:
        subprocess.run(["umount", pod], check=True)


@pytest.fixture
def pod(scratch):
    """pod(directory): a bind mount of it."""
    path = scratch / "pod"

    def bind(directory):
        path.mkdir()
        subprocess.run(["mount", "--bind", directory, path], check=True)
        return path

    yield bind
    subprocess.run(["umount", path], capture_output=True)


@pytest.mark.parametrize("how", ["restart", "umount"])
def test_a_bind_mount_is_not_the_place_of_the_mount(mount, pack, tree, scratch, pod, how):
    (scratch / "above/mnt").mkdir(parents=True)
    m = mount(pack(tree[0]), f"rank=all,world={WORLD}", mountpoint=scratch / "above/mnt")
    there = pod(m.path / "rank2")
    (scratch / "above").rename(scratch / "renamed")
    m.path = scratch / "renamed/mnt"
    if how == "umount":
        tools.ddpfs("umount", "--lazy", m.path)
        assert not mounts.is_mounted(m.path) and mounts.is_mounted(there)
        subprocess.run(["umount", there], check=True)
        assert m.process.wait(60) == 0
        return
    tools.ddpfs("restart", m.path)
    assert control.stats(m)["mountpoint"] == str(m.path)
    os.listdir(m.path / "rank1")
    read_all(m.path / "rank1")
    wait_until(lambda: ctl(m.path / "rank1", "epoch")["opened"], "opens of a rank that is watched")


def test_umount_of_a_rank_leaves_the_mount(mount, pack, tree, pod):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD}")
    there = pod(m.path / "rank2")
    for path in m.path / "rank3", m.path / "rank3" / os.listdir(m.path / "rank3")[0], there / os.listdir(there)[0]:
        said = tools.ddpfs("umount", path, check=False)
        assert said.returncode == 1 and f"of '{m.path}', which has other ranks" in said.stderr
    with open(there / os.listdir(there)[0]):
        said = tools.ddpfs("umount", there, check=False)
        assert said.returncode == 1 and "is in use" in said.stderr
    tools.ddpfs("umount", there)
    assert not mounts.is_mounted(there) and len(os.listdir(m.path)) == WORLD
    tools.ddpfs("umount", f"@{tools.stat_json(m.path)['pid']}")
    assert not mounts.is_mounted(m.path)


def test_a_mount_of_another_namespace_is_named_by_its_path(pack, tree, scratch):
    place, out = scratch / "mounts", scratch / "out"
    place.mkdir()
    alone = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "slave", "sh", "-ec", '''
         mount -t tmpfs tmpfs "$2"; mkdir "$2/m"
         "$0" mount -o rank=all,world=2 "$1" "$2/m"
         echo ready; read end || true
         "$0" umount "$2/m"''', tools.tool("ddpfs"), pack(tree[0]), place],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(out, "w"), text=True)
    try:
        assert "ready\n" in iter(alone.stdout.readline, ""), out.read_text()
        assert not (place / "m").exists()
        assert ctl(place / "m", "epoch")["epoch"] == 0
    finally:
        alone.communicate("end\n", timeout=60)
    assert alone.returncode == 0, out.read_text()


def test_ranks_read_at_the_same_time_and_hit(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7,memory=64M", env={"DDPFS_TEST_PAIR_MS": "600000"})
    paths = ranks_of(m)[:2]
    for path in paths:
        os.listdir(path)
    control.settled(m)
    threads = [threading.Thread(target=read_all, args=[path]) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, path in enumerate(paths):
        of = tools.stat_json(path)
        assert of["opens"] == of["opened"] == of["turns"] and of["misses"] == 0
    read_from_server(next(path for path in sorted(paths[1].iterdir()) if path.stat().st_size > 0))
    assert [tools.stat_json(path)["misses"] for path in paths] == [0, 1]


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_ranks_go_on_after_a_kill(mount, pack, tree, layout):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7,layout={layout}")
    paths = ranks_of(m)
    ctl(paths[2], "epoch", 3)
    before = [listing(path) for path in paths]
    for name in sorted(before[1]):
        if (paths[1] / name).is_file():
            (paths[1] / name).read_bytes()
    assert ctl(paths[1], "epoch")["opened"] == ctl(paths[1], "epoch")["turns"]
    opens = control.stats(m)["opens"]  # of the whole mount: nobody has asked for the counters of a rank
    server = control.stats(m)["server_pid"]
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: control.stats(m)["server_pid"] != server, "a successor")
    assert [tools.stat_json(path)["opens"] for path in paths] == [0, opens, 0, 0] and opens > 0
    assert [ctl(path, "epoch")["epoch"] for path in paths] == [0, 0, 3, 0]
    assert [ctl(path, "epoch")["opened"] > 0 for path in paths] == [False, True, False, False]
    assert [listing(path) for path in (paths[0], *paths[2:])] == [before[0], *before[2:]]
    os.listdir(paths[1])
    assert ctl(paths[1], "epoch")["epoch"] == 1
    for (_, name), entry in zip(dealt(paths[0]), sorted(os.listdir(paths[0]))):
        assert (paths[0] / entry).read_bytes() == tree[1][name]
    m.unmount()


def recognisers(m):
    """How many threads the server has that compare opens with samplers."""
    tasks = Path(f"/proc/{control.stats(m)['server_pid']}/task")
    return sum(task.read_text() == "recognise\n" for task in tasks.glob("*/comm"))


def test_a_rank_begins_with_its_first_reader(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7,layout=tree", env={"DDPFS_TEST_PAIR_MS": "600000"})
    paths, names = ranks_of(m), sorted(tree[1])
    directories = len({os.path.dirname(name) for name in names})
    os.listdir(m.path)
    for path in paths:
        os.stat(path), os.listdir(path / ".ddpfs"), os.listdir(path / ".ddpfs/all")
        assert tools.stat_json(path)["order_source"] == "unknown"
        ctl(path, "epoch")
    assert (control.stats(m)["watched_dirs"], recognisers(m)) == (0, 0)
    os.listdir(paths[2])
    for name in listing(paths[2]):
        if (paths[2] / name).is_file():
            (paths[2] / name).read_bytes()
    assert (control.stats(m)["watched_dirs"], recognisers(m)) == (directories, 1)
    of = tools.stat_json(paths[2])
    assert of["opened"] == of["turns"] == of["opens"], "also what was opened right after the listing"
    (paths[1] / names[0]).read_bytes()  # a reader that lists nothing
    wait_until(lambda: control.stats(m)["watched_dirs"] == 2 * directories, "watches of the other rank")
    assert recognisers(m) == 2


def test_each_rank_is_watched_before_its_first_listing_ends(mount, pack, scratch):
    for number in range(4200):
        path = scratch / "many" / f"{number:04}"
        path.mkdir(parents=True)
        (path / "file").write_bytes(b"x")
    m = mount(pack(scratch / "many"), "rank=all,world=2,layout=tree")
    for rank, path in enumerate(ranks_of(m, 2)):
        os.listdir(path)
        name = next(name for name in sorted(os.listdir(path)) if os.listdir(path / name))
        (path / name / "file").read_bytes()
        assert ctl(path, "epoch")["opened"] == 1, f"rank {rank}"


def test_ranks_without_a_reader_are_in_no_epoch(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7")
    one = ranks_of(m)[1]
    assert ctl(m.path, "epoch")["turns"] == len(tree[1]), "without a reader, all count"
    read_all(one)
    names = sorted(os.listdir(one))
    assert ctl(m.path, "epoch") == {"epoch": 1, "turns": len(names), "opened": 0, "advance": "auto"}
    read_from_server(one / names[0])
    for path in m.path, one:
        of = tools.stat_json(path)
        assert (of["epoch"], of["epoch_reads"]) == (1, 1)
    assert int(os.getxattr(one / names[0], "user.ddpfs.position")) == dealt(one)[0][0]
    assert json.loads(tools.ddpfs("ctl", m.path, "state", "60").stdout)["epoch"] == 1
    os.listdir(ranks_of(m)[3])
    assert ctl(m.path, "epoch")["epoch"] == 0
    refused = tools.ddpfs("ctl", m.path, "state", "60", check=False)
    assert refused.returncode == 1 and "different epochs" in refused.stderr
    assert json.loads(tools.ddpfs("ctl", m.path, "state", "60", "--epoch", "1").stdout)["start"] == 60


@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_a_rank_begins_anew(mount, pack, tree, layout):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7,layout={layout},epoch=2,start=40")
    paths = ranks_of(m)
    before, states = listing(paths[1]), (paths[1] / ".ddpfs/state").read_bytes()
    for _ in range(2):
        for name in listing(paths[1]):
            if (paths[1] / name).is_file():
                (paths[1] / name).read_bytes()
    os.listdir(paths[1]), os.listdir(paths[2])
    ctl(paths[1], "state", 60)
    ctl(paths[1], "advance", "off")
    assert (ctl(paths[1], "epoch")["epoch"], ctl(m.path, "epoch")["epoch"]) == (4, 2)
    tools.ddpfs("ctl", paths[2], "epoch", 7)
    opens = tools.stat_json(paths[1])["opens"]
    tools.ddpfs("ctl", paths[1], "reset")
    now = ctl(paths[1], "epoch")
    assert (now["epoch"], now["opened"], now["advance"]) == (2, 0, "auto")
    assert tools.stat_json(paths[1])["opens"] == opens > 0, "counters never fall"
    assert (paths[1] / ".ddpfs/state").read_bytes() == states
    assert ctl(m.path, "epoch")["epoch"] == 7, "the other rank has a reader"
    wait_until(lambda: tools.stat_json(paths[1])["window_limit_bytes"] == 0, "the end of the window")
    assert listing(paths[1]) == before
    wait_until(lambda: tools.stat_json(paths[1])["window_limit_bytes"], "a window for the next reader")
    for name in before:
        if (paths[1] / name).is_file():
            (paths[1] / name).read_bytes()
    assert ctl(paths[1], "epoch")["opened"] == ctl(paths[1], "epoch")["turns"]
    os.listdir(paths[1])
    assert ctl(paths[1], "epoch")["epoch"] == 3
    tools.ddpfs("ctl", m.path, "reset")
    assert [ctl(path, "epoch")["epoch"] for path in paths] == [2] * WORLD


def test_one_rank_alone_does_not_begin_anew(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=1,world={WORLD}")
    done = tools.ddpfs("ctl", m.path, "reset", check=False)
    assert done.returncode == 1 and "one rank only" in done.stderr


def ranks_in_tier(directory):
    """The ranks that servers of this host have told the tier (cache/tier.c: LOCK_RANKS and a lane of 2^20)."""
    inodes = {str(path.stat().st_ino) for path in directory.rglob("*") if path.is_file()}
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sorted(int(lock[6]) % 2**20 for lock in locks
                  if lock[5].split(":")[-1] in inodes and lock[3] == "READ" and 2**60 + 2**40 <= int(lock[6]) < 2**61)


def test_the_tier_knows_the_ranks_with_a_reader(mount, pack, scratch):
    tier, large = scratch / "tier", scratch / "large"
    tier.mkdir()
    large.mkdir()
    for number in range(64):  # more than the tier holds
        (large / f"{number:03}").write_bytes(os.urandom(2 << 20))
    m = mount(pack(large), f"rank=all,world={WORLD},tier={tier},tier_size=64M")
    assert ranks_in_tier(tier) == []
    os.listdir(m.path / "rank2")
    assert ranks_in_tier(tier) == [2]
    os.listdir(m.path / "rank0")
    server = control.stats(m)["server_pid"]
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: control.stats(m)["server_pid"] != server, "a successor")
    wait_until(lambda: ranks_in_tier(tier) == [0, 2], "the ranks of the successor")
    m.unmount()


def test_an_unmount_ends_a_server_whose_ranks_have_no_reader(mount, pack, tree):
    for listed in None, "rank1":
        m = mount(pack(tree[0]), f"rank=all,world={WORLD}")
        server = control.stats(m)["server_pid"]
        if listed:
            os.listdir(m.path / listed)
        subprocess.run(["umount", m.path], check=True)
        wait_until(lambda: not mounts.is_alive(server), "the end of the server")


def test_a_rank_that_was_only_listed_goes_on_after_a_kill(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=all,world={WORLD},seed=7")
    paths = ranks_of(m)
    names = sorted(os.listdir(paths[2]))
    server = control.stats(m)["server_pid"]
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: control.stats(m)["server_pid"] != server, "a successor")
    wait_until(lambda: control.stats(m)["watched_dirs"] == recognisers(m) == 1, "the rank to begin again")
    wait_until(lambda: tools.stat_json(paths[2])["window_limit_bytes"], "a window")
    (paths[2] / names[5]).read_bytes()
    wait_until(lambda: ctl(paths[2], "epoch")["opened"] == 1, "the open to count")
    assert tools.stat_json(paths[0])["window_limit_bytes"] == 0
    m.unmount()


def test_a_path_that_names_no_rank_changes_none(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0-1,world=4")
    for name in "rank3", "rank0/none":
        done = tools.ddpfs("ctl", m.path / name, "epoch", "5", check=False)
        assert done.returncode == 1, done.stderr
    assert ctl(m.path, "epoch")["epoch"] == 0


def test_restart_keeps_the_ranks(mount, pack, tree):
    m = mount(pack(tree[0]), f"rank=0-2,world={WORLD},seed=7")
    ctl(m.path / "rank2", "epoch", 6)
    before = [os.listdir(m.path / f"rank{r}") for r in range(3)]
    server = control.stats(m)["server_pid"]
    tools.ddpfs("restart", m.path)
    assert control.stats(m)["server_pid"] != server
    assert sorted(os.listdir(m.path)) == ["rank0", "rank1", "rank2"]
    assert [os.listdir(m.path / f"rank{r}") for r in range(3)] == before
    m.unmount()


def test_requests_name_a_rank_of_the_mount(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=2-3,world=4")
    assert control.ask(m, "epoch", rank=3)["turns"] == 25
    for rank in 1, 4, -1, "2":
        assert "rank" in control.ask(m, "epoch", rank=rank)["error"]
    assert "several ranks" in control.ask(m, "consumed", epoch=0, steps=4)["error"]
    assert control.ask(m, "consumed", epoch=0, steps=4, rank=2)["ok"]
    assert "several ranks" in control.ask(m, "follow", how="end")["error"]
    one = mount(pack(tree[0]), "rank=2,world=4")
    assert control.ask(one, "epoch", rank=2)["ok"] and not control.ask(one, "epoch", rank=3)["ok"]


def test_ls_shows_the_ranks(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=2-3,world=4")
    line = next(line for line in tools.ddpfs("ls").stdout.splitlines() if str(m.path) in line)
    assert "2-3 of 4" in line


@pytest.mark.parametrize("options, says", [
    ("rank=all", "world is missing"),
    ("rank=0-4,world=4", "not below world=4"),
    ("rank=3-1,world=4", "range such as 0-7"),
    ("rank=0-,world=4", "range such as 0-7"),
    ("rank=0-1-2,world=4", "range such as 0-7"),
    ("rank=-1,world=4", "range such as 0-7"),
    ("rank=all,world=257", "at most 256"),
    ("rank=0-256,world=300", "at most 256"),
    ("rank=all,world=4,view=all", "leave out rank and world"),
])
def test_wrong_options_are_refused(pack, tree, scratch, options, says):
    (scratch / "mnt").mkdir(exist_ok=True)
    done = tools.ddpfs("mount", "-o", options, pack(tree[0]), scratch / "mnt", check=False)
    assert done.returncode == 2 and says in done.stderr


def test_other_commands_take_one_rank(pack, tree, scratch):
    dataset = pack(tree[0])
    for argv in ["order", "-o", "rank=0-1,world=2", dataset], ["exec", "-o", "rank=all,world=2", dataset, scratch / "m",
                                                              "--", "true"]:
        done = tools.ddpfs(*argv, check=False)
        assert done.returncode == 2 and "rank=R" in done.stderr


def test_as_many_ranks_as_there_may_be(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=all,world=256,tail=short")
    assert len(os.listdir(m.path)) == 256
    seen = [step for path in ranks_of(m, 256) for step in dealt(path)]
    assert sorted(path for _, path in seen) == sorted(tree[1])
    assert len(os.listdir(m.path / "rank99")) == 1 and os.listdir(m.path / "rank255") == []
    m.unmount()
