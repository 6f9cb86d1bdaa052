# SPDX-License-Identifier: Apache-2.0
"""A dataset is overwritten in place by another one with the same names, index and shards together, under a mount.

Every byte, size, name and attribute that a reader gets is the mounted dataset's, or there is an error.  The log has a sentence.
DDPFS_OVERWRITES=all runs all combinations; without it each pair of values of any two columns comes at least once."""

import errno
import fcntl
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from faults.test_server_killed import children, kill, name
from helpers import datasets, tools
from helpers.waiting import wait_until
from mount.control import wait_for_log

ALL = os.environ.get("DDPFS_OVERWRITES") == "all"
REFUSED = {errno.EIO, errno.ESTALE}
GONE = {errno.ENOTCONN, errno.ECONNABORTED}
CLASSES, PER_CLASS = 12, 130  # an index of two blocks of sums and more
SIZES = {"equal": 0, "shorter": -1, "longer": 1}
VIEWS = {"all": "view=all,layout=tree", "flat": "layout=flat,rank=0,world=2", "tree": "layout=tree,rank=0,world=2"}
ORDERS = ("index first", "shards first", "interleaved")
WAYS = {
    "cp -a": ["cp", "-a"],
    "cp": ["cp"],
    "rsync": ["rsync", "-a", "--inplace", "--no-whole-file", "--ignore-times"],
}
STATES = ("cold", "half read", "resident")


def length(i, change):
    base = (0, 1, 700, 4096, 9000)[i % 5]
    return max(0, base + change * (i % 3 + 1) * 40)


def write_tree(root, who, change):
    files = {}
    for i in range(CLASSES * PER_CLASS):
        path = f"class_{i // PER_CLASS:02d}/item_{i % PER_CLASS:04d}.bin"
        files[path] = datasets.content(f"{who}:{path}", length(i, change))
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(files[path])
    return files


@pytest.fixture(scope="module")
def made(build_dir):
    """({path: bytes} of the dataset that is mounted, its packing, {size: packing that overwrites it}); all times are equal, so that
    a copy that keeps them shows in ctime only."""
    with tempfile.TemporaryDirectory(prefix="ddpfs-overwrite.") as scratch:
        place = Path(scratch)
        files = write_tree(place / "w", "mounted", 0)
        tools.mkshard("pack", "--shard-size=1M", place / "w", place / "w.ds")
        others = {}
        for size, change in SIZES.items():
            write_tree(place / size, "other", change)
            others[size] = place / f"{size}.ds"
            tools.mkshard("pack", "--shard-size=1M", place / size, others[size])
        for dataset in (place / "w.ds", *others.values()):
            for path in dataset.iterdir():
                path.chmod(0o644)
                os.utime(path, (1_700_000_000, 1_700_000_000))
        assert (place / "w.ds/index.ddpfs").stat().st_size == (others["equal"] / "index.ddpfs").stat().st_size
        yield files, place / "w.ds", others


def steps(victim, other, order, way):
    """The commands that put `other`'s files over `victim`'s, in order."""
    index = other / "index.ddpfs"
    shards = sorted(path for path in other.iterdir() if path != index)
    assert len(shards) > 2
    if order == "index first":
        paths = [index, *shards]
    elif order == "shards first":
        paths = [*shards, index]
    else:
        paths = [*shards[:len(shards) // 2], index, *shards[len(shards) // 2:]]
    return [[*WAYS[way], path, victim / path.name] for path in paths]


class Reader:
    """Looks at everything in a mount and compares."""

    def __init__(self, m, files, also=frozenset()):
        self.m, self.files, self.allowed = m, files, REFUSED | also
        self.wrong, self.refused, self.right = [], 0, 0
        self.sums = self.list = None  # what a mount of the same options said that nobody touched
        self.lock = threading.Lock()

    def names(self, view):
        """{name in the mount: path in the dataset}"""
        if view != "flat":
            return {path: path for path in self.files}
        by_end = {path.replace("/", "%2F"): path for path in self.files}
        return {name: by_end[name[name.index("class_"):]] for name in os.listdir(self.m.path) if "class_" in name}

    def guarded(self, what, get, want):
        """True: it was right. An error is one of those that are allowed, or it is raised."""
        try:
            got = get()
        except OSError as e:
            assert e.errno in self.allowed, (what, e)
            with self.lock:
                self.refused += 1
            return False
        with self.lock:
            if got == want:
                self.right += 1
            else:
                self.wrong.append(what)
        return got == want

    def read(self, name, path, evict=False, flags=0):
        full, want = self.m.path / name, self.files[path]

        def get():
            fd = os.open(full, os.O_RDONLY | flags)
            try:
                if evict:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                parts = [os.fstat(fd).st_size.to_bytes(8, "little")]
                while part := os.read(fd, 1 << 16):
                    parts.append(part)
                return b"".join(parts)
            finally:
                os.close(fd)

        return self.guarded(name, get, len(want).to_bytes(8, "little") + want)

    def everything_else(self):
        """What is no file's bytes: attributes, listings, the list of the epoch, names that are not there."""
        everything = self.m.path / ".ddpfs/all"
        for path in random.Random(7).sample(sorted(self.files), 60):
            full = everything / path
            self.guarded(path, full.read_bytes, self.files[path])
            self.guarded(f"size of {path}", lambda: os.stat(full).st_size, len(self.files[path]))
            self.guarded(f"path of {path}", lambda: os.getxattr(full, "user.ddpfs.path"), os.fsencode(path))
            self.guarded(f"sum of {path}", lambda: os.getxattr(full, "user.ddpfs.xxh3"), self.sums[path])
        for name in sorted({path.split("/")[0] for path in self.files}):
            want = sorted(path.split("/")[1] for path in self.files if path.startswith(name + "/"))
            self.guarded(f"listing of {name}", lambda: sorted(os.listdir(everything / name)), want)
        self.guarded("the list", (self.m.path / ".ddpfs/epoch/1.list").read_bytes, self.list)


def read_before(reader, view, state, seed):
    """What is read before anything is overwritten.  Returns all (name, path) in the order in which they are read later."""
    to_read = sorted(reader.names(view).items())
    random.Random(seed).shuffle(to_read)
    before = to_read[:{"cold": 0, "half read": len(to_read) // 2, "resident": len(to_read)}[state]]
    for name, path in before:
        assert reader.read(name, path)
    for name, path in before[:50]:
        assert reader.read(name, path, flags=os.O_DIRECT)  # which landing memory keeps
    assert reader.wrong == [] and reader.refused == 0
    return to_read


def read_while(reader, to_read, act):
    """Reads on and on while `act()` does something."""
    done = threading.Event()

    def meanwhile():
        while not done.is_set():
            for name, path in to_read[::7]:
                reader.read(name, path, evict=True)

    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        act()
    finally:
        done.set()
        thread.join()


def read_after(reader, to_read):
    for name, path in to_read:
        reader.read(name, path)
    for name, path in to_read[::3]:
        reader.read(name, path, evict=True)
    for name, path in to_read[:50]:
        reader.read(name, path, flags=os.O_DIRECT)
    if reader.list:
        reader.everything_else()
    looks = len(reader.wrong) + reader.right + reader.refused
    assert reader.wrong == [], f"{len(reader.wrong)} wrong of {looks}: {reader.wrong[:5]}"
    assert reader.refused > 0


def overwrite(steps):
    for step in steps:
        subprocess.run([str(part) for part in step], check=True)


@pytest.fixture(scope="module")
def truth(made):
    """{view: (sums, list of epoch 1)} of the mounted dataset, by its identity's own words."""
    files, dataset, _ = made
    sums = {e["path"]: e["xxh3"].encode() for e in map(json.loads, tools.mkshard("ls", "--json", dataset).stdout.splitlines())}
    lists = {}
    for view, options in VIEWS.items():
        options = ",".join(o for o in options.split(",") if not o.startswith("layout"))
        printed = tools.ddpfs("order", dataset, "-o", options + ",epoch=1").stdout.splitlines()
        lists[view] = "".join(line.split()[-1] + "\n" for line in printed).encode()
    assert sums.keys() == files.keys()
    return sums, lists


def new_reader(m, made, truth, view, also=frozenset()):
    reader = Reader(m, made[0], also)
    reader.sums, reader.list = truth[0], truth[1][view]
    return reader


def the_log_says_so(m):
    log = wait_for_log(m, "index.ddpfs'")
    assert "somebody wrote into it" in log and "mkshard verify" in log

def covering(*columns):
    """Rows so that each pair of values of two columns is in one of them."""
    rows, left = [], {(a, x, b, y) for a, b in itertools.combinations(range(len(columns)), 2)
                      for x in columns[a] for y in columns[b]}
    while left:
        def gain(row):
            return sum((a, row[a], b, row[b]) in left for a, b in itertools.combinations(range(len(row)), 2))

        best = max(itertools.product(*columns), key=gain)
        rows.append(best)
        left -= {(a, best[a], b, best[b]) for a, b in itertools.combinations(range(len(best)), 2)}
    return rows


COLUMNS = (list(SIZES), list(VIEWS), list(ORDERS), list(WAYS), list(STATES))
COMBINATIONS = list(itertools.product(*COLUMNS)) if ALL else covering(*COLUMNS)


def needs(way):
    if not shutil.which(WAYS[way][0]):
        pytest.skip(f"{WAYS[way][0]} is not installed")


@pytest.mark.parametrize("size,view,order,way,state", COMBINATIONS)
def test_another_dataset_is_copied_over_it(mount, made, truth, scratch, size, view, order, way, state):
    needs(way)
    victim = scratch / "victim"
    shutil.copytree(made[1], victim)
    m = mount(victim, VIEWS[view] + ",memory=8M")
    reader = new_reader(m, made, truth, view)
    to_read = read_before(reader, view, state, f"{size}{order}{way}")
    read_while(reader, to_read, lambda: overwrite(steps(victim, made[2][size], order, way)))
    read_after(reader, to_read)
    the_log_says_so(m)
    assert m.process.poll() is None


def test_it_is_copied_over_where_samples_have_stand_ins(mount, made, scratch):
    files, dataset, others = made
    victim = scratch / "victim"
    shutil.copytree(dataset, victim)
    damaged = scratch / "damaged"
    shutil.copytree(dataset, damaged)
    with open(min(damaged.glob("shard-*")), "r+b") as f:
        f.seek(100_000)
        f.write(bytes(100_000))
    assert tools.mkshard("verify", "--quarantine", damaged, check=False).returncode == 1
    shutil.copy(damaged / "quarantine.ddpfs", victim)
    options = "view=all,layout=tree,memory=8M,on_bad=substitute"
    m = mount(victim, options)
    shown = {path: (m.path / path).read_bytes() for path in files}
    assert 5 < sum(shown[path] != files[path] for path in files) < len(files) // 2
    m.unmount()
    m = mount(victim, options)
    reader = Reader(m, shown)
    to_read = read_before(reader, "all", "half read", "stand-ins")
    read_while(reader, to_read, lambda: overwrite(steps(victim, others["equal"], "interleaved", "cp -a")))
    read_after(reader, to_read)
    the_log_says_so(m)


@pytest.mark.parametrize("size,view,order,way,state", COMBINATIONS)
def test_it_is_copied_over_while_servers_are_killed(mount, made, truth, scratch, size, view, order, way, state):
    """A successor opens the index anew: it is the mounted dataset's, or nothing is served."""
    needs(way)
    victim = scratch / "victim"
    shutil.copytree(made[1], victim)
    m = mount(victim, VIEWS[view] + ",memory=8M")
    m.may_end_with.add(1)
    reader = new_reader(m, made, truth, view, GONE)
    to_read = read_before(reader, view, state, f"{size}{order}{way}")
    kills = 0

    def kill_server():
        nonlocal kills
        if servers := [pid for pid in children(m.process.pid) if name(pid) == "ddpfs-server"]:
            kill(servers[-1])
            kills += 1
        return bool(servers)

    def told():
        return "index.ddpfs'" in m.log() or "another dataset lies there now" in m.log()

    def act():
        for step in steps(victim, made[2][size], order, way):
            copying = subprocess.Popen([str(part) for part in step])
            kill_server()
            assert copying.wait() == 0

    read_while(reader, to_read, act)
    assert kills > 0
    read_after(reader, to_read)
    # The last successor may have opened the index before it was replaced, and readers ask it for nothing.
    wait_until(lambda: told() or kill_server(), "a server")
    wait_until(told, "what the successor says")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tool", ["ls", "cat"])
def test_it_is_copied_over_under_a_tool(made, scratch, tool, way):
    """mkshard is in the middle of its output: what came is the dataset's, and it ends with an error."""
    needs(way)
    victim = scratch / "victim"
    shutil.copytree(made[1], victim)
    paths = sorted(made[0])
    whole = b"".join(made[0][path] for path in paths) if tool == "cat" else "".join(path + "\n" for path in paths).encode()
    args = ["--", *paths] if tool == "cat" else []
    process = subprocess.Popen([tools.tool("mkshard"), tool, victim, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                               preexec_fn=lambda: fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 4096))
    try:
        came = process.stdout.read(1)  # it waits for room in the pipe
        overwrite(steps(victim, made[2]["longer"], "index first", way))
        rest, said = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "index.ddpfs'" in said.decode() and "somebody wrote into it" in said.decode()
    if tool == "cat":
        assert whole.startswith(came + rest)
