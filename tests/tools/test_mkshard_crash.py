# SPDX-License-Identifier: Apache-2.0
"""mkshard pack killed, out of space, or run twice at once: the old state, or one that a rerun goes on from."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from helpers import tools
from tools.shards import failure, files_of, many_files, published

OPTIONS = ["--shard-size=32K", "--jobs=1"]  # one thread: strace counts calls a thread


@pytest.fixture
def source(scratch):
    return many_files(scratch / "source", n=100)


@pytest.fixture
def wanted(source, pack):
    """What an undisturbed run makes."""
    made = files_of(pack(source, *OPTIONS))
    assert len(made) > 8
    return made


def needs_strace():
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True) if shutil.which("strace") else None
    if probe is None or probe.returncode:
        pytest.skip("strace cannot be run here")


def pack_with(inject, *args, **kwargs):
    """Runs mkshard under strace with a fault injected; returns the CompletedProcess."""
    return tools.run(["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={inject}",
                      tools.tool("mkshard"), "pack", *args], check=False, env=tools.TRACED, **kwargs)


def counted(call, *args):
    """How often the main thread makes a system call in an undisturbed run."""
    done = tools.run(["strace", "-qq", "-e", f"trace={call}", tools.tool("mkshard"), "pack", *args], env=tools.TRACED)
    return sum(line.startswith(call + "(") for line in done.stderr.splitlines())


KILLED_AT = ["mkdir", "openat", "fallocate", "pwrite64", "ftruncate", "fsync", "fdatasync", "rename", "renameat2", "unlinkat",
             "io_uring_enter", "close"]


@pytest.mark.parametrize("call", KILLED_AT)
def test_killed_and_resumed(scratch, source, wanted, call):
    """kill -9 at system calls spread over the run; then the same command: the dataset is the one of an undisturbed run."""
    needs_strace()
    total = counted(call, *OPTIONS, source, scratch / "probe")
    assert total > 0
    dataset = scratch / "d"
    points = sorted({1 + (total - 1) * k // 5 for k in range(6)})
    killed = 0
    for point in points:
        done = pack_with(f"{call}:signal=KILL:when={point}", *OPTIONS, source, dataset)
        killed += done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if dataset.exists():  # killed behind the rename, or not at all
            assert published(dataset) == wanted
        else:
            done = tools.mkshard("pack", *OPTIONS, source, dataset)
            assert files_of(dataset) == wanted
        assert [p.name for p in scratch.iterdir() if "partial" in p.name] == []
        shutil.rmtree(dataset)
    assert killed >= len(points) - 1


def test_resuming_does_not_pack_again(scratch, source, wanted):
    needs_strace()
    dataset = scratch / "d"
    pack_with("fsync:signal=KILL:when=6", *OPTIONS, source, dataset)
    before = {p.name: p.stat().st_ino for p in (scratch / "d.partial").glob("shard-*")}
    done = tools.mkshard("pack", *OPTIONS, source, dataset)
    assert "going on: 5 of " in done.stderr
    kept = [name for name, ino in before.items() if (dataset / name).stat().st_ino == ino]
    assert len(kept) >= 5 and files_of(dataset) == wanted


def test_killed_again_and_again(scratch, source, wanted):
    needs_strace()
    dataset = scratch / "d"
    for attempt in range(100):
        done = pack_with(f"fsync:signal=KILL:when={2 + attempt // 10}", *OPTIONS, source, dataset)
        if done.returncode == 0:
            break
    assert files_of(dataset) == wanted


def test_resuming_another_source_is_refused(scratch, source):
    needs_strace()
    dataset = scratch / "d"
    pack_with("fsync:signal=KILL:when=6", *OPTIONS, source, dataset)
    assert "--restart" in failure("pack", *OPTIONS, "--shuffle-seed=9", source, dataset)
    (source / "c0/new").write_text("new")
    assert "--restart" in failure("pack", *OPTIONS, source, dataset)
    assert not dataset.exists()
    tools.mkshard("pack", *OPTIONS, "--restart", source, dataset)
    assert "c0/new" in tools.mkshard("ls", dataset).stdout
    assert not (scratch / "d.partial").exists()


def test_a_damaged_journal_costs_work_only(scratch, source, wanted):
    needs_strace()
    dataset = scratch / "d"
    for damage in (lambda j: os.truncate(j, j.stat().st_size - 3), lambda j: os.truncate(j, 10),
                   lambda j: j.write_bytes(b"nonsense" * 100), flip_middle):
        pack_with("fsync:signal=KILL:when=6", *OPTIONS, source, dataset)
        damage(scratch / "d.partial" / "journal")
        tools.mkshard("pack", *OPTIONS, source, dataset)
        assert files_of(dataset) == wanted
        shutil.rmtree(dataset)


def flip_middle(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_lost_shard_is_packed_again(scratch, source, wanted):
    needs_strace()
    dataset = scratch / "d"
    pack_with("fsync:signal=KILL:when=6", *OPTIONS, source, dataset)
    (scratch / "d.partial/shard-000001.tar").unlink()
    os.truncate(scratch / "d.partial/shard-000002.tar", 5)
    tools.mkshard("pack", *OPTIONS, source, dataset)
    assert files_of(dataset) == wanted


@pytest.mark.parametrize("call", ["renameat2", "rename", "unlinkat", "rmdir", "unlink"])
def test_killed_while_replacing(scratch, source, pack, wanted, call):
    """--force: at every moment DATASET is the old one or the new one."""
    needs_strace()
    other = many_files(scratch / "other", n=30, seed=4)
    old = files_of(pack(other, *OPTIONS))
    for point in (1, 2, 4):
        dataset = scratch / "d"
        tools.mkshard("pack", *OPTIONS, other, dataset)
        pack_with(f"{call}:signal=KILL:when={point}", *OPTIONS, "--force", source, dataset)
        assert published(dataset) in (old, wanted)
        tools.mkshard("pack", *OPTIONS, "--force", source, dataset)
        assert files_of(dataset) == wanted
        assert sorted(p.name for p in scratch.iterdir() if p.name.startswith("d.")) == []
        shutil.rmtree(dataset)


@pytest.mark.parametrize("fault", ["pwrite64:error=EIO:when=3", "fsync:error=EIO:when=3", "renameat2:error=EACCES",
                                   "fallocate:error=ENOSPC:when=4", "pwrite64:error=ENOSPC:when=4"])
def test_write_errors(scratch, source, wanted, fault):
    needs_strace()
    dataset = scratch / "d"
    done = pack_with(fault, *OPTIONS, source, dataset)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "/d" in done.stderr and not dataset.exists()
    tools.mkshard("pack", *OPTIONS, source, dataset)
    assert files_of(dataset) == wanted


def test_short_and_interrupted_writes(scratch, source, wanted):
    needs_strace()
    done = pack_with("pwrite64:error=EINTR:when=2+3", *OPTIONS, source, scratch / "d")
    assert done.returncode == 0, done.stderr
    assert files_of(scratch / "d") == wanted


def test_full_disk(scratch):
    """A real one: a small tmpfs."""
    source = many_files(scratch / "source", n=100, size=100_000)
    small = scratch / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        done = tools.mkshard("pack", "--shard-size=1M", source, small / "d", check=False)
        assert done.returncode == 1
        lines = done.stderr.strip().splitlines()
        assert "warning" in lines[0] and "No space left" in lines[-1] and "go on" in lines[-1] and len(lines) == 2
        assert not (small / "d").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        done = tools.mkshard("pack", "--shard-size=1M", source, small / "d")
        assert "going on" in done.stderr
        tools.mkshard("verify", small / "d")
        tools.mkshard("pack", "--shard-size=1M", source, scratch / "other")
        assert files_of(small / "d") == files_of(scratch / "other")
        os.remove(small / "d/shard-000000.tar")
    finally:
        subprocess.run(["umount", small], check=True)


def test_full_disk_while_unpacking(scratch):
    source = many_files(scratch / "source", n=100, size=100_000)
    tools.run(["tar", "czf", scratch / "a.tgz", "-C", source, "."])
    small = scratch / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        assert "No space left" in failure("pack", scratch / "a.tgz", small / "d")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_two_at_once(scratch, source):
    """The second one is told so; the first one is not disturbed."""
    needs_strace()
    slow = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fallocate:delay_enter=2000000:when=1",
                             tools.tool("mkshard"), "pack", *OPTIONS, source, scratch / "slow"],
                            env={**os.environ, **tools.TRACED})
    while not (scratch / "slow.partial/journal").exists() or (scratch / "slow.partial/journal").stat().st_size == 0:
        assert slow.poll() is None
    assert "another mkshard" in failure("pack", *OPTIONS, source, scratch / "slow")
    assert slow.wait() == 0
    tools.mkshard("verify", scratch / "slow")


@pytest.mark.parametrize("options", [[], ["--restart"], ["--force"]])
def test_a_second_run_leaves_the_first_alone(scratch, source, options):
    """From the first name on: the second one would unpack to the same place, and tidy up after itself."""
    archive = scratch / "more.tgz"
    tools.run(["tar", "czf", archive, "--transform=s,^,more/,", "-C", source, "."])
    slow = subprocess.Popen([tools.tool("mkshard"), "pack", *OPTIONS, "-C", source, archive, "-", scratch / "slow"],
                            stdin=subprocess.PIPE)
    slow.stdin.write(b"./\0" * 400_000)  # more than a pipe and a buffer hold: the archive is unpacked
    slow.stdin.flush()
    staged = (scratch / "slow.partial/unpacked-0").stat()
    assert "another mkshard" in failure("pack", *OPTIONS, *options, archive, scratch / "slow")
    assert (scratch / "slow.partial/unpacked-0").stat() == staged
    slow.communicate(b"c0/00000.bin\0")
    assert slow.returncode == 0
    tools.mkshard("verify", scratch / "slow")
    assert "c0/00000.bin" in tools.mkshard("ls", scratch / "slow").stdout


def test_resuming_an_archive_from_a_pipe(scratch, source):
    """Goes by the content: a pipe has neither name nor time."""
    needs_strace()
    tools.run(["tar", "cf", scratch / "a.tar", "-C", source, "."])
    data = (scratch / "a.tar").read_bytes()
    tools.mkshard("pack", *OPTIONS, "/dev/stdin", scratch / "whole", input=data, text=False)
    killed = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:signal=KILL:when=6", tools.tool("mkshard"),
              "pack", *OPTIONS, "/dev/stdin", scratch / "d"]
    subprocess.run([str(word) for word in killed], input=data, check=False)
    other = bytearray(data)
    with open(source / "c0/00000.bin", "rb") as f:
        other[data.index(f.read(100))] ^= 1
    assert "--restart" in failure("pack", *OPTIONS, "/dev/stdin", scratch / "d", input=bytes(other), text=False)
    done = tools.mkshard("pack", *OPTIONS, "/dev/stdin", scratch / "d", input=data, text=False)
    assert b"going on: " in done.stderr
    assert files_of(scratch / "d") == files_of(scratch / "whole")


def test_a_file_system_without_locks(scratch, source, wanted):
    needs_strace()
    done = pack_with("flock:error=ENOSYS", *OPTIONS, source, scratch / "d")
    assert done.returncode == 0 and files_of(scratch / "d") == wanted


def test_nothing_stays_where_nothing_fits(scratch, source):
    """A disk that is full before the first byte."""
    needs_strace()
    done = pack_with("pwrite64:error=ENOSPC:when=1", *OPTIONS, source, scratch / "d")
    assert done.returncode == 1 and "No space left" in done.stderr
    assert not list(scratch.glob("d*"))


def test_interrupted_by_a_signal(scratch, source, wanted):
    """Ctrl-C is a kill like any other: a rerun goes on."""
    needs_strace()
    done = pack_with("fsync:signal=INT:when=6", *OPTIONS, source, scratch / "d")
    assert done.returncode != 0 and not (scratch / "d").exists()
    tools.mkshard("pack", *OPTIONS, source, scratch / "d")
    assert files_of(scratch / "d") == wanted


def test_shards_of_a_killed_run_with_other_options_are_not_published(scratch):
    """None was complete, so its journal holds nothing that would speak of them."""
    source = many_files(scratch / "source")
    partial = scratch / "d.partial"
    partial.mkdir()
    for name in ("shard-000000.bare", "shard-000000.tar", "shard-000007.tar", "shard-000123.tar"):
        (partial / name).write_bytes(b"stale")
    tools.mkshard("pack", source, scratch / "d")
    tools.mkshard("pack", source, scratch / "fresh")
    assert files_of(scratch / "d") == files_of(scratch / "fresh")


REFUSING = [["info"], ["ls"], ["verify"], ["index"], ["index", "--force"], ["index", "--keep-going"], ["stats"],
            ["extract", "OUT"], ["cat", "c0/00000.bin"]]


@pytest.mark.parametrize("command", REFUSING, ids=" ".join)
def test_an_unfinished_packing_is_no_dataset(scratch, source, command):
    """Each says so, and the command that goes on; none makes a dataset of the shards that are there."""
    needs_strace()
    pack_with("fsync:signal=KILL:when=6", *OPTIONS, source, scratch / "d")
    partial = scratch / "d.partial"
    before = files_of(partial)
    words = [scratch / "out" if word == "OUT" else word for word in command[1:]]
    options = [word for word in words if str(word).startswith("--")]
    line = failure(command[0], *options, partial, *[word for word in words if word not in options])
    assert "unfinished packing" in line and f"mkshard pack {' '.join(OPTIONS)} {source} {scratch}/d" in line
    assert files_of(partial) == before


def test_no_index_is_made_of_the_shards_of_an_unfinished_packing(scratch, source):
    needs_strace()
    pack_with("fsync:signal=KILL:when=6", *OPTIONS, source, scratch / "d")
    shards = sorted((scratch / "d.partial").glob("shard-*.tar"))[:4]
    for more in ([], ["--force"], ["--keep-going"]):
        assert "unfinished packing" in failure("index", *more, scratch / "made", *shards)
        assert not (scratch / "made").exists()
    done = tools.ddpfs("mount", "-o", "view=all", scratch / "d.partial", scratch / "source", check=False)
    assert done.returncode == 1 and "unfinished packing" in done.stderr


@pytest.mark.parametrize("name, number", [("INT", signal.SIGINT), ("TERM", signal.SIGTERM)])
def test_an_interrupt_says_how_to_go_on(scratch, source, wanted, name, number):
    """What is kept, and the command, which a shell can run as it stands."""
    needs_strace()
    dataset = scratch / "my data"
    done = pack_with(f"fsync:signal={name}:when=6", *OPTIONS, source, dataset)
    assert done.returncode in (-number, 128 + number)  # as a shell expects of what a signal ended
    told = re.fullmatch(r"mkshard: interrupted: 5 of \d+ shards are complete and kept in '(.*)'; go on with: (.*)\n",
                        done.stderr)
    assert told and told[1] == f"{dataset}.partial"
    again = subprocess.run(told[2], shell=True, capture_output=True, text=True, check=True)
    assert "going on: 5 of" in again.stderr and files_of(dataset) == wanted


def test_an_interrupt_before_anything_is_complete_says_so(scratch, source):
    needs_strace()
    done = pack_with("fsync:signal=INT:when=1", *OPTIONS, source, scratch / "d")
    assert "no shard is complete" in done.stderr and f"{source} {scratch}/d\n" in done.stderr
    done = pack_with("fsync:signal=INT:when=1", *OPTIONS, "-C", source, "-", scratch / "d", input="c0/00000.bin\0")
    assert "(and the same standard input)" in done.stderr


def test_an_ignored_interrupt_stays_ignored(scratch, source, wanted):
    """As of a job in the background of a shell."""
    needs_strace()
    words = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:signal=INT:when=6", tools.tool("mkshard"),
             "pack", *OPTIONS, source, scratch / "d"]
    done = tools.run(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *words], env=tools.TRACED)
    assert "interrupted" not in done.stderr and files_of(scratch / "d") == wanted


def test_a_restart_that_is_interrupted_does_not_advise_to_restart_again(scratch, source, wanted):
    """--restart in the command that goes on would remove the shards that are kept."""
    needs_strace()
    dataset = scratch / "d"
    pack_with("fsync:signal=KILL:when=6", *OPTIONS, "--shuffle-seed=9", source, dataset)
    done = pack_with("fsync:signal=INT:when=6", "--rest", *OPTIONS, "--restart", source, dataset)
    told = re.search(r"interrupted: 5 of \d+ shards are complete and kept in .*; go on with: (.*)\n", done.stderr)
    assert told and "--rest" not in told[1]
    line = failure("info", scratch / "d.partial")
    assert line.endswith(f"go on with: {told[1]}")
    again = subprocess.run(told[1], shell=True, capture_output=True, text=True, check=True)
    assert "going on: 5 of" in again.stderr and files_of(dataset) == wanted


def test_a_restart_whose_dataset_gets_no_name_advises_the_command_without_it(scratch, source, wanted):
    needs_strace()
    done = pack_with("renameat2:error=EACCES", *OPTIONS, "--restart", source, scratch / "d")
    assert "run the same command again without --restart" in done.stderr
    tools.mkshard("pack", *OPTIONS, source, scratch / "d")
    assert files_of(scratch / "d") == wanted
