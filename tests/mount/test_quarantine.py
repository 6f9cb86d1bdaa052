# SPDX-License-Identifier: Apache-2.0
"""Quarantined samples: what on_bad=skip and on_bad=substitute show, the same on every rank; anything else that is bad is EIO."""

import errno
import json
import os

import pytest

from helpers import datasets, tools
from mount.control import stats
from mount.test_read import wait_for_log

BAD = ["class_01/item_0003.bin", "class_01/item_0004.bin", "class_03/item_0019.bin"]


@pytest.fixture
def source(scratch):
    root = scratch / "tree"
    return root, datasets.write_tree(root, classes=4, sizes=(700, 4096, 65_536, 9000))


def shard_name(entry):
    return f"shard-{entry['shard']:06d}.tar"


def damage(dataset, files, paths):
    """Flips a bit in the middle of each file's content."""
    where = {}
    for line in tools.mkshard("ls", "--json", dataset).stdout.splitlines():
        entry = json.loads(line)
        where[entry["path"]] = entry
    for path in paths:
        entry = where[path]
        shard = dataset / shard_name(entry)
        shard.chmod(0o644)
        with open(shard, "r+b") as f:
            f.seek(entry["offset"] + len(files[path]) // 2)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 4]))


@pytest.fixture
def dataset(source, pack):
    """A dataset with three bad samples, and their list."""
    made = pack(source[0], "--shard-size=256K")
    damage(made, source[1], BAD)
    done = tools.mkshard("verify", "--quarantine", made, check=False)
    assert done.returncode == 1 and "3 samples are in the quarantine list" in done.stderr
    return made


def stand_in(path):
    """The next good file of the directory.  The first file follows the last one; each directory has items 0..19."""
    while path in BAD:
        path = f"{path[:-8]}{(int(path[-8:-4]) + 1) % 20:04d}.bin"
    return path


def flat(m):
    """[(path, bytes)] in the order of the listing."""
    return [(name.split("-", 2)[2].replace("%2F", "/"), (m.path / name).read_bytes()) for name in sorted(os.listdir(m.path))]


def of_all_ranks(mount, dataset, options, world=3):
    mounts = [mount(dataset, f"rank={rank},world={world},order=full,{options}") for rank in range(world)]
    assert len({os.getxattr(m.path, "user.ddpfs.view") for m in mounts}) == 1
    return mounts


def test_the_list_names_them(dataset):
    lines = (dataset / "quarantine.ddpfs").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines[2:-1]] == BAD and lines[-1] == "end"


@pytest.mark.parametrize("tail", ["pad", "drop", "short"])
def test_skip_deals_the_others(mount, dataset, source, tail):
    mounts = of_all_ranks(mount, dataset, f"layout=flat,on_bad=skip,tail={tail}")
    seen = [flat(m) for m in mounts]
    assert all(data == source[1][path] for part in seen for path, data in part)
    assert tail == "short" or len({len(part) for part in seen}) == 1
    assert {len(part) for part in seen} <= {77 // 3, 77 // 3 + 1}
    paths = [path for part in seen for path, _ in part]
    good = set(source[1]) - set(BAD)
    assert set(paths) <= good
    assert tail == "drop" or set(paths) == good
    said = stats(mounts[0])
    assert said["quarantined"] == 3 and said["samples"] == 77 and said["on_bad"] == "skip" and said["bad_blocks"] == 0
    assert said["quarantine"] == [{"path": path} for path in BAD]


def test_substitute_keeps_every_place(mount, dataset, source):
    plain = of_all_ranks(mount, dataset, "layout=flat")
    names = [sorted(os.listdir(m.path)) for m in plain]
    instead = of_all_ranks(mount, dataset, "layout=flat,on_bad=substitute")
    for rank, m in enumerate(instead):
        seen = flat(m)
        assert [path for path, _ in seen] == [stand_in(name.split("-", 2)[2].replace("%2F", "/")) for name in names[rank]]
        assert all(data == source[1][path] for path, data in seen)
    assert stats(instead[0])["quarantine"] == [{"path": path, "instead": stand_in(path)} for path in BAD]
    assert os.getxattr(plain[0].path, "user.ddpfs.view") != os.getxattr(instead[0].path, "user.ddpfs.view")


@pytest.mark.parametrize("view", ["view=all", "rank"])
def test_trees(mount, dataset, source, view):
    """skip: no such names; substitute: all names, and each shows the bytes that its class may."""
    def trees(on_bad):
        mounts = of_all_ranks(mount, dataset, f"layout=tree,tail=short,on_bad={on_bad}") if view == "rank" else [
            mount(dataset, f"view=all,on_bad={on_bad}")]
        return mounts, [datasets.read_tree(m.path) for m in mounts]

    mounts, seen = trees("skip")
    assert sum(len(part) for part in seen) == 77
    for part in seen:
        assert all(data == source[1][path] for path, data in part.items())
    for path in BAD:
        assert not (mounts[0].path / path).exists()
        with pytest.raises(OSError) as e:
            (mounts[0].path / ".ddpfs/all" / path).read_bytes()
        assert e.value.errno == errno.EIO
    _, seen = trees("substitute")
    assert sum(len(part) for part in seen) == 80
    for part in seen:
        assert all(data == source[1][stand_in(path)] for path, data in part.items())


def test_groups_are_replaced_file_by_file(mount, pack, scratch):
    root = scratch / "pairs"
    files = {f"a/{i:03d}.{kind}": datasets.content(f"{i}{kind}", 3000) for i in range(6) for kind in ("jpg", "cls", "txt")}
    del files["a/003.txt"]
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    dataset = pack(root, "--sample=key")
    damage(dataset, files, ["a/002.cls"])
    tools.mkshard("verify", "--quarantine", dataset, check=False)
    seen = datasets.read_tree(mount(dataset, "view=all,on_bad=skip").path)
    assert seen == {path: data for path, data in files.items() if "/002." not in path}
    seen = datasets.read_tree(mount(dataset, "view=all,on_bad=substitute").path)
    # 003 has no .txt: it cannot stand in.
    assert seen == {path: files[path.replace("/002.", "/004.")] for path in files}


def test_a_bad_sample_that_is_not_listed_is_eio(mount, dataset, source):
    late = "class_00/item_0007.bin"
    damage(dataset, source[1], [late])
    for on_bad in "skip", "substitute":
        m = mount(dataset, f"view=all,on_bad={on_bad}")
        with pytest.raises(OSError) as e:
            (m.path / late).read_bytes()
        assert e.value.errno == errno.EIO
        said = next(line for line in wait_for_log(m, late).splitlines() if late in line)
        assert "shard-0" in said and "byte" in said and "mkshard verify --quarantine" in said


def test_a_live_mount_keeps_its_list(mount, dataset, source):
    """Another list, or none, changes nothing: not for a server, nor for the one that takes its place."""
    m = mount(dataset, "view=all,on_bad=skip")
    identity = os.getxattr(m.path, "user.ddpfs.view")
    (dataset / "quarantine.ddpfs").unlink()
    assert not (m.path / BAD[0]).exists()
    done = tools.ddpfs("restart", m.path)
    assert done.returncode == 0
    assert stats(m)["restarts"] == 1
    assert os.getxattr(m.path, "user.ddpfs.view") == identity
    assert set(datasets.read_tree(m.path)) == set(source[1]) - set(BAD)
    server = stats(m)["server_pid"]
    os.kill(server, 9)
    assert set(datasets.read_tree(m.path)) == set(source[1]) - set(BAD)
    assert os.getxattr(m.path, "user.ddpfs.view") == identity


def test_lists_of_others_are_refused(mount, dataset, source, pack, scratch):
    other = pack(source[0], "--shuffle-seed=5", "--shard-size=64K")

    def refused(options):
        place = scratch / "refused"
        place.mkdir(exist_ok=True)
        done = tools.ddpfs("mount", "-f", "-o", options, other, place, check=False)
        assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
        return done.stderr

    assert "mkshard verify --quarantine" in refused("view=all,on_bad=skip")
    (other / "quarantine.ddpfs").write_text("ddpfs quarantine 1\n")
    assert "quarantine.ddpfs" in refused("view=all,on_bad=skip")
    assert "on_bad=skip" in refused("view=all,quarantine=/dev/null")
    (other / "quarantine.ddpfs").write_text((dataset / "quarantine.ddpfs").read_text().replace("dataset ", "dataset 0", 1))
    assert "line 2" in refused("view=all,on_bad=skip")


def test_a_lost_shard_is_quarantined_whole(mount, dataset, source, scratch):
    entries = [json.loads(line) for line in tools.mkshard("ls", "--json", dataset).stdout.splitlines()]
    lost = shard_name(entries[0])
    gone = {entry["path"] for entry in entries if shard_name(entry) == lost}
    assert 0 < len(gone) < 60
    (dataset / lost).unlink()
    done = tools.mkshard("verify", f"--quarantine={scratch}/list", dataset, check=False)
    assert done.returncode == 1 and lost in done.stderr
    m = mount(dataset, f"view=all,on_bad=skip,quarantine={scratch}/list")
    seen = datasets.read_tree(m.path)
    assert seen == {path: data for path, data in source[1].items() if path not in gone and path not in BAD}


def test_a_sound_dataset_has_an_empty_list(mount, source, pack):
    dataset = pack(source[0])
    tools.mkshard("verify", "--quarantine", dataset)
    assert len((dataset / "quarantine.ddpfs").read_text().splitlines()) == 3
    assert datasets.read_tree(mount(dataset, "view=all,on_bad=substitute").path) == source[1]
