# SPDX-License-Identifier: Apache-2.0
"""layout=flat: the rank's epoch as a sorted listing, and names that never break."""

import os
import re

import pytest

from helpers.datasets import content, read_tree, write_tree
from mount.control import wait_for_log

NAME = re.compile(r"(\d{4,})-(\d{10,})-(.*)", re.S)


def decode(name):
    return name.replace("%2F", "/").replace("%25", "%")


def dealt(path):
    """[(step, path)] of a flat directory in the order of its sorted names."""
    found = [NAME.fullmatch(name) for name in sorted(os.listdir(path))]
    return [(int(m[2]), decode(m[3])) for m in found if m]


def test_sorted_listing_is_the_listing_order(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    assert os.listdir(m.path) == sorted(os.listdir(m.path))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_partition_the_set(mount, pack, tree, world):
    dataset = pack(tree[0])
    seen = []
    for rank in range(world):
        m = mount(dataset, f"rank={rank},world={world},seed=3,tail=short" if world > 1 else "rank=0,world=1,seed=3")
        steps = dealt(m.path)
        assert all(step % world == rank for step, _ in steps)
        seen += steps
    assert [step for step, _ in sorted(seen)] == list(range(len(tree[1])))
    assert sorted(path for _, path in seen) == sorted(tree[1])


def test_padding_makes_lengths_equal(mount, pack, tree):
    dataset = pack(tree[0])  # 100 files, 3 ranks: 34 each, 2 repeated
    ranks = [dealt(mount(dataset, f"rank={r},world=3,seed=3").path) for r in range(3)]
    assert [len(r) for r in ranks] == [34, 34, 34]
    assert {path for r in ranks for _, path in r} == set(tree[1])


def test_order_depends_on_seed_and_epoch_only(mount, pack, tree):
    dataset = pack(tree[0])
    one = dealt(mount(dataset, "rank=0,world=1,seed=1").path)
    again = mount(dataset, "rank=0,world=1,seed=1")
    assert dealt(again.path) == one
    assert dealt(mount(dataset, "rank=0,world=1,seed=2").path) != one
    assert dealt(again.path / ".ddpfs/epoch/1") != one
    assert dealt(again.path / ".ddpfs/epoch/0") == one


def test_contents_under_flat_names(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=1")
    for name in os.listdir(m.path):
        assert (m.path / name).read_bytes() == tree[1][decode(NAME.fullmatch(name)[3])]


def test_a_name_is_found_without_any_listing(mount, pack, tree):
    dataset = pack(tree[0])
    names = os.listdir(mount(dataset, "rank=0,world=2,seed=7").path)
    fresh = mount(dataset, "rank=0,world=2,seed=7")
    for name in names[::5]:
        assert (fresh.path / name).read_bytes() == tree[1][decode(NAME.fullmatch(name)[3])]


def test_names_of_other_epochs_stay_valid(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    for epoch in (0, 1, 17, 12345, 4294967295):
        names = os.listdir(m.path / f".ddpfs/epoch/{epoch}")
        assert len(names) == 50
        for name in names[:3]:
            assert (m.path / name).read_bytes() == tree[1][decode(NAME.fullmatch(name)[3])]


def test_what_is_no_name_is_not_found(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2,seed=7")
    good = os.listdir(m.path)[0]
    epoch, step, path = NAME.fullmatch(good).groups()
    bad = [f"0{epoch}-{step}-{path}", f"{epoch}-0{step}-{path}", f"{epoch}-{step}-", f"{epoch}-{step}-{path}x",
           f"{epoch}-{step}", f"{epoch}-{int(step) + 1:010d}-{path}", f"{epoch}-9999999999-{path}", "x" * 255,
           f"99999999999-{step}-{path}", f"{epoch}-99999999999999999999-{path}", "%", "%2", "%2F", "%2Fetc%2Fpasswd",
           "..%2Fx", decode(path).split("/")[0], "-1-0-x"]
    for name in bad:
        assert not os.path.lexists(m.path / name), name
        assert not os.path.lexists(m.path / name), name  # from the kernel's memory of absent names


def test_one_inode_in_every_name_epoch_and_layout(mount, pack, tree):
    dataset = pack(tree[0])
    flat = mount(dataset, "rank=0,world=2,seed=7")
    tall = mount(dataset, "view=all,layout=tree")
    for epoch in (0, 1, 5):
        for entry in os.scandir(flat.path / f".ddpfs/epoch/{epoch}"):
            path = decode(NAME.fullmatch(entry.name)[3])
            here = os.stat(entry.path).st_ino
            assert entry.inode() == here
            assert here == os.stat(flat.path / ".ddpfs/all" / path).st_ino == os.stat(tall.path / path).st_ino


def test_long_and_strange_names(mount, pack, scratch):
    root = scratch / "strange"
    paths = ["d/100%", "d/%2F", "d/a b\nc", "d/~tilde~00000000", "d/" + "x" * 255, "d/" + "y" * 251 + ".jpg",
             "é" * 100 + "/" + "ü" * 120 + ".png", "/".join(["deep" * 10] * 8) + "/leaf.jpeg", "d/.hidden", "d/-"]
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content(path, 1000))
    m = mount(pack(root), "rank=0,world=1")
    names = os.listdir(m.path)
    assert len(names) == len(paths) == len(set(names))
    assert all(len(os.fsencode(name)) <= 255 for name in names)
    found = {}
    for name in names:
        os.fsencode(name).decode()  # cut names are still UTF-8
        path = os.getxattr(m.path / name, "user.ddpfs.path").decode()
        found[path] = name
        assert (m.path / name).read_bytes() == content(path, 1000)
    assert sorted(found) == sorted(paths)
    for path in paths:
        cut = NAME.fullmatch(found[path])[3]
        if decode(cut) != path:
            assert re.search(r"~[0-9a-f]{8}(\.\w+)?$", cut)
            assert os.path.splitext(cut)[1] == os.path.splitext(path)[1], "readers choose decoders by extension"


def test_common_files_are_on_every_rank(mount, pack, scratch):
    root = scratch / "common"
    files = write_tree(root, classes=3, per_class=5)
    (root / "labels.txt").write_text("labels")
    (root / "classes.json").write_text("{}")
    dataset = pack(root)
    for rank in range(2):
        m = mount(dataset, f"rank={rank},world=2")
        names = os.listdir(m.path)
        assert {"labels.txt", "classes.json"} < set(names)
        assert (m.path / "labels.txt").read_text() == "labels"
        assert all(path in files for _, path in dealt(m.path))
        assert "user.ddpfs.position" not in os.listxattr(m.path / "labels.txt")


@pytest.mark.parametrize("layout", ["flat", "tree"])
@pytest.mark.parametrize("tail", ["drop", "short"])
def test_a_rank_without_a_turn(mount, pack, scratch, tail, layout):
    """More ranks than samples: nothing is dealt to the last rank; its mount stands, with what everyone has."""
    write_tree(scratch / "few", classes=1, per_class=3)
    (scratch / "few/labels.txt").write_text("labels")
    dataset = pack(scratch / "few")
    m = mount(dataset, f"rank=6,world=7,tail={tail},layout={layout}")
    assert (m.path / "labels.txt").read_text() == "labels"
    assert not [path for path in m.path.rglob("*") if path.is_file() and path.name != "labels.txt"]
    assert read_tree(m.path / ".ddpfs/all") == read_tree(scratch / "few")
    assert "rank 6 of 7 has no sample" in wait_for_log(m, f"tail={tail}")
    other = mount(dataset, f"rank=6,world=7,tail=pad,layout={layout}")
    other.unmount()
    assert "has no sample" not in other.log()


def test_nothing_but_common_files(mount, pack, scratch):
    write_tree(scratch / "few", classes=1, per_class=3)
    m = mount(pack(scratch / "few", "--common=*/*"), "rank=0,world=2")
    assert "every file is common" in wait_for_log(m, "no sample to deal")


def test_a_dataset_of_common_files(mount, pack, scratch):
    (scratch / "texts").mkdir()
    (scratch / "texts/a.txt").write_text("a")
    m = mount(pack(scratch / "texts", "--common=*"), "rank=1,world=2")
    assert os.listdir(m.path) == ["a.txt"] and (m.path / "a.txt").read_text() == "a"


def test_a_grouped_sample_is_listed_together(mount, pack, scratch):
    root = scratch / "grouped"
    for i in range(20):
        for ext in ("jpg", "cls", "txt"):
            path = root / "d" / f"{i:04d}.{ext}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content(path.name, 500 + i))
    dataset = pack(root, "--sample=key")
    seen = []
    for rank in range(2):
        steps = {}
        m = mount(dataset, f"rank={rank},world=2,seed=5")
        assert os.listdir(m.path) == sorted(os.listdir(m.path))
        for step, path in dealt(m.path):
            steps.setdefault(step, []).append(path)
        assert len(steps) == 10
        for members in steps.values():
            key = members[0].rsplit(".", 1)[0]
            assert members == [f"{key}.cls", f"{key}.jpg", f"{key}.txt"]
            seen.append(key)
    assert len(set(seen)) == 20


def test_subdir_orders_only_that_subtree(mount, pack, scratch):
    root = scratch / "split"
    write_tree(root / "train", classes=3, per_class=8)
    write_tree(root / "val", classes=3, per_class=4)
    m = mount(pack(root), "rank=1,world=2,subdir=train")
    paths = [path for _, path in dealt(m.path)]
    assert len(paths) == 12 and all(path.startswith("train/") for path in paths)


def test_seekdir_resumes_where_telldir_was(mount, pack, scratch):
    import ctypes

    root = scratch / "many"
    (root / "d").mkdir(parents=True)
    for i in range(3000):
        (root / "d" / f"{i:05d}").write_bytes(b"")
    m = mount(pack(root), "rank=0,world=1")
    libc = ctypes.CDLL(None, use_errno=True)

    class Dirent(ctypes.Structure):
        _fields_ = [("ino", ctypes.c_ulong), ("off", ctypes.c_long), ("len", ctypes.c_ushort),
                    ("type", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]

    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.POINTER(Dirent)
    libc.readdir.argtypes = libc.telldir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
    libc.telldir.restype = ctypes.c_long
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    d = libc.opendir(os.fsencode(m.path))
    try:
        names, offsets = [], []
        while True:
            offsets.append(libc.telldir(d))
            entry = libc.readdir(d)
            if not entry:
                break
            names.append(entry.contents.name)
        assert names[:2] == [b".", b".."] and len(names) == 3002
        for i in (3001, 0, 1500, 1, 2999, 2, 777):
            libc.seekdir(d, offsets[i])
            assert libc.readdir(d).contents.name == names[i]
    finally:
        libc.closedir(d)
