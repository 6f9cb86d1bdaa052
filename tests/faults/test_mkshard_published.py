# SPDX-License-Identifier: Apache-2.0
"""The last steps of mkshard pack: whatever fails there, what is complete stays, and the next run gives it its name.

DDPFS_CALLS=all tries each error at each call; otherwise at every third, begun at another one for each error."""

import errno
import os
import re
import shutil
import subprocess

import pytest

from helpers import mounts, tools
from helpers.waiting import wait_until
from tools.shards import facts, failure, files_of, many_files, published

PACK = ["pack", "--shard-size=4K", "--jobs=1"]  # one thread: strace counts calls a thread
ERRORS = ["EINVAL", "ENOSYS", "EOPNOTSUPP", "ENOSPC", "EIO", "EROFS", "EPERM", "EBUSY", "ENOTEMPTY", "EEXIST"]
BEFORE = 10  # calls before the first rename that publishes; and all behind it
STRIDE = 1 if os.environ.get("DDPFS_CALLS") == "all" else 3
CANNOT_FAIL = ("brk", "munmap", "mmap", "exit_group", "futex", "madvise", "rt_sigaction", "write", "getpid", "gettid",
               "tgkill", "mprotect", "rt_sigprocmask", "geteuid")  # or have nothing to do with files


@pytest.fixture
def source(scratch):
    return many_files(scratch / "source", n=9, size=600)


@pytest.fixture
def archive(scratch, source):
    """The same as one file: directories are read by several threads, so that no call of them has a fixed number."""
    tools.run(["tar", "cf", scratch / "source.tar", "-C", source, "."])
    return scratch / "source.tar"


def strace(*options):
    return ["strace", "-f", "-qq", *options, tools.tool("mkshard")]


@pytest.fixture(autouse=True)
def needs_strace(build_dir):
    probe = ["strace", "-o", "/dev/null", "true"]
    if not shutil.which("strace") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("strace cannot be run here")


def last_calls(scratch, args, options=()):
    """[(name, number among the main thread's calls of that name)] of calls on files, from those before publication on."""
    log = scratch / "calls"
    tools.run([*strace("-o", log, *options), *args], env=tools.TRACED)
    lines = log.read_text().splitlines()
    main = lines[0].split()[0]
    seen, calls = {}, []
    for line in lines:
        found = re.match(rf"{main} +(\w+)\(", line)
        if not found:
            continue
        name = found[1]
        seen[name] = seen.get(name, 0) + 1
        if name not in CANNOT_FAIL:
            calls.append((name, seen[name]))
    log.unlink()
    publication = next(i for i, call in enumerate(calls) if call == ("renameat2", 1))
    return calls[publication - BEFORE:]


def leftovers(scratch):
    return sorted(p.name for p in scratch.iterdir() if p.name.startswith("d."))


def check_after(scratch, args, done, old, wanted, what):
    """After a run with an error: the old state or the new one, nothing complete is lost, the same command ends well."""
    dataset = scratch / "d"
    now = published(dataset) if dataset.exists() else None
    assert now in (old, wanted), what
    if now != wanted:
        assert done.returncode == 1 and done.stderr.startswith("mkshard: "), (what, done.stderr)
        shards = len([name for name in wanted if name.startswith("shard-")])
        again = tools.mkshard(*args)
        assert f"going on: {shards} of {shards} shards are complete" in again.stderr, (what, done.stderr, again.stderr)
    elif files_of(dataset) != wanted or leftovers(scratch):
        assert done.stderr.strip(), what
        again = tools.mkshard(*args, check=False)  # which may find that it is there already
        assert again.returncode == 0 or "exists already" in again.stderr, (what, again.stderr)
    assert files_of(dataset) == wanted, what
    assert leftovers(scratch) == [], what


@pytest.mark.parametrize("flags", [True, False], ids=["flags", "no-flags"])
@pytest.mark.parametrize("force", [False, True], ids=["new", "force"])
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_at_each_of_the_last_calls(scratch, archive, pack, error, force, flags):
    """`no-flags`: renameat2 always fails with EINVAL as well, so that the renames of such file systems fail in turn."""
    dataset = scratch / "d"
    wanted = files_of(pack(archive, *PACK[1:]))
    other = pack(many_files(scratch / "other", n=5, size=300, seed=8), *PACK[1:])
    old = files_of(other) if force else None
    args = [*PACK, *(["--force"] if force else []), archive, dataset]
    without = [] if flags else ["-e", "inject=renameat2:error=EINVAL"]

    def prepare():
        shutil.rmtree(dataset, ignore_errors=True)
        if force:
            shutil.copytree(other, dataset)
        assert leftovers(scratch) == []

    prepare()
    calls = [call for call in last_calls(scratch, args, without) if flags or call[0] != "renameat2"]
    assert len(calls) > 2 * BEFORE
    for name, nth in calls[ERRORS.index(error) % STRIDE::STRIDE]:
        prepare()
        done = tools.run([*strace("-o", "/dev/null", *without, "-e", f"inject={name}:error={error}:when={nth}"), *args],
                         check=False, env=tools.TRACED)
        check_after(scratch, args, done, old, wanted, (name, nth))


def test_a_target_that_appears_meanwhile(scratch, source):
    """The list comes through a pipe, and somebody makes DATASET before it ends."""
    dataset = scratch / "d"
    names = b"".join(os.fsencode(p.relative_to(source)) + b"\0" for p in sorted(source.rglob("*.bin")))
    args = [tools.tool("mkshard"), *PACK, "-C", source, "-", dataset]
    process = subprocess.Popen([str(a) for a in args], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: (scratch / "d.partial/command").exists())
    dataset.mkdir()
    (dataset / "notes").write_text("mine")
    _, said = process.communicate(names)
    assert process.returncode == 1
    assert b"made by somebody else" in said and b"complete and kept" in said and b"d.partial" in said
    assert (dataset / "notes").read_text() == "mine"
    tools.mkshard("verify", scratch / "d.partial")
    os.rename(dataset, scratch / "notes")
    done = tools.mkshard(*PACK, "-C", source, "-", dataset, input=names, text=False)
    assert b"going on: 5 of 5 shards are complete" in done.stderr
    assert leftovers(scratch) == []
    tools.mkshard("verify", dataset)


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM", "EOPNOTSUPP"])
def test_where_no_directory_can_be_renamed_nothing_is_read(scratch, source, error):
    """A store of objects: known before the first file is opened."""
    log = scratch / "calls"
    refusing = strace("-o", log, "-e", "trace=rename,renameat,renameat2,openat", "-e", f"inject=rename:error={error}")
    done = tools.run([*refusing, *PACK, source, scratch / "d"], check=False, env=tools.TRACED)
    assert done.returncode == 1 and "cannot be renamed here" in done.stderr and done.stderr.count("\n") == 1
    assert f"{source}" not in log.read_text()
    assert [p.name for p in scratch.iterdir() if p.name.startswith("d")] == []


@pytest.mark.parametrize("force", [False, True], ids=["new", "force"])
def test_a_directory_of_mine_in_the_way_stays(scratch, source, pack, force):
    """Datasets that are called DATASET.partial and DATASET.replaced are not mkshard's leftovers."""
    other = pack(many_files(scratch / "other", n=5, size=300, seed=8), *PACK[1:])
    mine = files_of(other)
    args = [*PACK, *(["--force"] if force else []), source, scratch / "d"]
    if force:
        shutil.copytree(other, scratch / "d")
    shutil.copytree(other, scratch / "d.partial")
    assert "d.partial" in failure(*args)
    os.rename(scratch / "d.partial", scratch / "d.replaced")
    if force:
        assert "in the way" in failure(*args)
    else:
        tools.mkshard(*args)
    assert files_of(scratch / "d.replaced") == mine
    (scratch / "e.partial").mkdir()
    (scratch / "e.partial/notes").write_text("mine")
    assert "which mkshard did not make" in failure(*PACK, source, scratch / "e")
    assert (scratch / "e.partial/notes").read_text() == "mine"


def test_a_mount_point_is_refused_at_once(scratch, source):
    (scratch / "d").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", scratch / "d"], capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        for force in ([], ["--force"]):
            assert "mount point" in failure(*PACK, *force, source, scratch / "d")
    finally:
        subprocess.run(["umount", scratch / "d"], check=True)
    assert leftovers(scratch) == []


@pytest.fixture
def store(scratch, build_dir):
    """A directory on a file system without flags of renameat2."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    (scratch / "below").mkdir()
    (scratch / "store").mkdir()
    server = subprocess.Popen([build_dir / "tests/faults/noflags", scratch / "below", scratch / "store", "-f"],
                              preexec_fn=tools.die_with_parent)
    wait_until(lambda: mounts.is_mounted(scratch / "store") or server.poll() is not None)
    if server.poll() is not None:
        pytest.skip("may not mount a FUSE file system")
    yield scratch / "store"
    subprocess.run(["umount", "-l", scratch / "store"], check=True)
    server.wait(30)


def test_a_file_system_without_rename_flags(store, scratch, source, pack):
    with pytest.raises(OSError) as refused:
        exchange(scratch / "store" / "x", store / "y")
    assert refused.value.errno == errno.EINVAL
    wanted = files_of(pack(source, *PACK[1:]))
    tools.mkshard(*PACK, source, store / "d")
    assert files_of(store / "d") == wanted
    other = many_files(scratch / "other", n=5, size=300, seed=8)
    tools.mkshard(*PACK, "--force", other, store / "d")
    assert files_of(store / "d") == files_of(pack(other, *PACK[1:]))
    (store / "e").mkdir()
    tools.mkshard(*PACK, source, store / "e")
    assert files_of(store / "e") == wanted and sorted(p.name for p in store.iterdir()) == ["d", "e"]
    for _ in range(2):  # the second time there is nothing to write
        tools.mkshard("extract", store / "e", store / "out")
        assert facts(store / "out") == facts(source)
    (store / "out/c0/00000.bin").write_text("mine")
    assert "exists already" in failure("extract", store / "e", store / "out", "c0/00000.bin")
    tools.mkshard("extract", "--force", store / "e", store / "out")
    assert facts(store / "out") == facts(source)


def exchange(here, there):
    import ctypes
    here.write_text("x")
    there.write_text("y")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(here), -100, os.fsencode(there), 2):
        error = ctypes.get_errno()
        here.unlink()
        there.unlink()
        raise OSError(error, os.strerror(error))


def test_killed_between_two_renames(store, scratch, archive, pack):
    """--force without flags, killed at each of its renames and the calls around them: no moment loses a dataset."""
    other = pack(many_files(scratch / "other", n=5, size=300, seed=8), *PACK[1:])
    old, wanted = files_of(other), files_of(pack(archive, *PACK[1:]))
    dataset = store / "d"
    args = [*PACK, "--force", archive, dataset]
    gone = 0

    def removed():
        """A file that was closed a moment ago keeps a hidden name there until FUSE has released it."""
        shutil.rmtree(dataset, ignore_errors=True)
        return not dataset.exists()

    def prepare():
        wait_until(removed, "the removal of the dataset")
        shutil.copytree(other, dataset)

    prepare()
    for name, nth in last_calls(scratch, args)[BEFORE - 2:]:
        for how in ("again", "without --force"):
            prepare()
            tools.run([*strace("-o", "/dev/null", "-e", f"inject={name}:signal=KILL:when={nth}"), *args], check=False,
                      env=tools.TRACED)
            if not dataset.exists():
                gone += 1
                assert files_of(store / "d.replaced") == old
            else:
                assert published(dataset) in (old, wanted), (name, nth)
            if how == "again":
                tools.mkshard(*args)
            else:  # refused, but it puts things in order
                assert "exists already" in failure_at_the_end(*PACK, archive, dataset)
                assert files_of(dataset) in (old, wanted), (name, nth)
                tools.mkshard(*args)
            assert files_of(dataset) == wanted, (name, nth)
            assert [p.name for p in store.iterdir()] == ["d"], (name, nth)
    assert gone >= 2


def failure_at_the_end(*args):
    done = tools.mkshard(*args, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]
