# SPDX-License-Identifier: Apache-2.0
"""Reads: every byte, in every way people read."""

import mmap
import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import tools
from helpers.datasets import content
from mount.control import stats, wait_for_log

MIB = 1 << 20


@pytest.fixture
def big(scratch):
    """Sizes around the 1 MiB block that is read and verified at once."""
    root = scratch / "big"
    root.mkdir()
    files = {}
    for size in (0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 12345, 9 * MIB + 7):
        path = f"d/size{size}"
        (root / "d").mkdir(exist_ok=True)
        files[path] = content(path, size)
        (root / path).write_bytes(files[path])
    return root, files


def test_whole_files(mount, pack, big):
    m = mount(pack(big[0]), "view=all,layout=tree")
    for path, data in big[1].items():
        assert os.stat(m.path / path).st_size == len(data)
        assert (m.path / path).read_bytes() == data
        assert (m.path / path).read_bytes() == data  # from the page cache


def test_random_preads_by_many_threads(mount, pack, big):
    m = mount(pack(big[0]), "view=all,layout=tree")
    paths = sorted(big[1])

    def reader(seed):
        rng = random.Random(seed)
        for _ in range(300):
            path = rng.choice(paths)
            data = big[1][path]
            offset = rng.randrange(len(data) + 5000)
            size = rng.choice((1, 100, 4096, 65536, 300_000, 2 * MIB))
            with open(m.path / path, "rb", buffering=0) as f:
                assert os.pread(f.fileno(), size, offset) == data[offset:offset + size]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(reader, range(16)))


def test_preads_past_the_page_cache(mount, pack, big):
    """posix_fadvise(DONTNEED) between reads: every one is asked of the server."""
    m = mount(pack(big[0]), "view=all,layout=tree")
    rng = random.Random(1)
    for path, data in big[1].items():
        with open(m.path / path, "rb", buffering=0) as f:
            for _ in range(10):
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                offset = rng.randrange(len(data) + 1)
                assert os.pread(f.fileno(), 100_000, offset) == data[offset:offset + 100_000]


def test_mmap(mount, pack, big):
    m = mount(pack(big[0]), "view=all,layout=tree")
    for path, data in big[1].items():
        if not data:
            continue
        with open(m.path / path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as view:
            for offset in range(len(data) - 1, -1, -(len(data) // 50 + 1)):
                assert view[offset] == data[offset]
            assert view[:] == data


def test_direct_io(mount, pack, big):
    m = mount(pack(big[0]), "view=all,layout=tree")
    path = "d/size9437191"
    fd = os.open(m.path / path, os.O_RDONLY | os.O_DIRECT)
    try:
        buf = mmap.mmap(-1, 4 * MIB)
        got = os.preadv(fd, [buf], MIB // 2)
        assert buf[:got] == big[1][path][MIB // 2:MIB // 2 + got] and got == 4 * MIB
    finally:
        os.close(fd)


def test_sendfile_splice_and_seek_data(mount, pack, big):
    m = mount(pack(big[0]), "view=all,layout=tree")
    for path, data in big[1].items():
        with open(m.path / path, "rb") as f:
            read_end, write_end = os.pipe()
            moved = os.splice(f.fileno(), write_end, 4096) if data else 0
            assert os.read(read_end, 4096) == data[:moved] if moved else True
            os.close(read_end)
            os.close(write_end)
            if data:
                assert os.lseek(f.fileno(), 0, os.SEEK_DATA) == 0
                assert os.lseek(f.fileno(), 0, os.SEEK_HOLE) == len(data)


def test_readers_like_pil(mount, pack, big):
    """A header first, then the rest in pieces, buffered and not."""
    m = mount(pack(big[0]), "view=all,layout=tree")
    for path, data in big[1].items():
        for buffering in (-1, 0):
            with open(m.path / path, "rb", buffering=buffering) as f:
                head = f.read(16)
                f.seek(0)
                pieces = []
                while piece := f.read(65536):
                    pieces.append(piece)
                assert head == data[:16] and b"".join(pieces) == data


@pytest.mark.parametrize("command", [
    "tar -C {mnt} -cf - . | tar -C {out} -xf -",
    "cp -r {mnt}/. {out}",
    "rsync -a {mnt}/ {out}/",
    "cd {mnt} && find . -type f -print0 | cpio -0pdm --quiet {out}",
])
def test_copying_tools_give_back_the_source(mount, pack, tree, scratch, command):
    program = command.split()[0] if "cpio" not in command else "cpio"
    if subprocess.run(["sh", "-c", f"command -v {program}"], capture_output=True).returncode != 0:
        pytest.skip(f"{program} is not installed")
    m = mount(pack(tree[0]), "view=all,layout=tree")
    out = scratch / "out"
    out.mkdir()
    subprocess.run(["sh", "-ec", command.format(mnt=m.path, out=out)], check=True)
    assert subprocess.run(["diff", "-r", tree[0], out], capture_output=True, text=True).stdout == ""


def test_find_sees_types_and_sizes(mount, pack, tree):
    m = mount(pack(tree[0]), "view=all,layout=tree")
    out = subprocess.run(["find", m.path, "-type", "f", "-printf", "%P %s\n"], capture_output=True, text=True,
                         check=True).stdout
    assert sorted(out.splitlines()) == sorted(f"{path} {len(data)}" for path, data in tree[1].items())


def test_many_processes_read_the_same_file(mount, pack, big):
    m = mount(pack(big[0]), "view=all,layout=tree")
    path = m.path / "d/size9437191"
    sums = [subprocess.Popen(["md5sum", path], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    assert len({p.communicate()[0] for p in sums}) == 1


def test_a_damaged_sample_is_eio_and_named_in_the_log(mount, pack, tree):
    dataset = pack(tree[0])
    victim = "class_02/item_0007.bin"
    shards = [p for p in dataset.iterdir() if p.name != "index.ddpfs"]
    data = tree[1][victim]
    hits = 0
    for shard in shards:
        raw = bytearray(shard.read_bytes())
        at = raw.find(data)
        if at >= 0 and len(data) > 600:
            raw[at + 300] ^= 1
            shard.chmod(0o644)
            shard.write_bytes(raw)
            hits += 1
    assert hits == 1
    m = mount(dataset, "view=all,layout=tree")
    for i in range(5):
        with pytest.raises(OSError) as e:
            (m.path / victim).read_bytes()
        assert e.value.errno == 5
        if i == 2:  # the line stands before the next failures come
            wait_for_log(m, victim)
    for path, data in tree[1].items():
        if path != victim:
            assert (m.path / path).read_bytes() == data
    counted = stats(m)
    told, = (p["text"] for p in counted["problems"] if victim in p["text"])  # without a log it is all that says why
    assert told.startswith("error: ") and "in shard '" in told
    assert any(line.startswith("problem ") and line.endswith(told) for line in tools.ddpfs("stat", m.path).stdout.splitlines())
    assert counted["errors"] >= 5 and counted["bad_blocks"] == 1 and counted["mended_blocks"] == 0
    m.unmount()
    lines = [line for line in m.log().splitlines() if victim in line]
    assert len(lines) == 1 and "shard" in lines[0] and "byte" in lines[0]


def test_a_shard_that_goes_away_is_eio(mount, pack, tree):
    dataset = pack(tree[0])
    for shard in [p for p in dataset.iterdir() if p.name != "index.ddpfs"]:
        shard.unlink()
    m = mount(dataset, "view=all,layout=tree")
    path = next(p for p, data in tree[1].items() if data)
    with pytest.raises(OSError) as e:
        (m.path / path).read_bytes()
    assert e.value.errno == 5
    assert stats(m)["io_errors"] > 0
    assert os.stat(m.path / path).st_size == len(tree[1][path])
