# SPDX-License-Identifier: Apache-2.0
"""The datasets of the comparison: deterministic, incompressible files, and the filler file of cgroup.py."""
import json
import os
import random
import shutil

# A: the sizes of an image dataset, log-normal with a mean of 110 KB.  B: samples of one page.  C: 20 KB.
KINDS = {"A": {"files": 20_000, "classes": 100}, "B": {"files": 200_000, "classes": 10},
         "C": {"files": 20_000, "classes": 100}}
SMALLEST, LARGEST, MEDIAN, SIGMA = 8_000, 1_000_000, 95_000, 0.55
WORLD = 2


def _size(kind, rng):
    if kind in "BC":
        return {"B": 4096, "C": 20_000}[kind]
    return min(max(int(MEDIAN * rng.lognormvariate(0, SIGMA)), SMALLEST), LARGEST)


class Dataset:
    """Files under `path`, made when they are not there: CLASS/img_NNNNNNN.jpeg."""

    def __init__(self, kind, scale, scratch):
        self.kind, self.scale = kind, scale
        self.name = f"{kind}-{scale:g}"
        self.path = f"{scratch}/data/{self.name}"
        self.scratch = scratch
        note = f"{self.path}.json"
        if not os.path.exists(note):
            self._make(note)
        with open(note) as f:
            self.files = json.load(f)  # [relative path, size], sorted
        self.bytes = sum(size for _, size in self.files)

    def _make(self, note):
        n = max(int(KINDS[self.kind]["files"] * self.scale), 400)
        per_class = -(-n // min(KINDS[self.kind]["classes"], n // 10))
        rng = random.Random(f"{self.kind} {n}")
        shutil.rmtree(self.path, ignore_errors=True)
        files = []
        for i in range(n):
            name = f"n{i // per_class:04d}/img_{i:07d}.jpeg"
            if i % per_class == 0:
                os.makedirs(f"{self.path}/n{i // per_class:04d}")
            size = _size(self.kind, rng)
            with open(f"{self.path}/{name}", "wb") as f:
                f.write(rng.randbytes(size))
            files.append([name, size])
        os.sync()
        with open(note + ".tmp", "w") as f:
            json.dump(files, f)
        os.rename(note + ".tmp", note)

    def shuffled(self):
        """Every relative path in one random order; rank r of W reads [r::W]."""
        names = [name for name, _ in self.files]
        random.Random(11).shuffle(names)
        return names

    def write_list(self, root, part, name="list"):
        """Writes paths under root for the readers and returns the list's name."""
        where = f"{self.scratch}/{name}"
        with open(where, "w") as f:
            f.writelines(f"{root}/{path}\n" for path in part)
        return where


def filler(scratch, size_bytes):
    """A file of clean pages, see cgroup.py."""
    path = f"{scratch}/filler"
    if os.path.exists(path) and os.path.getsize(path) >= size_bytes:
        return path
    block = random.Random(1).randbytes(1 << 20)
    with open(path, "wb") as f:
        for _ in range(-(-size_bytes // len(block))):
            f.write(block)
    os.sync()
    return path
