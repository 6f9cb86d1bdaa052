# SPDX-License-Identifier: Apache-2.0
"""mkshard with input that is wrong, hostile or changes: one clear line that names the file, exit 1, and never a half
dataset under the final name."""

import gzip
import io
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import zipfile

import pytest

from helpers import tools
from tools.shards import facts, failure, many_files, rich_tree


@pytest.fixture
def source(scratch):
    return many_files(scratch / "source", n=50)


@pytest.fixture
def clean(scratch):
    """Nothing of a failed packing may stay behind: checked at the end of a test."""
    yield
    left = [p.name for p in scratch.iterdir() if p.name.startswith("d") and p.name != "dataset0"]
    assert not left, left


def unprivileged(scratch, *args):
    """Runs mkshard as a user who may not read everything: a copy of it, since the build may not be theirs to read."""
    binary = scratch / "mkshard"
    shutil.copy(tools.tool("mkshard"), binary)
    os.chmod(scratch, 0o777)
    os.chmod(binary, 0o755)
    who = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run([str(a) for a in (binary, *args)], capture_output=True, text=True, **who)


def test_unreadable_file(scratch, source, clean):
    (source / "c3/00003.bin").chmod(0)
    done = unprivileged(scratch, "pack", source, scratch / "d")
    assert done.returncode == 1 and "c3/00003.bin': cannot be read: Permission denied" in done.stderr
    assert not (scratch / "d").exists()


def test_bad_files_are_listed_together(scratch, source, clean):
    """So that they can be mended in one go: what is wrong with names, and what turns out when it is opened."""
    for name in ("c3/00003.bin", "c7/00017.bin"):
        (source / name).chmod(0)
    done = unprivileged(scratch, "pack", source, scratch / "d")
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and len(lines) == 3, done.stderr
    assert "c3/00003.bin': cannot be read: Permission denied" in lines[0]
    assert "c7/00017.bin': cannot be read: Permission denied" in lines[1]
    assert "2 files cannot be packed; mend them, or give --keep-going" in lines[2]
    (source / "c1/dangling").symlink_to("nowhere")
    lines = unprivileged(scratch, "pack", source, scratch / "d").stderr.strip().splitlines()
    assert len(lines) == 4 and "c1/dangling" in lines[0] and "3 files cannot be packed;" in lines[3], lines
    for i in range(30):
        (source / f"c2/dangling{i}").symlink_to("nowhere")
    lines = unprivileged(scratch, "pack", source, scratch / "d").stderr.strip().splitlines()
    assert len(lines) == 21 and "33 files cannot be packed, and some of them are named above;" in lines[20], lines


def test_keep_going_leaves_out_and_lists(scratch, source):
    for name in ("c3/00003.bin", "c7/00017.bin"):
        (source / name).chmod(0)
    (source / "c1/dangling").symlink_to("nowhere")
    done = unprivileged(scratch, "pack", "--keep-going", "--shard-size=20K", source, scratch / "d")
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 3 and all(line.startswith("mkshard: left out '") for line in lines)
    assert "c1/dangling" in lines[0] and "c3/00003.bin" in lines[1] and "c7/00017.bin" in lines[2]
    tools.mkshard("verify", scratch / "d")
    tools.mkshard("extract", scratch / "d", scratch / "out")
    (source / "c1/dangling").unlink()
    wanted = facts(source)
    del wanted[b"c3/00003.bin"], wanted[b"c7/00017.bin"]
    got = facts(scratch / "out")
    assert {p: f for p, f in got.items() if p != b"c1"} == {p: f for p, f in wanted.items() if p != b"c1"}
    before = (scratch / "d/index.ddpfs").read_bytes()
    tools.mkshard("index", scratch / "d")
    assert (scratch / "d/index.ddpfs").read_bytes() == before


def left_out(done):
    assert done.returncode == 1, done.stderr
    lines = done.stderr.strip().splitlines()
    assert all(line.startswith("mkshard: left out '") for line in lines), done.stderr
    return lines


def test_equal_names_of_two_sources(scratch, clean):
    (scratch / "g").mkdir()
    (scratch / "g/labels.csv").write_text("first")
    (scratch / "g.tar").write_bytes(tar_bytes(("labels.csv", b"second"), ("x", b"x")))
    line = failure("pack", scratch / "g", scratch / "g.tar", scratch / "d")
    assert f"'labels.csv' comes twice: in '{scratch}/g' and in '{scratch}/g.tar'" in line
    lines = left_out(tools.mkshard("pack", "--keep-going", scratch / "g", scratch / "g.tar", scratch / "d", check=False))
    assert len(lines) == 1 and "'labels.csv' comes twice" in lines[0]
    assert tools.mkshard("cat", scratch / "d", "labels.csv", "x").stdout == "firstx"
    tools.mkshard("verify", scratch / "d")
    shutil.rmtree(scratch / "d")


@pytest.mark.parametrize("order", [("file.tar", "tree.tar"), ("tree.tar", "file.tar")])
def test_a_file_where_others_need_a_directory(scratch, clean, order):
    (scratch / "file.tar").write_bytes(tar_bytes(("a", b"file"), ("z", b"z")))
    (scratch / "tree.tar").write_bytes(tar_bytes(("a/b", b"b"), ("a/c/d", b"d"), ("y", b"y")))
    sources = [scratch / name for name in order]
    done = tools.mkshard("pack", *sources, scratch / "d", check=False)
    clashes = [line for line in done.stderr.splitlines() if "needs a directory" in line]
    assert done.returncode == 1 and len(clashes) == (2 if order[0] == "file.tar" else 1), done.stderr
    assert all("file.tar'" in line and "tree.tar'" in line for line in clashes), done.stderr
    lines = left_out(tools.mkshard("pack", "--keep-going", *sources, scratch / "d", check=False))
    listed = tools.mkshard("ls", scratch / "d").stdout.split()
    if order[0] == "file.tar":
        assert len(lines) == 2 and listed == ["a", "y", "z"]
    else:
        assert len(lines) == 1 and sorted(listed) == ["a/b", "a/c/d", "y", "z"]
    tools.mkshard("verify", scratch / "d")
    shutil.rmtree(scratch / "d")


def test_one_name_twice_in_an_archive(scratch, clean):
    (scratch / "t.tar").write_bytes(tar_bytes(("a", b"1"), ("a", b"2")))
    assert f"'a' comes twice in '{scratch}/t.tar'" in failure("pack", scratch / "t.tar", scratch / "d")


def test_keep_going_with_nothing_left(scratch, clean):
    (scratch / "s").mkdir()
    (scratch / "s/dangling").symlink_to("nowhere")
    done = tools.mkshard("pack", "--keep-going", scratch / "s", scratch / "d", check=False)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and "left out" in lines[0] and "every file was left out" in lines[1]


def test_unreadable_directory(scratch, source, clean):
    (source / "c3").chmod(0)
    done = unprivileged(scratch, "pack", source, scratch / "d")
    (source / "c3").chmod(0o755)
    assert done.returncode == 1 and "source/c3': Permission denied" in done.stderr


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "replace", "remove"])
def test_file_that_changes_while_packing(scratch, source, clean, change):
    """The list comes through a pipe: once the names behind a file's were taken, the file was listed; it is changed then,
    and only after that the list ends and reading begins."""
    victim = source / "c3/00003.bin"
    process = subprocess.Popen([tools.tool("mkshard"), "pack", "-C", source, "-", scratch / "d"], stdin=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    names = b"".join(os.fsencode(os.path.relpath(p, source)) + b"\0" for p in sorted(source.glob("c?/*")))
    process.stdin.write(names + b"./\0" * 400_000)  # more than a pipe and a buffer hold
    process.stdin.flush()
    if change == "grow":
        with open(victim, "ab") as f:
            f.write(b"more")
    elif change == "shrink":
        os.truncate(victim, 100)
    elif change == "touch":
        os.utime(victim, ns=(1, 1))
    elif change == "replace":
        st = victim.stat()
        (source / "new").write_bytes(victim.read_bytes())
        os.utime(source / "new", ns=(st.st_mtime_ns, st.st_mtime_ns))
        os.rename(source / "new", victim)
    else:
        victim.unlink()
    _, stderr = process.communicate()
    assert process.returncode == 1
    reason = b"cannot be read: No such file" if change == "remove" else b"changed since it was listed"
    assert b"c3/00003.bin': " + reason in stderr and stderr.count(b"\n") == 1
    assert not (scratch / "d").exists()


@pytest.mark.parametrize("make", ["fifo", "socket", "dangling", "loop", "self"])
def test_special_files_and_links(scratch, source, clean, make):
    path = source / "c3/special"
    if make == "fifo":
        os.mkfifo(path)
    elif make == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
    elif make == "dangling":
        path.symlink_to("nowhere")
    elif make == "self":
        path.symlink_to("special")
    else:
        path.symlink_to("..")
    line = failure("pack", source, scratch / "d")
    assert "c3/special': " in line
    assert ("--keep-going" in line) == path.is_symlink()


def test_empty_sources(scratch, clean):
    (scratch / "source" / "only" / "directories").mkdir(parents=True)
    assert "no files" in failure("pack", scratch / "source", scratch / "d")
    assert "no files" in failure("pack", "-", scratch / "d", input="")
    assert "neither a directory nor an archive" in failure("pack", "/dev/null", scratch / "d")
    (scratch / "empty.tar").write_bytes(b"")
    assert "empty.tar': an empty file" in failure("pack", scratch / "empty.tar", scratch / "d")
    (scratch / "source" / "x").write_text("x")
    assert "neither a directory nor an archive" in failure("pack", scratch / "source/x", scratch / "d")
    assert "No such file" in failure("pack", scratch / "nothing", scratch / "d")


def test_dataset_inside_its_source(scratch, source, clean):
    assert "inside its own source" in failure("pack", source, source / "out")
    assert "inside its own source" in failure("pack", ".", "out", cwd=source)
    assert sorted(p.name for p in source.iterdir()) == [f"c{i}" for i in range(10)]


def test_names_that_are_no_dataset(scratch, source):
    for name in ("", ".", "..", "/", f"{scratch}/.."):
        assert "not a name" in failure("pack", source, name)
    assert "No such file" in failure("pack", source, scratch / "no/where")


def test_the_mounts_own_name(scratch, source, clean):
    (source / ".ddpfs").mkdir()
    (source / ".ddpfs/x").write_text("x")
    assert ".ddpfs" in failure("pack", source, scratch / "d")


def test_path_over_the_limit(scratch, clean):
    deep = scratch / "source"
    deep.mkdir()
    here = os.getcwd()
    try:
        os.chdir(deep)
        for _ in range(20):
            os.mkdir("x" * 250)
            os.chdir("x" * 250)
        with open("file", "w") as f:
            f.write("too deep")
    finally:
        os.chdir(here)
    line = failure("pack", deep, scratch / "d")
    assert "4095" in line
    shutil.rmtree(deep)


# Archives


def tar_bytes(*members, mode="w"):
    """A tar of (name, bytes) or TarInfo."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                info.mtime = 1_600_000_000
                tar.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


HOSTILE = {
    "absolute": ("/etc/evil", b"x"),
    "dotdot": ("a/../../evil", b"x"),
    "dotdot-only": ("..", b"x"),
    "symlink": special("evil", tarfile.SYMTYPE, "/etc/passwd"),
    "hardlink": special("evil", tarfile.LNKTYPE, "good"),
    "device": special("evil", tarfile.CHRTYPE),
    "block-device": special("evil", tarfile.BLKTYPE),
    "fifo": special("evil", tarfile.FIFOTYPE),
    "own-name": (".ddpfs/evil", b"x"),
    "too-long": ("evil" * 70, b"x"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_hostile_members(scratch, clean, kind, mode):
    archive = scratch / "hostile.tar"
    archive.write_bytes(tar_bytes(("good", b"good"), HOSTILE[kind], ("also", b"good"), mode=mode))
    line = failure("pack", archive, scratch / "d")
    assert "hostile.tar" in line and ("evil" in line or ".." in line)
    done = tools.mkshard("pack", "--keep-going", archive, scratch / "kept", check=False)
    assert done.returncode == 1 and "left out" in done.stderr
    assert tools.mkshard("ls", scratch / "kept").stdout == "also\ngood\n"
    tools.mkshard("verify", scratch / "kept")


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_shards_are_not_indexed(scratch, kind):
    shard = scratch / "hostile.tar"
    shard.write_bytes(tar_bytes(("good", b"good"), HOSTILE[kind], ("also", b"good")))
    line = failure("index", scratch / "x", shard)
    assert "hostile.tar" in line and "byte 1024" in line
    assert not (scratch / "x").exists()
    done = tools.mkshard("index", "--keep-going", scratch / "x", shard, check=False)
    assert done.returncode == 1 and "left out" in done.stderr
    assert tools.mkshard("ls", scratch / "x").stdout == "also\ngood\n"


def members(n=20):
    return [(f"c{i % 3}/{i:03}.bin", bytes([i]) * (i * 333)) for i in range(n)]


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_good_tars(scratch, fmt, mode):
    archive = scratch / "good.archive"
    names = dict(members())
    names["long/" + "n" * 200] = b"long"
    if fmt != tarfile.USTAR_FORMAT:
        names["ünï/" + "\u4e2d" * 80] = b"unicode"
    else:
        names = {name: data for name, data in names.items() if len(name) < 100}
    with tarfile.open(archive, mode, format=fmt) as tar:
        for name, data in names.items():
            info = tarfile.TarInfo("./" + name)
            info.size, info.mtime, info.mode = len(data), 1_600_000_000, 0o640
            tar.addfile(info, io.BytesIO(data))
    tools.mkshard("pack", archive, scratch / "d")
    tools.mkshard("extract", scratch / "d", scratch / "out")
    got = {path: fact for path, fact in facts(scratch / "out").items() if fact[3] is not None}
    assert got == {os.fsencode(name): (stat.S_IFREG, 0o640, 1_600_000_000, data) for name, data in names.items()}


def test_zstd_and_zip(scratch):
    plain = scratch / "plain.tar"
    plain.write_bytes(tar_bytes(*members()))
    if shutil.which("zstd"):
        tools.run(["zstd", "-q", plain, "-o", scratch / "a.tar.zst"])
        tools.mkshard("pack", scratch / "a.tar.zst", scratch / "z")
        tools.mkshard("extract", scratch / "z", scratch / "zout")
        assert {p: f[3] for p, f in facts(scratch / "zout").items() if f[3] is not None} == \
            {os.fsencode(n): d for n, d in members()}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(scratch / "a.zip", "w", method) as archive:
            for name, data in members():
                archive.writestr(name, data)
            archive.writestr("ünï/\u4e2d", b"unicode")
        tools.mkshard("pack", scratch / "a.zip", scratch / f"zip{method}")
        tools.mkshard("extract", scratch / f"zip{method}", scratch / f"zipout{method}")
        got = {p: f[3] for p, f in facts(scratch / f"zipout{method}").items() if f[3] is not None}
        assert got == {os.fsencode(n): d for n, d in members() + [("ünï/\u4e2d", b"unicode")]}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_archives_through_a_pipe(scratch, mode):
    data = tar_bytes(*members(), mode=mode)
    done = subprocess.run([tools.tool("mkshard"), "pack", "/dev/stdin", scratch / "d"], input=data, check=True)
    assert done.stderr is None
    tools.mkshard("extract", scratch / "d", scratch / "out")
    assert {p: f[3] for p, f in facts(scratch / "out").items() if f[3] is not None} == \
        {os.fsencode(n): d for n, d in members()}
    for wrong in (b"", b"no archive" * 100, data[:len(data) // 2]):
        line = failure("pack", "/dev/stdin", scratch / "e", input=wrong, text=False)
        assert "/dev/stdin" in line and not list(scratch.glob("e*"))
    bomb = tar_bytes(("zeros", bytes(3 << 20)), mode="w:gz")
    assert "--unpack-limit" in failure("pack", "--unpack-limit=1M", "/dev/stdin", scratch / "e", input=bomb, text=False)


def test_archives_and_directories_together(scratch, source):
    (scratch / "a.tar").write_bytes(tar_bytes(("extra/a", b"a")))
    (scratch / "b.tgz").write_bytes(tar_bytes(("extra/b", b"b"), mode="w:gz"))
    tools.mkshard("pack", "--shard-size=20K", scratch / "a.tar", source, scratch / "b.tgz", scratch / "d")
    assert tools.mkshard("cat", scratch / "d", "extra/a", "extra/b").stdout == "ab"
    tools.mkshard("verify", scratch / "d")
    assert sorted(p.suffix for p in (scratch / "d").iterdir()) == [".ddpfs"] + [".tar"] * (len(list((scratch / "d").iterdir())) - 1)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_truncated_archives(scratch, clean, mode):
    whole = tar_bytes(*members(), mode=mode)
    if mode == "w":
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            cuts = [at for m in tar if m.size > 1 for at in (m.offset + 300, m.offset_data + m.size // 2)]
    else:
        cuts = range(40, len(whole) - 8, len(whole) // 12)
    for cut in cuts:
        (scratch / "cut.tar").write_bytes(whole[:cut])
        assert "cut.tar" in failure("pack", scratch / "cut.tar", scratch / "d"), cut


def test_a_tar_without_its_end_is_warned_about(scratch):
    """Between two members a cut cannot be told from a writer that leaves the end mark out."""
    whole = tar_bytes(("a", b"x" * 600), ("b", b"y" * 600))
    (scratch / "cut.tar").write_bytes(whole[:1536])
    for command in (["pack", scratch / "cut.tar", scratch / "p"], ["index", scratch / "i", scratch / "cut.tar"]):
        done = tools.mkshard(*command)
        assert "cut.tar' has no end-of-archive mark" in done.stderr
    (scratch / "whole.tar").write_bytes(whole)
    assert tools.mkshard("pack", scratch / "whole.tar", scratch / "p2").stderr == ""
    assert tools.mkshard("index", scratch / "i2", scratch / "whole.tar").stderr == ""


@pytest.mark.parametrize("pack_bytes", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_a_tar_stream_without_its_end_is_refused(scratch, pack_bytes):
    """A pipe ends in the same way when its writer was killed between two members."""
    whole = tar_bytes(("a", b"x" * 600), ("b", b"y" * 600))
    for cut in (1536, 3072):
        line = failure("pack", "/dev/stdin", scratch / "d", input=pack_bytes(whole[:cut]), text=False)
        assert f"the tar stream ends at byte {cut} without its end-of-archive mark" in line and not list(scratch.glob("d*"))
    for end in (3072 + 512, 3072 + 1024, len(whole)):  # tar(1) takes one block of zeros, too
        assert tools.mkshard("pack", "/dev/stdin", scratch / str(end), input=pack_bytes(whole[:end]), text=False).stderr == b""
    done = tools.mkshard("pack", "--keep-going", "/dev/stdin", scratch / "kept", input=pack_bytes(whole[:1536]), text=False, check=False)
    assert done.returncode == 1 and tools.mkshard("ls", scratch / "kept").stdout == "a\n"
    assert b"end-of-archive mark" in done.stderr


def test_a_compressed_tar_without_its_end_is_warned_about(scratch):
    whole = tar_bytes(("a", b"x" * 600), ("b", b"y" * 600))
    (scratch / "cut.tgz").write_bytes(gzip.compress(whole[:1536]))
    assert "cut.tgz' has no end-of-archive mark" in tools.mkshard("pack", scratch / "cut.tgz", scratch / "p").stderr
    (scratch / "whole.tgz").write_bytes(gzip.compress(whole))
    assert tools.mkshard("pack", scratch / "whole.tgz", scratch / "p2").stderr == ""


def two_archives():
    """As `cat a.tar b.tar` writes them, and where the first one ends, without what fills its last record."""
    return tar_bytes(("a", b"x" * 600)) + tar_bytes(("b", b"y" * 600)), 512 + 1024 + 1024


@pytest.mark.parametrize("command", ["pack", "index"])
def test_an_archive_behind_another_is_said(scratch, command):
    """tar(1) reads the first one alone, and says nothing."""
    both, end = two_archives()
    (scratch / "both.tar").write_bytes(both)
    words = ("both.tar", "d") if command == "pack" else ("d", "both.tar")
    line = failure(command, *words, cwd=scratch)
    assert f"both.tar': the archive ends at byte {end} and {len(both) - end} bytes follow" in line, line
    done = tools.mkshard(command, "--keep-going", *words, cwd=scratch, check=False)
    assert done.returncode == 1 and f"{len(both) - end} bytes follow" in done.stderr, done.stderr
    assert tools.mkshard("ls", scratch / "d").stdout == "a\n"


@pytest.mark.parametrize("fill", [0, 512, 100, 3 << 20])
def test_zeros_behind_an_archive_are_nothing(scratch, fill):
    (scratch / "one.tar").write_bytes(tar_bytes(("a", b"x" * 600))[:2560] + bytes(fill))
    assert tools.mkshard("pack", scratch / "one.tar", scratch / "p").stderr == ""
    assert tools.mkshard("index", scratch / "i", scratch / "one.tar").stderr == ""


def test_compressed_tars_beside_shards_are_left_out_with_a_warning(scratch):
    (scratch / "d").mkdir()
    (scratch / "d/one.tar").write_bytes(tar_bytes(("a", b"x")))
    (scratch / "d/two.tar.gz").write_bytes(gzip.compress(tar_bytes(("b", b"x"))))
    said = tools.mkshard("index", scratch / "d").stderr
    assert "compressed tar files are left out: 1, the first one 'two.tar.gz'" in said
    assert tools.mkshard("ls", scratch / "d").stdout == "a\n"


def test_the_last_byte_of_a_large_file_is_seen(scratch):
    (scratch / "one.tar").write_bytes(tar_bytes(("a", b"x" * 600)) + bytes(3 << 20) + b"\n")
    assert "bytes follow" in failure("pack", scratch / "one.tar", scratch / "p")
    assert "bytes follow" in failure("index", scratch / "i", scratch / "one.tar")


@pytest.mark.parametrize("rest", [bytes(100), b"\n", b"x" * 600])
def test_what_follows_a_compressed_archive_is_told_from_a_cut(scratch, rest):
    (scratch / "one.tar.gz").write_bytes(gzip.compress(tar_bytes(("a", b"x" * 600)) + rest))
    assert "cut off, or what follows its end is neither" in failure("pack", scratch / "one.tar.gz", scratch / "p")
    tools.mkshard("pack", "--keep-going", scratch / "one.tar.gz", scratch / "p", check=False)
    assert tools.mkshard("ls", scratch / "p").stdout == "a\n"


@pytest.mark.parametrize("pack_bytes", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_a_stream_of_two_archives_is_packed_as_a_whole(scratch, pack_bytes):
    both, _ = two_archives()
    tools.mkshard("pack", "/dev/stdin", scratch / "d", input=pack_bytes(both), text=False)
    assert tools.mkshard("ls", scratch / "d").stdout == "a\nb\n"


def test_damaged_tar_headers(scratch, clean):
    whole = bytearray(tar_bytes(*members()))
    with tarfile.open(fileobj=io.BytesIO(bytes(whole))) as tar:
        offsets = [member.offset for member in tar][1:]
    for offset in offsets:
        broken = bytearray(whole)
        broken[offset + 3] ^= 0x20
        (scratch / "broken.tar").write_bytes(broken)
        line = failure("pack", scratch / "broken.tar", scratch / "d")
        assert "checksum" in line and str(offset) in line
        assert str(offset) in failure("index", scratch / "x", scratch / "broken.tar")


def test_damaged_zip(scratch, clean):
    with zipfile.ZipFile(scratch / "a.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("name", b"A" * 1000)
    data = (scratch / "a.zip").read_bytes()
    (scratch / "a.zip").write_bytes(data.replace(b"A" * 1000, b"A" * 999 + b"B"))
    line = failure("pack", scratch / "a.zip", scratch / "d")
    assert "a.zip" in line and "CRC" in line


def test_bombs(scratch, clean):
    with zipfile.ZipFile(scratch / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("zeros", "w") as f:
            for _ in range(64):
                f.write(bytes(1 << 20))
    assert "--unpack-limit" in failure("pack", "--unpack-limit=1M", scratch / "bomb.zip", scratch / "d")
    tools.mkshard("pack", "--unpack-limit=65M", scratch / "bomb.zip", scratch / "ok")
    many = tar_bytes(*[(f"{i}", b"") for i in range(5000)], mode="w:gz")
    (scratch / "many.tgz").write_bytes(many)
    assert "--unpack-limit" in failure("pack", "--unpack-limit=1M", scratch / "many.tgz", scratch / "d")


def test_archive_that_is_replaced_while_packing(scratch, clean, source):
    """An uncompressed tar is read in place: it is listed first, and must be the same when it is read."""
    (scratch / "a.tar").write_bytes(tar_bytes(*members()))
    process = subprocess.Popen([tools.tool("mkshard"), "pack", "-C", source, scratch / "a.tar", "-", scratch / "d"],
                               stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"./\0" * 400_000)
    process.stdin.flush()
    with open(scratch / "a.tar", "r+b") as f:
        f.write(b"x")
    os.utime(scratch / "a.tar", ns=(5, 5))
    _, stderr = process.communicate()
    assert process.returncode == 1 and b"a.tar" in stderr and b"changed" in stderr


def test_index_adopts_webdataset_shards(scratch):
    shards = scratch / "shards"
    shards.mkdir()
    for s in range(3):
        (shards / f"train-{s:04}.tar").write_bytes(tar_bytes(
            *[(f"{s}{i:03}.{ext}", f"{s}{i}{ext}".encode() * 100) for i in range(10) for ext in ("cls", "jpg", "json")]))
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in shards.iterdir()}
    names = sorted(shards.iterdir())
    out = tools.mkshard("index", scratch / "d", *names).stdout
    assert "by key" in out
    info = tools.mkshard("info", scratch / "d").stdout
    assert "files        90 (0 common)" in info and "samples      30, grouped" in info
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in shards.iterdir()} == before
    assert tools.mkshard("cat", scratch / "d", "1007.jpg").stdout == "17jpg" * 100
    tools.mkshard("verify", scratch / "d")
    assert "--force" in failure("index", scratch / "d", *names)
    assert "one file each" in tools.mkshard("index", "--force", "--sample=file", scratch / "d", *names).stdout
    # A shard that was written to afterwards is noticed.
    with open(names[1], "ab") as f:
        f.write(b"\0" * 512)
    assert "train-0001.tar" in failure("cat", scratch / "d", "1007.jpg")
    assert tools.mkshard("verify", scratch / "d", check=False).returncode == 1


def test_index_of_equal_names(scratch):
    for s in range(2):
        (scratch / f"s{s}.tar").write_bytes(tar_bytes(("a.jpg", b"%d" % s), ("a.cls", b"c")))
    assert "--by-shard" in failure("index", scratch / "d", scratch / "s0.tar", scratch / "s1.tar")
    tools.mkshard("index", "--by-shard", scratch / "d", scratch / "s0.tar", scratch / "s1.tar")
    assert tools.mkshard("ls", scratch / "d").stdout == "s0/a.cls\ns0/a.jpg\ns1/a.cls\ns1/a.jpg\n"
    assert tools.mkshard("cat", scratch / "d", "s1/a.jpg").stdout == "1"
    assert "samples      2, grouped" in tools.mkshard("info", scratch / "d").stdout


@pytest.mark.parametrize("options", [[], ["--by-shard"]])
def test_members_that_are_the_root(scratch, options):
    (scratch / "a.tar").write_bytes(tar_bytes(special(".", tarfile.DIRTYPE), ("x", b"x")))
    tools.mkshard("index", *options, scratch / "d", scratch / "a.tar")
    assert tools.mkshard("ls", scratch / "d").stdout.endswith("x\n")
    (scratch / "b.tar").write_bytes(tar_bytes((".", b"no name"), ("x", b"x")))
    line = failure("index", *options, scratch / "e", scratch / "b.tar")
    assert "b.tar'" in line and "without a name" in line and "byte 0" in line
    done = tools.mkshard("index", *options, "--keep-going", scratch / "e", scratch / "b.tar", check=False)
    assert done.returncode == 1 and tools.mkshard("ls", scratch / "e").stdout.endswith("x\n")


def test_index_in_place_stores_relative_names(scratch):
    (scratch / "set").mkdir()
    (scratch / "set/one.tar").write_bytes(tar_bytes(*members()))
    tools.mkshard("index", scratch / "set")
    os.rename(scratch / "set", scratch / "moved")
    tools.mkshard("verify", scratch / "moved")


def test_truncated_shards_are_not_indexed(scratch):
    whole = tar_bytes(("a", b"x" * 5000), ("b", b"y" * 5000))
    for cut in (100, 700, 5000, 5700, 6000, 7000, 11_000):
        (scratch / "cut.tar").write_bytes(whole[:cut])
        line = failure("index", scratch / "x", scratch / "cut.tar")
        assert "cut.tar" in line and "truncated" in line, cut
    (scratch / "cut.tar").write_bytes(b"")
    assert failure("index", scratch / "x", scratch / "cut.tar")


@pytest.mark.parametrize("size", [0, 2000])
@pytest.mark.parametrize("name, mode", [("gzip", "w:gz"), ("bzip2", "w:bz2"), ("xz", "w:xz")])
def test_a_compressed_tar_is_not_called_damaged(scratch, name, mode, size):
    (scratch / "x.tar").write_bytes(tar_bytes(("a", os.urandom(size)), mode=mode))
    assert ((scratch / "x.tar").stat().st_size < 512) == (size == 0)
    line = failure("index", scratch / "d", scratch / "x.tar")
    assert f"x.tar': not a plain tar archive but {name}: " in line and "decompress it" in line


def index_keeping_going(dataset, *shards):
    """Returns what is listed as left out, less the common beginning, and the files that were indexed."""
    lines = left_out(tools.mkshard("index", "--keep-going", dataset, *shards, check=False))
    tools.mkshard("verify", dataset)
    return [line.removeprefix("mkshard: left out ") for line in lines], tools.mkshard("ls", dataset).stdout.split()


def test_keep_going_indexes_up_to_the_damage(scratch):
    """In a header, in a content that is cut, and at the very front; shards before and behind are whole."""
    whole = tar_bytes(("a", b"x" * 600), ("b", b"y" * 600), ("c", b"z" * 600))
    (scratch / "good.tar").write_bytes(tar_bytes(("good", b"g")))
    (scratch / "last.tar").write_bytes(tar_bytes(("last", b"l")))
    for name, data, at, kept in (
            ("header", whole[:1536] + b"\xff" + whole[1537:], "at byte 1536", ["a"]),
            ("cut", whole[:1536 + 512 + 100], "byte 2048", ["a"]),
            ("front", b"\xff" + whole[1:], "at byte 0", []),
            ("empty", b"", "an empty file", []),
            ("missing", None, "No such file", [])):
        bad = scratch / f"{name}.tar"
        if data is not None:
            bad.write_bytes(data)
        line = failure("index", scratch / name, scratch / "good.tar", bad, scratch / "last.tar")
        assert at in line and f"{name}.tar'" in line and not (scratch / name).exists()
        lines, files = index_keeping_going(scratch / name, scratch / "good.tar", bad, scratch / "last.tar")
        assert len(lines) == 1 and lines[0].startswith(f"'{bad}': ") and at in lines[0], lines
        assert ("all from there on" in lines[0]) == bool(kept)
        assert files == sorted(["good", "last", *kept])


def test_keep_going_with_nothing_to_index(scratch):
    (scratch / "bad.tar").write_bytes(b"x" * 2000)
    done = tools.mkshard("index", "--keep-going", scratch / "d", scratch / "bad.tar", check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and "bad.tar" in lines[0] and "hold no files" in lines[1]
    assert not (scratch / "d").exists()


def test_keep_going_indexes_the_first_of_equal_names(scratch):
    (scratch / "1.tar").write_bytes(tar_bytes(("a", b"1"), ("b/c", b"1"), ("a", b"again")))
    (scratch / "2.tar").write_bytes(tar_bytes(("a", b"2"), ("b", b"2"), ("d", b"2")))
    shards = [scratch / "1.tar", scratch / "2.tar"]
    line = failure("index", scratch / "d", shards[0])
    assert "'a' comes twice in '" in line and "--by-shard" not in line
    lines, files = index_keeping_going(scratch / "d", *shards)
    assert files == ["a", "d", "b/c"] and len(lines) == 3
    assert any("'b' of" in line and "needs a directory" in line for line in lines)
    assert tools.mkshard("cat", scratch / "d", "a", "d").stdout == "12"


@pytest.mark.parametrize("container", ["tar", "bare"])
def test_a_missing_shard_is_noticed(scratch, pack, container):
    dataset = pack(many_files(scratch / "some", n=20), f"--container={container}", "--shard-size=20K")
    shards = sorted(dataset.glob("shard-*"))
    assert len(shards) > 2
    whole = (dataset / "index.ddpfs").read_bytes()
    for shard in (shards[0], shards[1], shards[-1]):
        data = shard.read_bytes()
        shard.unlink()
        assert f"{shard.name}' is missing" in failure("index", dataset)
        shard.write_bytes(data)
    tools.mkshard("index", dataset)
    assert (dataset / "index.ddpfs").read_bytes() == whole


def test_damaged_bare_footer(scratch, pack):
    dataset = pack(many_files(scratch / "bare", n=20, size=100), "--container=bare")
    shard = dataset / "shard-000000.bare"
    whole = shard.read_bytes()
    (dataset / "index.ddpfs").unlink()
    for at in list(range(2000, len(whole), 97)) + [len(whole) - 1]:
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1:])
        done = tools.mkshard("index", dataset, check=False)
        assert done.returncode == 1 and not (dataset / "index.ddpfs").exists(), at
    shard.write_bytes(whole)
    tools.mkshard("index", dataset)
    tools.mkshard("verify", dataset)


def test_rich_tree_as_archive_of_itself(scratch):
    """A tar of GNU tar, packed, is the directory it was made from."""
    root = rich_tree(scratch / "rich")
    tools.run(["tar", "cf", scratch / "rich.tar", "-C", root, "."])
    tools.mkshard("pack", "--shard-size=200K", scratch / "rich.tar", scratch / "from-tar")
    tools.mkshard("extract", scratch / "from-tar", scratch / "out")
    assert facts(scratch / "out") == facts(root)
