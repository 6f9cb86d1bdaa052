# SPDX-License-Identifier: Apache-2.0
"""Random reads of every kind against a reference copy, as fsx does, by several readers at once."""

import errno
import hashlib
import mmap
import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

MIB = 1 << 20
READERS, OPERATIONS = 6, 120
SIZES = (0, 1, 511, 4096, 4097, 65_536, 110_000, MIB - 1, MIB, MIB + 1, 3 * MIB + 777)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Bytes that repeat nowhere: a page from a wrong place is seen.  22 files, 12 MB."""
    root = tmp_path_factory.mktemp("source")
    files = {}
    for i, size in enumerate(SIZES * 2):
        path = f"c{i % 3}/f{i:02d}"
        files[path] = hashlib.shake_128(path.encode()).digest(size)
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(files[path])
    return root, files


def some_range(rng, size):
    """Around edges of pages and blocks, and past the end."""
    offset = rng.choice((rng.randrange(size + 5000), rng.randrange(size + 1) & ~4095, size - rng.randrange(5000),
                         rng.randrange(4) * MIB + rng.randrange(-2, 3)))
    return max(0, offset), rng.choice((0, 1, 4095, 4096, 4097, 65_536, 300_000, 2 * MIB))


def pread(fd, rng, offset, size, data):
    assert os.pread(fd, size, offset) == data[offset:offset + size]


def preadv(fd, rng, offset, size, data):
    first, second = bytearray(min(size, 1000)), bytearray(size)
    got = os.preadv(fd, [first, second], offset)
    assert bytes(first + second)[:got] == data[offset:offset + len(first) + size]


def read(fd, rng, offset, size, data):
    os.lseek(fd, offset, os.SEEK_SET)
    got = b""
    while len(got) < size and (piece := os.read(fd, size - len(got))):
        got += piece
    assert got == data[offset:offset + size]
    assert os.lseek(fd, 0, os.SEEK_CUR) == offset + len(got)


def map_private(fd, rng, offset, size, data):
    """What is written into a private mapping is nobody else's."""
    if not data:
        return
    with mmap.mmap(fd, len(data), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as view:
        assert view[offset:offset + size] == data[offset:offset + size]
        at = rng.randrange(len(data))
        view[at] ^= 0xff
        assert view[at] == data[at] ^ 0xff
    assert os.pread(fd, 1, at) == data[at:at + 1]


def map_shared(fd, rng, offset, size, data):
    if not data:
        return
    with mmap.mmap(fd, len(data), mmap.MAP_SHARED, mmap.PROT_READ) as view:
        view.madvise(rng.choice((mmap.MADV_RANDOM, mmap.MADV_SEQUENTIAL, mmap.MADV_WILLNEED, mmap.MADV_DONTNEED)))
        assert view[offset:offset + size] == data[offset:offset + size]


def map_tail(fd, rng, offset, size, data):
    """The last page alone."""
    last = max(0, len(data) - 1) // 4096 * 4096
    if data:
        with mmap.mmap(fd, len(data) - last, mmap.MAP_SHARED, mmap.PROT_READ, offset=last) as view:
            assert view[:] == data[last:]


def into_file(copy):
    def run(fd, rng, offset, size, data):
        with tempfile.TemporaryFile() as out:
            moved = 0
            try:
                while moved < size and (n := copy(out.fileno(), fd, offset + moved, size - moved)):
                    moved += n
            except OSError as e:
                assert e.errno in (errno.EXDEV, errno.EINVAL) and copy is copy_file_range
                return  # between file systems only where the kernel offers it
            assert os.pread(out.fileno(), size + 1, 0) == data[offset:offset + size]
    run.__name__ = copy.__name__
    return run


def sendfile(out, fd, offset, size):
    return os.sendfile(out, fd, offset, size)


def copy_file_range(out, fd, offset, size):
    return os.copy_file_range(fd, out, size, offset)


def splice(out, fd, offset, size):
    read_end, write_end = os.pipe()
    try:
        n = moved = os.splice(fd, write_end, size, offset_src=offset)
        while moved:
            moved -= os.splice(read_end, out, moved)
        return n
    finally:
        os.close(read_end)
        os.close(write_end)


def seek_data(fd, rng, offset, size, data):
    """One extent of data without holes."""
    for whence, found in ((os.SEEK_DATA, offset), (os.SEEK_HOLE, len(data))):
        try:
            assert os.lseek(fd, offset, whence) == found and offset < len(data)
        except OSError as e:
            assert e.errno == errno.ENXIO and offset >= len(data)
    assert os.lseek(fd, 0, os.SEEK_END) == len(data)


def direct(fd, rng, offset, size, data):
    """O_DIRECT, aligned and not: a network file system's is no question of sectors."""
    fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT)
    try:
        offset &= rng.choice((~4095, ~511, ~0))
        with mmap.mmap(-1, size + 4096) as buf:
            got = os.preadv(fd, [memoryview(buf)[:size]], offset) if size else 0
            assert buf[:got] == data[offset:offset + got]
            assert got == min(size, max(0, len(data) - offset)) or got > 0
    finally:
        os.close(fd)


def advice(fd, rng, offset, size, data):
    os.posix_fadvise(fd, offset, size, rng.choice((os.POSIX_FADV_DONTNEED, os.POSIX_FADV_WILLNEED,
                                                   os.POSIX_FADV_RANDOM, os.POSIX_FADV_SEQUENTIAL)))
    pread(fd, rng, offset, size, data)


def nowait(fd, rng, offset, size, data):
    """RWF_NOWAIT: what is in memory, or EAGAIN."""
    buf = bytearray(size)
    try:
        got = os.preadv(fd, [buf], offset, os.RWF_NOWAIT)
        assert bytes(buf[:got]) == data[offset:offset + got]
    except OSError as e:
        assert e.errno in (errno.EAGAIN, errno.EOPNOTSUPP)


KINDS = (pread, preadv, read, map_private, map_shared, map_tail, into_file(sendfile),
         into_file(copy_file_range), into_file(splice), seek_data, direct, advice, nowait)


def reader(seed, root, names, files):
    """Returns how often each kind of read was right."""
    rng = random.Random(seed)
    done = dict.fromkeys((kind.__name__ for kind in KINDS), 0)
    for i in range(OPERATIONS):
        name = rng.choice(names)
        data = files[decoded(name)]
        offset, size = some_range(rng, len(data))
        fd = os.open(os.path.join(root, name), os.O_RDONLY)
        try:
            assert os.fstat(fd).st_size == len(data)
            kind = KINDS[i % len(KINDS)]
            kind(fd, rng, offset, size, data)
            done[kind.__name__] += 1
        except Exception as e:
            what = f"reader {seed}, operation {i}: {size} bytes at {offset} of {name} ({len(data)})"
            raise AssertionError(what) from e
        finally:
            os.close(fd)
    return done


def decoded(name):
    return name.split("-", 2)[2].replace("%2F", "/").replace("%25", "%") if "-" in name else name


@pytest.mark.parametrize("memory", ["8M", "256M"])
@pytest.mark.parametrize("options", ["rank=0,world=1,advance=off", "view=all,layout=tree"])
def test_every_kind_of_read_by_many(mount, pack, source, options, memory):
    m = mount(pack(source[0]), f"{options},memory={memory}")
    names = sorted(os.path.relpath(os.path.join(d, f), m.path) for d, _, fs in os.walk(m.path) for f in fs)
    assert len(names) == len(source[1])
    with ThreadPoolExecutor(READERS) as pool:
        done = list(pool.map(lambda seed: reader(seed, m.path, names, source[1]), range(READERS)))
    assert all(min(d.values()) >= OPERATIONS // len(KINDS) for d in done)
