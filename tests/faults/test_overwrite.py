# SPDX-License-Identifier: Apache-2.0
"""A dataset is overwritten in place by another one with the same names, index and shards together, under a mount.

Every byte, size, name and attribute that a reader gets is the mounted dataset's, or there is an error.  The log has a sentence.
DDPFS_OVERWRITES=all runs all combinations; without it each pair of values of any two columns comes at least once."""

import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import threading

import pytest

from faults.test_server_killed import kill, server_of
from helpers import datasets, tools
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
def made(build_dir, tmp_path_factory):
    """({path: bytes} of the dataset that is mounted, its packing, {size: packing that overwrites it}); all times are equal, so that
    a copy that keeps them shows in ctime only."""
    place = tmp_path_factory.mktemp("overwrite")
    files = write_tree(place / "w", "mounted", 0)
    tools.mkshard("pack", "--shard-size=1M", place / "w", place / "w.ds")
    others = {}
    for name, change in SIZES.items():
        write_tree(place / name, "other", change)
        tools.mkshard("pack", "--shard-size=1M", place / name, place / f"{name}.ds")
        others[name] = place / f"{name}.ds"
    for dataset in (place / "w.ds", *others.values()):
        for path in dataset.iterdir():
            path.chmod(0o644)
            os.utime(path, (1_700_000_000, 1_700_000_000))
    assert (place / "w.ds/index.ddpfs").stat().st_size == (others["equal"] / "index.ddpfs").stat().st_size
    return files, place / "w.ds", others


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

    def read(self, name, path, evict=False):
        full, want = self.m.path / name, self.files[path]

        def get():
            fd = os.open(full, os.O_RDONLY)
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

    def attributes(self, name, path):
        full = self.m.path / name
        self.guarded(f"path of {name}", lambda: os.getxattr(full, "user.ddpfs.path"), path.encode())
        self.guarded(f"sum of {name}", lambda: os.getxattr(full, "user.ddpfs.xxh3"), self.sums[path])

    def listings(self, before):
        for directory, want in before.items():
            self.guarded(directory, lambda: sorted(os.listdir(directory)), want)


def sums_of(m, files):
    return {path: os.getxattr(m.path / ".ddpfs/all" / path, "user.ddpfs.xxh3") for path in files}


def attack(mount, made, scratch, size, view, order, way, state):
    files, dataset, others = made
    victim = scratch / "victim"
    shutil.copytree(dataset, victim)
    m = mount(victim, VIEWS[view] + ",memory=8M")
    reader = Reader(m, files)
    names = reader.names(view)
    todo = sorted(names.items())
    random.Random(f"{size}{view}{order}{way}{state}").shuffle(todo)
    before = todo[:{"cold": 0, "half read": len(todo) // 2, "resident": len(todo)}[state]]
    for name, path in before:
        assert reader.read(name, path)
    assert reader.wrong == [] and reader.refused == 0

    done = threading.Event()

    def meanwhile():
        while not done.is_set():
            for name, path in todo[::7]:
                reader.read(name, path, evict=True)

    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        for step in steps(victim, others[size], order, way):
            subprocess.run([str(part) for part in step], check=True)
    finally:
        done.set()
        thread.join()
    for name, path in todo:
        reader.read(name, path)
    for name, path in todo[::3]:
        reader.read(name, path, evict=True)
    for path in random.Random(7).sample(sorted(files), 40):
        reader.guarded(path, lambda: (m.path / ".ddpfs/all" / path).read_bytes(), files[path])
        reader.guarded(path, lambda: os.stat(m.path / ".ddpfs/all" / path).st_size, len(files[path]))
    assert reader.wrong == [], f"{len(reader.wrong)} wrong of {len(reader.wrong) + reader.right + reader.refused}"
    assert reader.refused > 0
    log = wait_for_log(m, "index.ddpfs'")
    assert "written in place" in log and "mkshard verify" in log
    assert m.process.poll() is None and server_of(m.process.pid)
    return reader


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


@pytest.mark.parametrize("size,view,order,way,state", list(itertools.product(*COLUMNS)) if ALL else covering(*COLUMNS))
def test_another_dataset_is_copied_over_it(mount, made, scratch, size, view, order, way, state):
    if way == "rsync" and not shutil.which("rsync"):
        pytest.skip("rsync is not installed")
    attack(mount, made, scratch, size, view, order, way, state)
