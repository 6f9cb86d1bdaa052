# SPDX-License-Identifier: Apache-2.0
"""Datasets in OpenStack Swift, whose S3 interface checks signatures with code of its own.

Needs Debian's package python3-swift, or Swift from PyPI."""

import os

import pytest

from helpers import datasets, tools
from helpers.swift_server import SwiftServer, python_with_swift
from mount import control

pytest.importorskip("boto3", reason="boto3 is not installed")

PREFIX = "a=b c/tr+ain/ü"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    python = python_with_swift()
    if not python:
        pytest.skip("Swift is not installed (Debian: python3-swift)")
    with SwiftServer(python, tmp_path_factory.mktemp("swift")) as one:
        one.client().create_bucket(Bucket="data", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        yield one


@pytest.fixture
def stored(server, clean_environment, build_dir, scratch, monkeypatch):
    """A packed dataset, whose shard goes in two parts; its name, its source and its files."""
    del clean_environment, build_dir
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    source = scratch / "source"
    files = datasets.write_tree(source, classes=2, per_class=20)
    (source / "big.bin").write_bytes(os.urandom(20 << 20))
    files["big.bin"] = (source / "big.bin").read_bytes()
    name = f"s3://data/{scratch.name}/{PREFIX}"
    tools.mkshard("pack", source, name)
    return name, source, files


def contents(path):
    return {name: data for name, data in datasets.read_tree(path).items() if not name.startswith(".ddpfs")}


def test_what_is_packed_is_mounted_and_verified(stored, mount):
    name, _, files = stored
    m = mount(name, "view=all,layout=tree,memory=64M")
    assert contents(m.path) == files
    assert control.stats(m)["errors"] == 0
    tools.mkshard("verify", name)
    assert sorted(tools.mkshard("ls", name).stdout.split()) == sorted(files)


def test_a_signature_of_another_key_is_refused_in_a_sentence(stored, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    done = tools.run([tools.tool("mkshard"), "info", stored[0]], check=False)
    assert done.returncode == 1 and "SignatureDoesNotMatch" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_another_region_is_refused_in_a_sentence(stored, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    done = tools.run([tools.tool("mkshard"), "info", stored[0]], check=False)
    assert done.returncode == 1 and "eu-west-1" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_bucket_or_an_object_that_is_not_there_is_said(stored):
    for name, said in (("s3://nothing-here/x", "no bucket 'nothing-here'"), ("s3://data/nothing", "no object")):
        done = tools.run([tools.tool("mkshard"), "info", name], check=False)
        assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_tar_files_are_adopted_where_they_are(stored, server, scratch, mount):
    _, source, files = stored
    tools.run(["tar", "-C", source, "-cf", scratch / "one.tar", *sorted(os.listdir(source))])
    server.client().upload_file(str(scratch / "one.tar"), "data", f"{scratch.name}/tars/one.tar")
    tools.mkshard("index", f"s3://data/{scratch.name}/tars/")
    assert contents(mount(f"s3://data/{scratch.name}/tars/", "view=all,layout=tree,memory=64M").path) == files


def test_a_replaced_shard_gives_no_other_bytes(stored, server, scratch, mount):
    name, _, files = stored
    m = mount(name, "view=all,layout=tree,memory=64M")
    client, prefix = server.client(), f"{scratch.name}/{PREFIX}/"
    for found in client.list_objects_v2(Bucket="data", Prefix=prefix)["Contents"]:
        if "shard-" in found["Key"]:
            client.put_object(Bucket="data", Key=found["Key"], Body=os.urandom(found["Size"]))
    stale = 0
    for path, data in files.items():
        try:
            assert (m.path / path).read_bytes() == data
        except OSError:
            stale += 1
    assert stale


def test_a_second_epoch_from_a_tier_asks_for_nothing(stored, scratch, mount):
    name, _, files = stored
    (scratch / "tier").mkdir()
    for _ in range(20):
        m = mount(name, f"view=all,layout=tree,memory=64M,tier={scratch / 'tier'},tier_size=64M")
        assert contents(m.path) == files
        stats = control.settled(m)
        m.unmount()
        if not stats["read_bytes"]:
            assert stats["tier_hits"] > 0
            return
    pytest.fail("the store is asked for shards in each of 20 mounts")
