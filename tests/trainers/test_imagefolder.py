# SPDX-License-Identifier: Apache-2.0
"""Walking as torchvision's ImageFolder does, on tree views: every rank must find the same classes."""

import os

import pytest

from helpers import datasets


def find_classes(root):
    """torchvision.datasets.folder.find_classes: the listed directories, sorted, are the classes."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    return classes, {name: number for number, name in enumerate(classes)}


def make_dataset(root, suffix=".bin"):
    """torchvision.datasets.folder.make_dataset: [(path, class)], walking each class in sorted order."""
    samples = []
    for name, number in find_classes(root)[1].items():
        for directory, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            samples += [(os.path.join(directory, f), number) for f in sorted(files) if f.endswith(suffix)]
    return samples


def relative(samples, root):
    return [(os.path.relpath(path, root), label) for path, label in samples]


def test_view_all_is_the_image_folder(tree, pack, mount):
    source, files = tree
    mnt = mount(pack(source), "view=all").path
    assert relative(make_dataset(mnt), mnt) == relative(make_dataset(source), source)
    assert datasets.read_tree(mnt) == files


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_classes_and_divide_the_files(tree, pack, mount, world):
    source, _ = tree
    dataset = pack(source)
    mounts = [mount(dataset, f"layout=tree,view=rank,rank={r},world={world},tail=short,advance=off")
              for r in range(world)]
    assert all(find_classes(m.path) == find_classes(source) for m in mounts)
    parts = [relative(make_dataset(m.path), m.path) for m in mounts]
    assert sorted(sum(parts, [])) == sorted(relative(make_dataset(source), source))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_padding_makes_ranks_equally_long(tree, pack, mount):
    source, files = tree
    dataset = pack(source)
    parts = [make_dataset(mount(dataset, f"layout=tree,view=rank,rank={r},world=3,tail=pad,advance=off").path)
             for r in range(3)]
    assert {len(part) for part in parts} == {-(-len(files) // 3)}


def test_fill_class_keeps_a_rank_without_files_of_a_class_walkable(scratch, pack, mount):
    source = scratch / "source"
    datasets.write_tree(source, classes=4, per_class=1)
    dataset = pack(source)
    for rank in range(4):
        mnt = mount(dataset, f"layout=tree,view=rank,fill_class=on,rank={rank},world=4").path
        classes, _ = find_classes(mnt)
        assert classes == find_classes(source)[0]
        assert all(os.listdir(mnt / name) for name in classes), f"rank {rank} has an empty class"
