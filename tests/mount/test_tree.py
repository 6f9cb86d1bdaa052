# SPDX-License-Identifier: Apache-2.0
"""layout=tree: the original directories, whole or this rank's part of them."""

import os

from helpers.datasets import read_tree, write_tree


def image_folder(root, extensions=(".bin",)):
    """What torchvision's ImageFolder does: classes are the sorted listed directories, each must hold a file."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    assert classes, f"no class in {root}"
    samples = []
    for number, name in enumerate(classes):
        found = [os.path.join(directory, f) for directory, _, files in sorted(os.walk(os.path.join(root, name)))
                 for f in sorted(files) if f.endswith(extensions)]
        assert found, f"no valid file for class {name}"
        samples += [(path, number) for path in found]
    return classes, samples


def test_view_all_is_the_source(mount, pack, tree):
    m = mount(pack(tree[0]), "view=all,layout=tree")
    assert read_tree(m.path) == tree[1]
    assert read_tree(m.path / ".ddpfs/all") == tree[1]


def test_view_rank_partitions_and_keeps_the_classes(mount, pack, tree):
    dataset = pack(tree[0])
    parts = [mount(dataset, f"rank={r},world=3,layout=tree,tail=short,seed=1") for r in range(3)]
    listed = [{os.path.relpath(os.path.join(d, f), m.path) for d, _, files in os.walk(m.path) for f in files}
              for m in parts]
    assert sum(len(part) for part in listed) == len(tree[1])
    assert set.union(*listed) == set(tree[1])
    assert [image_folder(m.path)[0] for m in parts] == [sorted({p.split("/")[0] for p in tree[1]})] * 3


def test_unlisted_files_of_other_ranks_open_by_name(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=4,layout=tree")
    assert all((m.path / path).read_bytes() == data for path, data in tree[1].items())


def test_padding_is_in_the_rank_view(mount, pack, tree):
    dataset = pack(tree[0])  # 100 files, 3 ranks
    for rank in range(3):
        m = mount(dataset, f"rank={rank},world=3,layout=tree,seed=9")
        assert sum(len(files) for _, _, files in os.walk(m.path)) == 34


def test_fill_class_gives_every_class_a_file(mount, pack, scratch):
    root = scratch / "thin"
    write_tree(root, classes=40, per_class=2)
    dataset = pack(root)
    without, counts = [], []
    for rank in range(8):
        m = mount(dataset, f"rank={rank},world=8,layout=tree,seed=1,tail=short")
        without.append(sum(not os.listdir(m.path / c) for c in os.listdir(m.path)))
        filled = mount(dataset, f"rank={rank},world=8,layout=tree,seed=1,tail=short,fill_class=on")
        classes, samples = image_folder(filled.path)
        assert len(classes) == 40
        counts.append(len(samples))
        assert len(samples) == 10 + without[-1]
    assert sum(without) > 0, "the case under test did not arise"


def test_subdir_filters_its_subtree_and_leaves_the_rest_whole(mount, pack, scratch):
    root = scratch / "split"
    train = write_tree(root / "train", classes=3, per_class=8)
    val = write_tree(root / "val", classes=3, per_class=4)
    (root / "labels.txt").write_text("l")
    dataset = pack(root)
    parts = [mount(dataset, f"rank={r},world=2,layout=tree,subdir=train") for r in range(2)]
    lists = [set(read_tree(m.path / "train")) for m in parts]
    assert len(lists[0]) == len(lists[1]) == 12 and lists[0] | lists[1] == set(train)
    for m in parts:
        assert read_tree(m.path / "val") == val
        assert (m.path / "labels.txt").read_text() == "l"


def test_listing_follows_the_epoch(mount, pack, tree):
    from mount.control import ask

    m = mount(pack(tree[0]), "rank=0,world=2,layout=tree,seed=1")
    first = set(read_tree(m.path))
    assert ask(m, "epoch", set=1)["epoch"] == 1
    second = set(read_tree(m.path))
    assert len(first) == len(second) == 50 and first != second


def test_empty_directories_and_link_counts(mount, pack, tree):
    m = mount(pack(tree[0]), "view=all,layout=tree")
    assert os.stat(m.path).st_nlink == 2 + 5
    for entry in os.scandir(m.path):
        st = entry.stat()
        assert entry.is_dir() and st.st_nlink == 2
    for directory, _, files in os.walk(m.path):
        for f in files:
            assert os.stat(os.path.join(directory, f)).st_nlink == 1


def test_dot_and_dotdot_are_listed_with_their_inodes(mount, pack, tree):
    import subprocess

    m = mount(pack(tree[0]), "view=all,layout=tree")
    sub = m.path / "class_00"
    listed = dict(line.split(None, 1)[::-1] for line in
                  subprocess.run(["ls", "-1aif", sub], capture_output=True, text=True, check=True).stdout.splitlines())
    assert int(listed["."]) == os.stat(sub).st_ino
    assert int(listed[".."]) == os.stat(m.path).st_ino
