# SPDX-License-Identifier: Apache-2.0
"""Shards in a place that may only be read, and their index in a file of this host: `mkshard index -o`, index=FILE."""

import errno
import json
import os
import shlex
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import datasets, tools
from helpers.private import Private
from helpers.waiting import wait_until
from mount import control
from mount.control import wait_for_log

PLACES = ["directory", "http", "s3"]


def write_shards(place, scratch, n=3, salt=""):
    """Tar files of a few files each; returns {name: bytes}."""
    files = datasets.write_tree(scratch / f"source{salt}", classes=3, per_class=20, sizes=(0, 1, 20_000, 65_536, 1_500_000))
    if salt:
        files = {f"{salt}/{name}": data for name, data in files.items()}
    names = sorted(files)
    for i in range(n):
        with tarfile.open(place / f"train-{i}.tar", "w") as tar:
            for name in names[i::n]:
                tar.add(scratch / f"source{salt}" / name.removeprefix(f"{salt}/"), name)
    return files


@pytest.fixture
def shards(request, build_dir, scratch):
    """`name` of a place that is only read, `words` for mkshard index, its `files`, and `there()`: what lies there."""
    (scratch / "tars").mkdir()
    files = write_shards(scratch / "tars", scratch)
    tars = sorted(path.name for path in (scratch / "tars").iterdir())
    made = SimpleNamespace(files=files, words=[], tars=scratch / "tars", there=lambda: sorted(os.listdir(scratch / "tars")))
    kind = getattr(request, "param", "directory")
    if kind == "http":
        store = request.getfixturevalue("http_store")
        for tar in tars:
            os.link(scratch / "tars" / tar, store.root / tar)
        made.store, made.tars = store, store.root
        made.name = f"{store.url}/"
        made.words = [f"{store.url}/{tar}" for tar in tars]
    elif kind == "s3":
        client = request.getfixturevalue("s3")
        for tar in tars:
            client.upload_file(str(scratch / "tars" / tar), "data", f"wds/{tar}")
        made.name = "s3://data/wds"
        made.there = lambda: sorted(o["Key"].removeprefix("wds/") for o in client.list_objects_v2(Bucket="data")["Contents"])
    else:
        (scratch / "only-read").mkdir()
        if subprocess.run(["mount", "--bind", "-o", "ro", scratch / "tars", scratch / "only-read"]).returncode:
            pytest.skip("a bind mount needs root")
        made.name = str(scratch / "only-read")
    yield made
    assert made.there() == tars, "the place was written to"
    if kind == "directory":
        # The kernel closes the files of an io_uring a moment after the end of a killed server.
        wait_until(lambda: subprocess.run(["umount", scratch / "only-read"]).returncode == 0, "the end of the bind mount")


def indexed(shards, scratch, name="wds.ddpfs"):
    """Makes the index, and returns its path and what mkshard said."""
    done = tools.mkshard("index", "-o", scratch / name, shards.name, *shards.words)
    return scratch / name, done.stdout


def contents(path):
    return {name: data for name, data in datasets.read_tree(path).items() if not name.startswith(".ddpfs")}


def fails(*words, program="mkshard"):
    """What the program says in its one line; it must exit with 1 or 2."""
    done = tools.run([tools.tool(program), *words], check=False)
    assert done.returncode in (1, 2) and done.stderr, done
    return done.stderr


@pytest.mark.parametrize("shards", PLACES, indirect=True)
def test_the_files_of_a_mount(shards, scratch, mount, monkeypatch):
    index, said = indexed(shards, scratch)
    # What mkshard says is the way to mount it.
    line = shlex.split(said.splitlines()[-1].removeprefix("to mount it: "))
    assert line[:3] == ["ddpfs", "mount", "-o"] and line[3] == f"index={index},rank=0,world=1" and line[5:] == ["MNT"]
    m = mount(line[4], f"{line[3]},layout=tree,tail=short,memory=64M")
    assert contents(m.path) == shards.files
    stats = tools.stat_json(m.path)
    assert stats["index"] == str(index) and stats["dataset"] == shards.name.rstrip("/")
    m.unmount()
    # A relative FILE is one of the directory in which the command runs, also for a mount in the background.
    monkeypatch.chdir(scratch)
    (scratch / "mnt").mkdir()
    tools.ddpfs("mount", "-o", "index=wds.ddpfs,rank=1,world=2,tail=short", shards.name, scratch / "mnt")
    part = {data for name, data in contents(scratch / "mnt").items()}
    tools.ddpfs("umount", scratch / "mnt")
    assert part and part < set(shards.files.values()) | {None}
    assert len(part) < len(shards.files)


@pytest.mark.parametrize("shards", PLACES, indirect=True)
def test_the_readers_of_mkshard(shards, scratch):
    index, _ = indexed(shards, scratch)
    option = f"--index={index}"
    assert json.loads(tools.mkshard("info", "--json", option, shards.name).stdout)["files"] == len(shards.files)
    assert tools.mkshard("ls", option, shards.name).stdout.split() == sorted(shards.files)
    name = max(shards.files, key=lambda name: len(shards.files[name]))
    assert tools.mkshard("cat", option, shards.name, name, text=False).stdout == shards.files[name]
    tools.mkshard("extract", option, shards.name, scratch / "out")
    assert datasets.read_tree(scratch / "out") == shards.files
    assert "all good" in tools.mkshard("verify", option, shards.name).stdout
    assert "order=" in tools.mkshard("stats", option, "--epochs=1", shards.name).stdout
    # Without the option there is no index, as before.
    assert "index.ddpfs" in fails("info", shards.name)


@pytest.mark.parametrize("shards", PLACES, indirect=True)
def test_the_order_and_exec(shards, scratch):
    index, _ = indexed(shards, scratch)
    order = tools.ddpfs("order", "-o", f"index={index},rank=1,world=2,seed=3", shards.name).stdout.splitlines()
    paths = [line.split("\t")[2] for line in order]
    assert len(paths) == len(shards.files) / 2 and set(paths) < set(shards.files)
    (scratch / "mnt").mkdir()
    listed = tools.ddpfs("exec", "-q", "-o", f"index={index},rank=1,world=2,seed=3,layout=tree", shards.name, scratch / "mnt",
                         "--", "find", scratch / "mnt", "-type", "f", "-not", "-path", "*/.ddpfs/*", "-printf", "%P\\n").stdout.split()
    assert sorted(listed) == sorted(paths)
    said = tools.ddpfs("exec", "-q", "-o", f"index={index},view=all", shards.name, scratch / "mnt", "--", "printenv", "DDPFS_INDEX",
                       env={"DDPFS_INDEX": "old"}).stdout
    assert said == f"{index}\n"


@pytest.mark.parametrize("shards", PLACES, indirect=True)
def test_a_killed_server_opens_the_same_index(shards, scratch, mount):
    index, _ = indexed(shards, scratch)
    m = mount(shards.name, f"index={index},view=all,memory=64M")
    os.kill(m.server_pid(), 9)
    assert contents(m.path) == shards.files
    assert tools.stat_json(m.path)["index"] == str(index)
    tools.ddpfs("restart", m.path)
    assert contents(m.path) == shards.files
    # Another file of that name is another dataset: the mount does not go on with it.
    (scratch / "others").mkdir()
    write_shards(scratch / "others", scratch, salt="other")
    tools.mkshard("index", "-o", scratch / "other.ddpfs", scratch / "others")
    os.rename(scratch / "other.ddpfs", index)
    assert contents(m.path) == shards.files
    assert f"'{index}': another dataset lies there now" in fails("restart", m.path, program="ddpfs")
    m.may_end_with.add(1)
    os.kill(m.server_pid(), 9)
    assert m.process.wait() == 1
    assert f"'{index}': another dataset lies there now: the mount shows the old one" in m.log()


@pytest.mark.parametrize("shards", PLACES[:2], indirect=True)
def test_an_index_that_is_cut_under_a_mount_is_said(shards, scratch, mount):
    """As for an index that lies with its shards (mount/test_index_lost.py): right bytes or an error, and the server lives."""
    index, _ = indexed(shards, scratch)
    m = mount(shards.name, f"index={index},view=all,memory=64M")
    server = m.server_pid()
    os.truncate(index, 4096)
    errors = set()
    for name, data in shards.files.items():
        try:
            assert (m.path / name).read_bytes() == data
        except OSError as error:
            errors.add(error.errno)
    assert errors and errors <= {errno.ESTALE, errno.EIO}
    assert "somebody wrote into it" in wait_for_log(m, f"'{index}' ")
    assert m.server_pid() == server


@pytest.mark.parametrize("shards", ["http"], indirect=True)
def test_a_killed_server_is_replaced_while_the_store_is_away(shards, scratch, mount):
    index, _ = indexed(shards, scratch)
    m = mount(shards.name, f"index={index},view=all,memory=64M")
    contents(m.path)
    shards.store.set(down=1)
    before = m.server_pid()
    os.kill(before, 9)
    wait_until(lambda: "restarted" in m.log() or tools.stat_json(m.path)["server_pid"] != before)
    shards.store.set()
    assert contents(m.path) == shards.files


@pytest.mark.parametrize("shards", ["directory", "http"], indirect=True)
def test_two_indexes_do_not_mix_in_a_tier(shards, scratch, mount):
    index, _ = indexed(shards, scratch)
    tools.mkshard("index", "-o", scratch / "by-shard.ddpfs", "--by-shard", shards.name, *shards.words)
    (scratch / "tier").mkdir()
    tier = f"tier={scratch / 'tier'},tier_size=128M"
    total = sum(map(len, shards.files.values()))
    done = json.loads(tools.ddpfs("warm", "--json", "-o", f"{tier},index={index}", shards.name).stdout)
    assert done["held_bytes"] == total
    m = mount(shards.name, f"view=all,memory=64M,index={index},{tier}")
    assert contents(m.path) == shards.files
    assert control.settled(m)["tier_misses"] == 0
    other = mount(shards.name, f"view=all,memory=64M,index={scratch / 'by-shard.ddpfs'},{tier}")
    assert {name.partition("/")[2]: data for name, data in contents(other.path).items()} == shards.files
    stats = control.settled(other)
    assert stats["tier_bad"] == 0 and stats["tier_hits"] == 0
    m.unmount()
    other.unmount()
    assert len(json.loads(tools.ddpfs("tier", "--json", scratch / "tier").stdout)["datasets"]) == 2
    done = tools.ddpfs("tier", "--json", f"--verify={shards.name}", f"--index={index}", scratch / "tier")
    assert json.loads(done.stdout)["verified"]["damaged"] == 0


@pytest.mark.parametrize("shards", PLACES, indirect=True)
def test_an_index_of_other_shards_is_refused(shards, scratch):
    indexed(shards, scratch)
    (scratch / "others").mkdir()
    write_shards(scratch / "others", scratch, n=4, salt="other")
    tools.mkshard("index", "-o", scratch / "other.ddpfs", scratch / "others")
    (scratch / "mnt").mkdir()
    option = f"index={scratch / 'other.ddpfs'}"
    for said in (fails("mount", "-o", f"{option},view=all", shards.name, scratch / "mnt", program="ddpfs"),
                 fails("order", "-o", f"{option},rank=0,world=1", shards.name, program="ddpfs"),
                 fails("warm", "-o", f"{option},tier={scratch},tier_size=64M", shards.name, program="ddpfs"),
                 fails("ls", f"--{option}", shards.name), fails("verify", f"--{option}", shards.name)):
        assert said.count("\n") == 1, said
        assert f"index '{scratch / 'other.ddpfs'}' is not that of the shards in '{shards.name.rstrip('/')}'" in said
        assert "'train-0.tar' has " in said and " bytes and should have " in said and "or make it anew" in said


@pytest.mark.parametrize("shards", PLACES[:2], indirect=True)
def test_a_shard_that_was_replaced_is_stale_and_the_others_are_read(shards, scratch, mount):
    """It is the first one that a mount looks at: one that fits shows that the index is theirs."""
    index, _ = indexed(shards, scratch)
    (shards.tars / "train-0.tar").write_bytes(bytes(10_240))
    m = mount(shards.name, f"index={index},view=all,layout=tree,memory=64M")
    for number, name in enumerate(sorted(shards.files)):
        if number % 3 or not shards.files[name]:
            assert (m.path / name).read_bytes() == shards.files[name]
        else:
            with pytest.raises(OSError) as error:
                (m.path / name).read_bytes()
            assert error.value.errno == errno.ESTALE, name


def test_what_is_wrong_with_the_option_is_said(shards, scratch):
    index, _ = indexed(shards, scratch)
    place = shards.name

    def order(option, dataset=place):
        return fails("order", "-o", f"{option},rank=0,world=1", dataset, program="ddpfs")

    none = f"{scratch}/none"
    assert f"index '{none}': there is none; 'mkshard index -o {none} {place}' makes it" in order(f"index={none}")
    for url in "s3://data/index.ddpfs", "s3:/data/index.ddpfs", "gs://data/index.ddpfs":
        assert "is not a file of this host" in order(f"index={url}"), url
        assert "is a file of this host" in fails("ls", f"--index={url}", place), url
    for secret in "s3:/KEY:s3cr3t@data/x", "ftp://me:s3cr3t@host/x", "https://me:s3cr3t%40host/x":
        said = [order(f"index={secret}"), fails("ls", f"--index={secret}", place), fails("ls", f"--index={index}", secret)]
        assert not any(word in text for text in said for word in ("s3cr3t", "KEY", "me:", "data/x")), said
    assert "is not a directory" in order(f"index={index}", f"{place}/train-0.tar")
    assert "not a regular file" in order(f"index={scratch}")
    (scratch / "empty").touch()
    assert "0 bytes are no index" in order(f"index={scratch}/empty")
    (scratch / "mnt").mkdir()
    inside = scratch / "mnt/wds.ddpfs"
    inside.write_bytes(index.read_bytes())
    said = fails("mount", "-o", f"index={inside},view=all", place, scratch / "mnt", program="ddpfs")
    assert "lies below the mountpoint" in said
    assert "exists already; give --force to replace it" in fails("index", "-o", index, place)
    (scratch / "nowhere").mkdir()
    said = order(f"index={index}", scratch / "nowhere")
    assert "'train-0.tar': No such file or directory" in said and "is not that of the shards" in said


@pytest.mark.parametrize("shards", ["http"], indirect=True)
def test_a_store_that_is_away_is_said(shards, scratch):
    index, _ = indexed(shards, scratch)
    shards.store.close()
    (scratch / "mnt").mkdir()
    said = fails("mount", "-o", f"index={index},view=all", shards.name, scratch / "mnt", program="ddpfs")
    assert "onnect" in said and shards.name.rstrip("/") in said, said


def test_an_index_that_is_remade_tells_what_changed(shards, scratch):
    index, _ = indexed(shards, scratch)
    tar = shards.tars / "train-0.tar"
    st, data = tar.stat(), bytearray(tar.read_bytes())
    name = next(name for name in sorted(shards.files) if len(shards.files[name]) == 65_536 and shards.files[name] in data)
    data[data.find(shards.files[name]) + 5] ^= 1
    tar.write_bytes(data)
    os.utime(tar, ns=(st.st_atime_ns, st.st_mtime_ns))
    done = tools.mkshard("index", "--force", "-o", index, shards.name)
    assert "1 of the files of" in done.stderr and name in done.stderr


def test_names_with_commas_are_printed_for_a_shell(shards, scratch, mount):
    place = scratch / "a, b'c\\d"
    place.mkdir()
    index, said = indexed(shards, scratch, "a, b'c\\d/w\"x.ddpfs")
    line = shlex.split(said.splitlines()[-1].removeprefix("to mount it: "))
    m = mount(line[4], f"{line[3]},layout=tree,tail=short,memory=64M")
    assert contents(m.path) == shards.files and tools.stat_json(m.path)["index"] == str(index).replace("\\", "\\\\")


@pytest.mark.parametrize("shards", PLACES, indirect=True)
def test_the_doctor_finds_the_index(shards, scratch, mount):
    def failures(*words):
        done = tools.run([tools.tool("ddpfs"), "doctor", "--json", *words], check=False)
        found = json.loads(done.stdout)["findings"]
        assert {one["check"] for one in found} & {"dataset", "store"}
        return [one["text"] for one in found if one["level"] == "failure" and one["check"] in ("dataset", "checksums", "store")]

    index, _ = indexed(shards, scratch)
    assert failures(f"--index={index}", shards.name) == []
    m = mount(shards.name, f"index={index},view=all,memory=64M")
    assert failures(m.path) == []
    (scratch / "others").mkdir()
    write_shards(scratch / "others", scratch, n=4, salt="other")
    tools.mkshard("index", "-o", scratch / "other.ddpfs", scratch / "others")
    assert "is not that of the shards" in failures(f"--index={scratch / 'other.ddpfs'}", shards.name)[0]


@pytest.mark.parametrize("shards", PLACES[1:], indirect=True)
def test_a_line_of_fstab(shards, scratch):
    index, _ = indexed(shards, scratch)
    private = Private(scratch)
    (scratch / "mnt").mkdir()
    private.fstab.write_text(f"{shards.name} {scratch}/mnt ddpfs index={index},view=all 0 0\n")
    done = private.run(f"""
        mount -a -T {scratch}/fstab
        diff -r {scratch}/source {scratch}/mnt && echo same
        umount {scratch}/mnt
        """)
    assert done.stdout == "same\n"


def test_two_ranks_with_one_index(shards, scratch, mount):
    index, _ = indexed(shards, scratch)
    seen = [contents(mount(shards.name, f"index={index},rank={rank},world=2,tail=short,layout=tree,memory=32M").path)
            for rank in (0, 1)]
    assert not seen[0].keys() & seen[1].keys() and seen[0] | seen[1] == shards.files


def test_a_packed_dataset_is_mounted_by_its_index_elsewhere(build_dir, scratch, mount):
    files = datasets.write_tree(scratch / "source")
    tools.mkshard("pack", scratch / "source", scratch / "packed")
    Path(scratch / "packed/index.ddpfs").rename(scratch / "elsewhere.ddpfs")
    m = mount(scratch / "packed", f"index={scratch / 'elsewhere.ddpfs'},view=all,memory=64M")
    assert contents(m.path) == files


@pytest.mark.parametrize("command", [["mkshard", "info"], ["mkshard", "ls"], ["ddpfs", "doctor"]])
def test_an_empty_name_is_said(command, scratch):
    done = tools.run([tools.tool(command[0]), command[1], "--index=", scratch], check=False)
    assert done.returncode == 1 and "the name of the index is empty" in done.stdout + done.stderr


@pytest.mark.parametrize("shards", ["directory"], indirect=True)
def test_doctor_takes_an_index_for_a_dataset_only(shards, scratch, mount):
    index, _ = indexed(shards, scratch)
    m = mount(shards.name, f"index={index},view=all,memory=64M")
    for target in ([m.path], []):
        done = tools.ddpfs("doctor", f"--index={index}", *target, check=False)
        assert done.returncode == 2 and "--index belongs to a DATASET" in done.stderr
