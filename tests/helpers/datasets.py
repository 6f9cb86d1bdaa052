# SPDX-License-Identifier: Apache-2.0
"""Source trees for tests: the smallest ones that still have every property the tests look at."""

import hashlib
import io
import os
import random
import tarfile
from pathlib import Path


def content(name, size):
    """`size` bytes that depend on the name only: the same in every run, different between files."""
    block = hashlib.sha256(os.fsencode(str(name))).digest()
    return (block * (size // len(block) + 1))[:size]


def write_tree(root, classes=5, per_class=20, sizes=(0, 1, 511, 512, 513, 4096, 65536, 110_000)):
    """An image-folder-like tree: class_NN/item_NNNN.bin, sizes cycling through the edges.  Returns {path: bytes}."""
    root = Path(root)
    files = {}
    for c in range(classes):
        for i in range(per_class):
            path = f"class_{c:02d}/item_{i:04d}.bin"
            files[path] = content(path, sizes[(c * per_class + i) % len(sizes)])
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return files


def read_tree(root):
    """{relative path: bytes} of every regular file below root, as os.walk finds them."""
    root = os.fspath(root)
    files = {}
    for directory, _, names in os.walk(root):
        for name in names:
            full = os.path.join(directory, name)
            with open(full, "rb") as f:
                files[os.path.relpath(full, root)] = f.read()
    return files


def write_tables(root):
    """4 Parquet files with the numbers 0 to 3999 in column x, and a CSV file.  Needs pyarrow."""
    import pyarrow
    import pyarrow.parquet

    (root / "parts").mkdir(parents=True)
    for k in range(4):
        table = pyarrow.table({"x": range(k * 1000, (k + 1) * 1000), "part": [k] * 1000})
        pyarrow.parquet.write_table(table, root / f"parts/{k}.parquet")
    (root / "labels.csv").write_text("name,label\na,1\nb,2\n")
    return root


def write_webdataset(root, samples, size, suffixes=("jpg", "cls")):
    """Writes two tars: each sample is a picture of `size` bytes and a label, side by side in the order of `suffixes`.
    Returns the files."""
    numbers, files = random.Random(1), {}
    root.mkdir()
    for shard in range(2):
        with tarfile.open(root / f"shard-{shard:06d}.tar", "w") as tar:
            for i in range(samples // 2):
                data = {"jpg": numbers.randbytes(size), "cls": b"%d" % (i % 10)}
                for suffix in suffixes:
                    entry = tarfile.TarInfo(f"{shard}_{i:05d}.{suffix}")
                    entry.size = len(data[suffix])
                    tar.addfile(entry, io.BytesIO(data[suffix]))
                    files[entry.name] = data[suffix]
    return files
