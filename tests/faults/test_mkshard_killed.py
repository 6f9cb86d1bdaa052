# SPDX-License-Identifier: Apache-2.0
"""mkshard killed at every system call it makes, in any of its threads: always the old state, or one that a rerun goes on from.

DDPFS_CALLS=all kills at every one of them (two minutes); otherwise at every 23rd, begun at another one in each test."""

import contextlib
import fcntl
import os
import shutil

import pytest

from helpers import tools
from tools.shards import facts, failure, files_of, many_files, published

STRIDE = 1 if os.environ.get("DDPFS_CALLS") == "all" else 23
PACK = ["pack", "--shard-size=4K", "--jobs=1"]


@pytest.fixture
def source(scratch):
    return many_files(scratch / "source", n=9, size=600)


@pytest.fixture
def killed(build_dir):
    """killed(n, args...) -> True when mkshard was killed at its n-th system call, False when it had ended before."""
    def run(n, *args):
        done = tools.run([build_dir / "tests/faults/killat", str(n), tools.tool("mkshard"), *args], check=False,
                         env=tools.TRACED)
        if done.returncode == 77:
            pytest.skip("ptrace is not allowed here")
        said = done.stdout.split()
        assert done.returncode == 0 and said[-3 if "ended" in said else -2] in ("killed", "ended"), done.stdout + done.stderr
        return "killed" in said

    return run


def every_call(killed, first, prepare, args, check):
    """Prepares, kills at a call and checks, call after call until one run ends by itself.  Returns the number of kills."""
    point = first
    kills = 0
    while True:
        prepare()
        if not killed(point, *args):
            return kills
        check(point)
        point += STRIDE
        kills += 1


def leftovers(scratch):
    return sorted(p.name for p in scratch.iterdir() if p.name.startswith("d."))


@pytest.mark.parametrize("container", ["tar", "bare"])
def test_packing(scratch, source, pack, killed, container):
    options = [*PACK, f"--container={container}"]
    wanted = files_of(pack(source, *options[1:]))
    dataset = scratch / "d"

    def prepare():
        shutil.rmtree(dataset, ignore_errors=True)
        assert leftovers(scratch) == []

    def check(point):
        if dataset.exists():
            assert published(dataset) == wanted, point
            assert "exists already" in failure(*options, source, dataset)  # and tidies up
            assert files_of(dataset) == wanted, point
        else:
            tools.mkshard(*options, source, dataset)
            assert files_of(dataset) == wanted, point
        assert leftovers(scratch) == [], point

    kills = every_call(killed, 1, prepare, [*options, source, dataset], check)
    print(f"{container}: {kills} kills")
    assert kills > 200 // STRIDE and files_of(dataset) == wanted


def test_replacing(scratch, source, pack, killed):
    """--force: at every moment DATASET is the old one or the new one, and the same command again makes it the new one."""
    other = many_files(scratch / "other", n=5, size=300, seed=8)
    wanted = files_of(pack(source, *PACK[1:]))
    old_dataset = pack(other, *PACK[1:])
    old = files_of(old_dataset)
    dataset = scratch / "d"

    def prepare():
        shutil.rmtree(dataset, ignore_errors=True)
        shutil.copytree(old_dataset, dataset)

    def check(point):
        assert published(dataset) in (old, wanted), point
        tools.mkshard(*PACK, "--force", source, dataset)
        assert files_of(dataset) == wanted, point
        assert leftovers(scratch) == [], point

    kills = every_call(killed, 5, prepare, [*PACK, "--force", source, dataset], check)
    print(f"--force: {kills} kills")
    assert kills > 200 // STRIDE


@pytest.mark.parametrize("command", ["index", "verify"])
def test_files_that_are_written_anew(scratch, source, pack, killed, command):
    """An index over shards that stay, a quarantine list: the old file, the new one, or none."""
    dataset = pack(source, *PACK[1:])
    args = ["index", "--force", dataset] if command == "index" else ["verify", "--quarantine", "--jobs=1", dataset]
    name = "index.ddpfs" if command == "index" else "quarantine.ddpfs"
    before = files_of(dataset)
    tools.mkshard(*args)
    wanted = files_of(dataset)
    assert name in wanted

    def prepare():
        for path in dataset.iterdir():
            path.unlink()
        for path, data in before.items():
            (dataset / path).write_bytes(data)

    def check(point):
        now = files_of(dataset)
        stray = set(now) - set(wanted)
        assert all(path.startswith(f"{name}.tmp-") for path in stray), (point, stray)
        assert {path: data for path, data in now.items() if path not in stray} in (before, wanted), point
        tools.mkshard(*args)
        assert files_of(dataset) == wanted, point  # what the killed one left has gone, too

    kills = every_call(killed, 3, prepare, args, check)
    print(f"{command}: {kills} kills")
    assert kills > 60 // STRIDE


def test_extracting(scratch, source, pack, killed):
    """A file that has its own name is whole at every moment; the same command writes the others and tidies up."""
    (source / "large").write_bytes(os.urandom(2**20 + 100))
    dataset = pack(source, *PACK[1:])
    wanted = facts(source)
    out = scratch / "out"
    args = ["extract", "--jobs=2", dataset, out]

    def prepare():
        shutil.rmtree(out, ignore_errors=True)

    def check(point):
        found = facts(out) if out.exists() else {}
        for path, (_, _, _, data) in found.items():
            if data is not None and not path.split(b"/")[-1].startswith(b".mkshard-extract-"):
                assert data == wanted[path][3], (point, path)
        done = tools.mkshard(*args)
        assert done.stderr == "" and facts(out) == wanted, point

    kills = every_call(killed, 7, prepare, args, check)
    print(f"extract: {kills} kills")
    assert kills >= 200 // STRIDE


def test_two_extract_to_one_directory(scratch, source, pack):
    """The second one takes nothing of the first one's for the rest of a killed run."""
    dataset, out = pack(source, *PACK[1:]), scratch / "out"
    tools.mkshard("extract", dataset, out, "c0")
    living = out / f".mkshard-extract-{0:032x}"
    living.write_text("being written")
    with locked(out):
        tools.mkshard("extract", dataset, out)
        assert living.exists()
    tools.mkshard("extract", dataset, out)
    assert facts(out) == facts(source)


@contextlib.contextmanager
def locked(directory):
    """A shared lock, as a run of mkshard extract holds it."""
    fd = os.open(directory, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    yield
    os.close(fd)
