# SPDX-License-Identifier: Apache-2.0
"""What the tests of mkshard share: trees with everything in them, comparing trees, damaging files."""

import os
import random
import stat
from pathlib import Path

from helpers import tools
from helpers.datasets import content

OLD = 1_500_000_000  # mtimes that no test run produces by itself


def rich_tree(root):
    """A tree with what people have: sizes at the edges and over a block, odd names, modes, empty directories."""
    root = Path(root)
    files = {}
    for c in range(4):
        for i, size in enumerate((0, 1, 511, 512, 513, 4096, 65536, 110_000)):
            files[f"c{c}/{i:04d}.jpg"] = size
            files[f"c{c}/{i:04d}.cls"] = 2
    files["big.bin"] = 5 * 2**20 + 17
    files["block.bin"] = 2**20
    files["labels.csv"] = 40
    files["c1/with space"] = 10
    files["c1/new\nline"] = 11
    files["c1/ünïcode-\u4e2d"] = 12
    files["c2/" + "n" * 255] = 13
    files["/".join(["deep"] * 60) + "/file"] = 14
    for number, (path, size) in enumerate(files.items()):
        full = root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content(path, size))
        os.utime(full, (OLD + number, OLD + number))
    odd = os.path.join(os.fsencode(root), b"c3", b"not-utf8-\xff\xfe")
    with open(odd, "wb") as f:
        f.write(b"odd")
    os.chmod(root / "c0/0001.jpg", 0o600)
    os.chmod(root / "c0/0002.jpg", 0o755)
    (root / "empty" / "inner").mkdir(parents=True)
    os.chmod(root / "empty", 0o750)
    for directory, _, _ in os.walk(root, topdown=False):
        os.utime(directory, (OLD - 5, OLD - 5))
    return root


def facts(root):
    """{path: (kind, mode, mtime, bytes)} of everything below root; paths are bytes."""
    root = os.fsencode(root)
    found = {}
    for directory, names, leaves in os.walk(root):
        for name in names + leaves:
            full = os.path.join(directory, name)
            st = os.stat(full)
            data = None
            if stat.S_ISREG(st.st_mode):
                with open(full, "rb") as f:
                    data = f.read()
            found[os.path.relpath(full, root)] = (stat.S_IFMT(st.st_mode), st.st_mode & 0o777, int(st.st_mtime), data)
    return found


def files_of(root):
    """{name: bytes} of the files in one directory."""
    return {p.name: p.read_bytes() for p in sorted(Path(root).iterdir())}


def published(dataset):
    """files_of a dataset whose run was killed after the rename: what tells the next run of that may be there still."""
    return {name: data for name, data in files_of(dataset).items() if name not in ("journal", "replacing")}


def failure(*args, code=1, **kwargs):
    """Runs mkshard, which must fail with `code` and one clear line; returns that line."""
    done = tools.mkshard(*args, check=False, **kwargs)
    if isinstance(done.stderr, bytes):
        done.stderr = os.fsdecode(done.stderr)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("mkshard: "), done.stderr
    return lines[0]


def many_files(root, n=200, size=3000, seed=3):
    """Random bytes in n files of 10 classes."""
    rng = random.Random(seed)
    for i in range(n):
        path = Path(root) / f"c{i % 10}" / f"{i:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))
    return Path(root)
