# SPDX-License-Identifier: Apache-2.0
"""FORMAT.md against the code: the example, and the order of file ids against Python's and torchvision's walks."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from helpers import tools

FORMAT = Path(__file__).resolve().parents[2] / "shard" / "FORMAT.md"


def program(name):
    return tools.build_dir() / "tests" / "shard" / name


def test_the_example_is_what_the_builder_writes(build_dir):
    blocks = FORMAT.read_text().split("```\n")
    [example] = [block for block in blocks if block.startswith("00000000  44 44 50 46 53 49 44 58")]
    assert example == subprocess.run([program("format_example")], check=True, capture_output=True, text=True).stdout


def ids(paths):
    """The paths in the order of their file ids."""
    given = b"".join(os.fsencode(path) + b"\0" for path in paths)
    out = subprocess.run([program("list_ids")], input=given, check=True, capture_output=True).stdout
    return [os.fsdecode(path) for path in out.split(b"\0")[:-1]]


def components(path):
    """FORMAT.md's order: by components, a directory's files before its subdirectories."""
    *parents, name = path.split("/")
    return [(1, parent) for parent in parents] + [(0, name)]


def random_paths(rng, alphabet, count, depth):
    """Distinct files; no file is also a directory, since only files contain '#'."""
    def name():
        return rng.choice("ab") * (rng.random() < 0.5) + "".join(rng.choices(alphabet, k=rng.randint(3, 5)))

    return list({"/".join([name() for _ in range(rng.randint(1, depth))] + [name() + "#"]) for _ in range(count)})


@pytest.mark.parametrize("seed", range(20))
def test_ids_ascend_by_components(build_dir, seed):
    rng = random.Random(seed)
    paths = random_paths(rng, "ab-.!~ Z0éß漢🐱", 400, 4)
    assert ids(paths) == sorted(paths, key=components)


def walk(root):
    """torchvision.datasets.folder.make_dataset, without its filter of extensions."""
    found = []
    for target in sorted(entry.name for entry in os.scandir(root) if entry.is_dir()):
        for directory, _, names in sorted(os.walk(os.path.join(root, target), followlinks=True)):
            found += [os.path.relpath(os.path.join(directory, name), root) for name in sorted(names)]
    return found


def image_folder(seed, root):
    """Writes files into classes with any name; below them names without bytes smaller than '/', see the last test."""
    rng = random.Random(seed)
    classes = [f"{stem}{number}" for number, stem in enumerate(["a", "a-", "a.b", "B", "0", "é", "漢", "🐱", "with space"])]
    paths = [f"{rng.choice(classes)}/{path}" for path in random_paths(rng, "ab~Z0é漢🐱", 300, 2)]
    paths += [f"{name}/{rng.choice('ab-.!')}{number}#" for number, name in enumerate(classes * 4)]
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")
    return paths


@pytest.mark.parametrize("seed", range(5))
def test_ids_are_in_the_order_of_imagefolders_walk(build_dir, scratch, seed):
    assert ids(image_folder(seed, scratch)) == walk(scratch)


def test_ids_are_in_the_order_of_imagefolder(build_dir, scratch):
    folder = pytest.importorskip("torchvision.datasets.folder", reason="torchvision is not installed")
    paths = image_folder(0, scratch)
    dataset = folder.DatasetFolder(scratch, loader=str, is_valid_file=lambda path: True)
    assert ids(paths) == [os.path.relpath(path, scratch) for path, _ in dataset.samples]


def test_where_imagefolder_sorts_nested_directories_as_strings(build_dir, scratch):
    paths = ["class/b/1", "class/b/d/1", "class/b-c/1"]
    for path in paths:
        (scratch / path).parent.mkdir(parents=True, exist_ok=True)
        (scratch / path).write_bytes(b"")
    assert ids(paths) == ["class/b/1", "class/b/d/1", "class/b-c/1"]
    assert walk(scratch) == ["class/b/1", "class/b-c/1", "class/b/d/1"]  # the corner that FORMAT.md names
