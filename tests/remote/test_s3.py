# SPDX-License-Identifier: Apache-2.0
"""Datasets in S3: packed, mounted and read, against moto, which checks signatures."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from helpers import datasets, tools, waiting
from helpers.private import Private

pytest.importorskip("moto", reason="moto is not installed")

PREFIX = "a=b c/tr+ain"  # what libcurl's own signer gets wrong


@pytest.fixture
def source(scratch):
    return scratch / "source", datasets.write_tree(scratch / "source", classes=3, per_class=40)


def keys(s3):
    return [found["Key"] for found in s3.list_objects_v2(Bucket="data").get("Contents", [])]


def contents(path):
    return {name: data for name, data in datasets.read_tree(path).items() if not name.startswith(".ddpfs")}


def fails(*argv, **kwargs):
    done = tools.run(argv, check=False, **kwargs)
    assert done.returncode == 1
    return done.stderr


def test_what_is_packed_to_a_bucket_can_be_mounted(s3, source, mount):
    path, files = source
    tools.mkshard("pack", "--shard-size=1M", path, f"s3://data/{PREFIX}")
    assert keys(s3)[0] == f"{PREFIX}/index.ddpfs" and len(keys(s3)) > 2
    assert contents(mount(f"s3://data/{PREFIX}/", "view=all,layout=tree,memory=64M").path) == files


def test_a_line_of_fstab_mounts_it(s3, server, source, scratch, monkeypatch):
    path, _ = source
    tools.mkshard("pack", path, f"s3://data/{PREFIX}")
    for name in server.environment():
        monkeypatch.delenv(name)
    (scratch / "keys").write_text(f"[default]\naws_access_key_id = {server.access_key}\n"
                                  f"aws_secret_access_key = {server.secret_key}\n")
    (scratch / "mnt").mkdir()
    private = Private(scratch)
    name = f"s3://data/{PREFIX}".replace(" ", "\\040")
    private.fstab.write_text(f"{name} {scratch}/mnt ddpfs _netdev,nofail,view=all,s3_credentials={scratch}/keys,"
                             f"s3_endpoint={server.url},s3_region=eu-west-1 0 0\n")
    private.run(f"mount -a; diff -r {path} {scratch}/mnt; umount {scratch}/mnt")


@pytest.mark.parametrize("url, prefix", [("s3://data//x", "/x"), ("s3://data/a//x//", "a//x")])
def test_a_name_may_have_empty_parts(url, prefix, s3, source, mount):
    """As keys of S3 can."""
    path, files = source
    tools.mkshard("pack", path, url)
    assert all(key.startswith(f"{prefix}/") for key in keys(s3))
    assert contents(mount(url, "view=all,layout=tree,memory=64M").path) == files


def test_a_role_that_moto_gives(s3, server, source, scratch, monkeypatch):
    """moto checks the signatures for STS, too."""
    path, _ = source
    tools.mkshard("pack", path, f"s3://data/{PREFIX}")
    iam = server.client("iam")
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}]}
    role = iam.create_role(RoleName="reader", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_role_policy(RoleName="reader", PolicyName="all", PolicyDocument=json.dumps(allow))
    for name in server.environment():
        monkeypatch.delenv(name)
    (scratch / "config").write_text(
        f"[default]\nrole_arn = {role}\nsource_profile = trainer\nregion = eu-west-1\nservices = moto\n"
        f"[profile trainer]\naws_access_key_id = {server.access_key}\naws_secret_access_key = {server.secret_key}\n"
        f"[services moto]\nsts =\n  endpoint_url = {server.url}\ns3 =\n  endpoint_url = {server.url}\n")
    assert "120 (0 common)" in tools.mkshard("info", f"s3://data/{PREFIX}").stdout
    config = (scratch / "config").read_text()
    (scratch / "config").write_text(config.replace(server.secret_key, "wrong"))
    assert "an assumed role: STS refuses role" in fails(tools.tool("mkshard"), "info", f"s3://data/{PREFIX}")


def test_a_shard_of_many_parts_has_the_bytes_of_one_that_was_packed_here(s3, scratch, pack):
    (scratch / "big").mkdir()
    (scratch / "big/one.bin").write_bytes(os.urandom(40 << 20))
    local = pack(scratch / "big")
    tools.mkshard("pack", scratch / "big", "s3://data/big")
    sent = s3.get_object(Bucket="data", Key="big/shard-000000.tar")["Body"].read()
    assert sent == (local / "shard-000000.tar").read_bytes()
    assert s3.list_multipart_uploads(Bucket="data").get("Uploads", []) == []


def test_nothing_of_a_packing_stays_on_this_host(s3, source, scratch):
    tools.mkshard("pack", source[0], "s3://data/x")
    assert [p.name for p in (scratch / "indexes").iterdir()] == []


def test_a_dataset_is_replaced_only_with_force(s3, source, scratch, mount):
    path, files = source
    tools.mkshard("pack", path, "s3://data/x")
    assert "--force" in fails(tools.tool("mkshard"), "pack", path, "s3://data/x")
    (path / "new.bin").write_bytes(b"new")
    tools.mkshard("pack", "--force", path, "s3://data/x")
    assert contents(mount("s3://data/x", "view=all,layout=tree").path) == {**files, "new.bin": b"new"}


def test_a_smaller_dataset_that_replaces_one_leaves_none_of_its_shards(s3, scratch, mount):
    datasets.write_tree(scratch / "large", classes=2, per_class=60, sizes=(65_536,))
    files = datasets.write_tree(scratch / "small", classes=1, per_class=20, sizes=(65_536,))
    tools.mkshard("pack", "--shard-size=1M", scratch / "large", "s3://data/x")
    others = ["x/shard-list.txt", "x/shard-000099.tar.old", "x/shard-99.tar", "x/shard-000099.tar/in",
              "xy/shard-000099.tar"]
    for key in others:
        s3.put_object(Bucket="data", Key=key, Body=b"not mkshard's")
    tools.mkshard("pack", "--shard-size=1M", "--force", scratch / "small", "s3://data/x")
    assert sorted(keys(s3)) == sorted([*others, "x/index.ddpfs", "x/shard-000000.tar", "x/shard-000001.tar"])
    s3.delete_object(Bucket="data", Key="x/shard-99.tar")
    tools.mkshard("index", "--force", "s3://data/x")
    assert contents(mount("s3://data/x", "view=all,layout=tree").path) == files


def test_a_killed_packing_leaves_no_dataset_and_is_gone_on_with(s3, scratch, mount):
    source = scratch / "source"
    files = datasets.write_tree(source, classes=4, per_class=200, sizes=(60_000,))
    argv = [tools.tool("mkshard"), "pack", "--shard-size=2M", "--jobs=1", source, "s3://data/x"]
    first = subprocess.Popen(argv)
    while len(keys(s3)) < 2:
        assert first.poll() is None, "it was over before it could be killed"
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert "x/index.ddpfs" not in keys(s3)
    written = {k: s3.head_object(Bucket="data", Key=k)["LastModified"] for k in keys(s3)[:-1]}
    done = tools.run(argv)
    assert "going on" in done.stderr
    assert contents(mount("s3://data/x", "view=all,layout=tree").path) == files
    assert {k: s3.head_object(Bucket="data", Key=k)["LastModified"] for k in written} == written


def packing(source, *options):
    return [tools.tool("mkshard"), "pack", *options, source, "s3://data/x"]


def interrupt(s3, argv, shards=2, how=signal.SIGINT):
    """Runs a packing until the bucket has so many shards.  Returns what it says when the signal ends it."""
    first = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    while len(keys(s3)) < shards:
        assert first.poll() is None, "it was over before it could be interrupted"
        time.sleep(0.01)
    first.send_signal(how)
    said = first.communicate()[1]
    assert first.returncode == -how and "x/index.ddpfs" not in keys(s3)
    return said


def on_another_host(scratch, *argv):
    return tools.run(argv, env={**os.environ, "DDPFS_INDEX_DIR": str(scratch / "other host")})


@pytest.fixture
def many(scratch):
    """A source of 24 shards, as --shard-size=2M makes them."""
    return scratch / "many", datasets.write_tree(scratch / "many", classes=4, per_class=200, sizes=(60_000,))


@pytest.mark.parametrize("options", [["--shard-size=2M", "--shuffle-seed=5"], ["--shard-size=3M"], ["--shard-size=2M"]])
def test_an_interrupted_packing_does_not_go_on_over_the_dataset_of_another_host(options, s3, many, scratch):
    interrupt(s3, packing(many[0], "--shard-size=2M", "--jobs=1"))
    on_another_host(scratch, *packing(many[0], *options))
    before = {key: s3.head_object(Bucket="data", Key=key)["LastModified"] for key in keys(s3)}
    said = fails(*packing(many[0], "--shard-size=2M", "--jobs=1"))
    assert "there is a dataset already; give --force to replace it" in said, said
    assert {key: s3.head_object(Bucket="data", Key=key)["LastModified"] for key in keys(s3)} == before
    tools.mkshard("verify", "s3://data/x")
    tools.run(packing(many[0], "--force", "--shard-size=2M", "--jobs=1"))
    assert "all good" in tools.mkshard("verify", "s3://data/x").stdout


def test_shards_that_another_host_has_overwritten_are_sent_again(s3, many, scratch):
    """Their sizes are the same."""
    interrupt(s3, packing(many[0], "--shard-size=2M", "--jobs=1"), shards=4)
    on_another_host(scratch, *packing(many[0], "--shard-size=2M", "--shuffle-seed=5"))
    s3.delete_object(Bucket="data", Key="x/index.ddpfs")
    s3.delete_object(Bucket="data", Key="x/shard-000001.tar")
    tools.run(packing(many[0], "--shard-size=2M", "--jobs=1"))
    assert "all good" in tools.mkshard("verify", "s3://data/x").stdout


def test_a_packing_that_had_sent_its_index_is_gone_on_with(s3, many, scratch):
    """If its shards are there, only this host's part is missing.  Else the index goes before a shard is sent."""
    argv = packing(many[0], "--shard-size=2M", "--jobs=1")
    interrupt(s3, argv)
    obstacle = next((scratch / "indexes").glob("*.partial")).with_suffix("")
    rest = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    waiting.wait_until(lambda: len(keys(s3)) > 4)
    (obstacle / "by somebody else").mkdir(parents=True)
    assert "made by somebody else" in rest.communicate()[1] and rest.returncode == 1
    shutil.rmtree(obstacle)
    assert "x/index.ddpfs" in keys(s3)

    kept = scratch / "kept"
    shutil.copytree(scratch / "indexes", kept)
    assert "going on: 24 of 24" in tools.run(argv).stderr
    assert "all good" in tools.mkshard("verify", "s3://data/x").stdout

    shutil.rmtree(scratch / "indexes")
    kept.rename(scratch / "indexes")
    for number in range(1, 24):
        s3.delete_object(Bucket="data", Key=f"x/shard-{number:06}.tar")
    interrupt(s3, argv, shards=4)
    tools.run(argv)
    assert "all good" in tools.mkshard("verify", "s3://data/x").stdout


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_packing_says_what_is_in_the_bucket(how, s3, many):
    said = interrupt(s3, packing(many[0], "--shard-size=2M", "--jobs=1"), shards=4, how=how)
    assert re.search(r"interrupted: \d+ of 24 shards are complete and in 's3://data/x', noted in '/.*\.partial'; "
                     "unfinished uploads stay in the store until a rerun removes them; go on with: ", said), said


def test_a_packing_without_notes_of_what_it_sent_sends_all_again(s3, many, scratch):
    """As one that an older version began."""
    argv = packing(many[0], "--shard-size=2M", "--jobs=1")
    interrupt(s3, argv)
    next((scratch / "indexes").glob("*.sent")).unlink()
    assert "going on" not in tools.run(argv).stderr
    assert "all good" in tools.mkshard("verify", "s3://data/x").stdout
    assert list((scratch / "indexes").glob("x-*")) == []


def test_a_restart_with_larger_shards_leaves_none_of_the_interrupted_run(s3, many, scratch, mount):
    interrupt(s3, packing(many[0], "--shard-size=2M", "--jobs=1"), shards=6)
    s3.put_object(Bucket="data", Key="x/shard-000099.tar", Body=b"not of this host")
    interrupt(s3, packing(many[0], "--shard-size=2M", "--jobs=1", "--restart"), shards=8)
    noted = {f"x/{line.split()[0]}" for line in next((scratch / "indexes").glob("*.sent")).read_text().splitlines()}
    assert len(noted) >= 5
    tools.run(packing(many[0], "--shard-size=30M", "--restart"))
    new = {"x/index.ddpfs", "x/shard-000000.tar", "x/shard-000001.tar"}
    assert new <= set(keys(s3)) and "x/shard-000099.tar" in keys(s3) and not (noted - new) & set(keys(s3))
    for key in set(keys(s3)) - new:  # the signal may have come between a shard and its note
        s3.delete_object(Bucket="data", Key=key)
    tools.mkshard("index", "--force", "s3://data/x")
    assert contents(mount("s3://data/x", "view=all,layout=tree").path) == many[1]


@pytest.mark.parametrize("command", ["pack", "index"])
def test_uploads_that_mkshard_does_not_make_go_on(command, s3, source):
    tools.mkshard("pack", source[0], "s3://data/x")
    others = [f"x/{name}" for name in ("shard-list.txt", "shard-000000.tar.old", "shard-0.tar", "shard-000000.tar/in",
                                       "index.ddpfs.old")]
    left = {key: s3.create_multipart_upload(Bucket="data", Key=key)["UploadId"] for key in others}
    tools.mkshard(command, "--force", *([source[0]] if command == "pack" else []), "s3://data/x")
    found = [u["Key"] for u in s3.list_multipart_uploads(Bucket="data").get("Uploads", [])]
    for key, upload in left.items():
        if key in found:
            s3.abort_multipart_upload(Bucket="data", Key=key, UploadId=upload)
    assert sorted(found) == sorted(others)


def test_what_killed_uploads_left_is_removed_by_the_next_run(s3, source):
    left = {}
    for key in ("x/shard-000000.tar", "x/index.ddpfs", "xy/index.ddpfs"):
        left[key] = s3.create_multipart_upload(Bucket="data", Key=key)["UploadId"]
        s3.upload_part(Bucket="data", Key=key, UploadId=left[key], PartNumber=1, Body=b"x" * (5 << 20))
    tools.mkshard("pack", source[0], "s3://data/x")
    others = [u["Key"] for u in s3.list_multipart_uploads(Bucket="data").get("Uploads", [])]
    s3.abort_multipart_upload(Bucket="data", Key="xy/index.ddpfs", UploadId=left["xy/index.ddpfs"])
    assert others == ["xy/index.ddpfs"]


@pytest.mark.parametrize("environment, said", [
    ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
    ({"AWS_ACCESS_KEY_ID": "AKIANOBODY"}, "InvalidAccessKeyId"),
    ({"AWS_ACCESS_KEY_ID": ""}, "no credentials"),
    ({"AWS_PROFILE": "nobody"}, "AWS_PROFILE"),
    ({"AWS_ENDPOINT_URL_S3": "ftp://x"}, "neither https:// nor http://"),
])
def test_what_is_wrong_with_access_is_said_in_a_sentence(environment, said, s3, source, scratch, monkeypatch):
    tools.mkshard("pack", source[0], "s3://data/x")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = fails(tools.tool("mkshard"), "info", "s3://data/x")
    assert said in text and text.count("\n") == 1, text


def test_a_bucket_that_is_not_there_is_said(s3):
    del s3
    assert "no bucket 'nothing-here'" in fails(tools.tool("mkshard"), "info", "s3://nothing-here/x")
    assert "no object" in fails(tools.tool("mkshard"), "info", "s3://data/nothing")
    for name, said in (("s3://nothing-here/x", "no bucket 'nothing-here'"), ("s3://data/nothing", "no object")):
        found = json.loads(tools.ddpfs("doctor", "--json", name, check=False).stdout)["findings"]
        assert any(f["check"] == "store" and said in f["text"] for f in found), found


def test_secrets_are_in_no_file_of_a_mount(s3, server, source, mount):
    del s3
    tools.mkshard("pack", source[0], "s3://data/x")
    m = mount("s3://data/x", "view=all")
    shown = tools.ddpfs("stat", "--json", m.path).stdout + m.log() + " ".join(os.listdir(m.path))
    shown += "".join((m.path / ".ddpfs" / name).read_text()
                     for name in os.listdir(m.path / ".ddpfs") if (m.path / ".ddpfs" / name).is_file())
    for pid in (m.process.pid, m.server_pid()):
        shown += open(f"/proc/{pid}/cmdline").read()
    assert server.secret_key not in shown
