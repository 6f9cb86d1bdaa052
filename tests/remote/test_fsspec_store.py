# SPDX-License-Identifier: Apache-2.0
"""ddpfs:// URLs of datasets in stores: the same bytes as on a disk, by the option dataset= and by chained URLs."""

import sys

import pytest

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import datasets, tools  # noqa: E402

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
from ddpfs import files as opened_files  # noqa: E402
from ddpfs.fsspec import DdpfsFileSystem  # noqa: E402


@pytest.fixture(autouse=True)
def library(build_dir, monkeypatch):
    monkeypatch.setenv("DDPFS_STAGE_LIB", str(build_dir / "gpu_stage" / "libddpfs_stage.so"))
    yield
    opened_files.forget_all()


@pytest.fixture
def source(scratch):
    return scratch / "source", datasets.write_tree(scratch / "source", per_class=10, sizes=(0, 1, 4096, 3 << 20))


def check(fs, files):
    assert set(fs.find("")) == set(files)
    assert fs.cat(sorted(files)) == files
    large = max(files, key=lambda path: len(files[path]))
    with fs.open(large) as f:
        f.seek((1 << 20) - 2)
        assert f.read(4) == files[large][(1 << 20) - 2:(1 << 20) + 2]


def test_behind_http(source, http_store):
    path, files = source
    tools.mkshard("pack", path, http_store.root / "train")
    check(DdpfsFileSystem(dataset=http_store.url + "/train"), files)


def test_wrong_bytes_of_a_server_are_never_given(source, http_store):
    path, files = source
    tools.mkshard("pack", path, http_store.root / "train")
    fs = DdpfsFileSystem(dataset=http_store.url + "/train")
    assert set(fs.find("")) == set(files)  # the index is here
    http_store.set(flip=0.3)
    for name in files:
        try:
            assert fs.cat_file(name) == files[name]
        except OSError:
            pass  # wrong twice
    http_store.set()


def test_in_s3(source, scratch, monkeypatch):
    pytest.importorskip("moto", reason="moto is not installed")
    from helpers.s3_server import REGION, S3Server

    path, files = source
    with S3Server(scratch) as server:
        server.client().create_bucket(Bucket="data", CreateBucketConfiguration={"LocationConstraint": REGION})
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        tools.mkshard("pack", path, "s3://data/sets/train")
        check(DdpfsFileSystem(dataset="s3://data/sets/train"), files)
        check(DdpfsFileSystem(fo="data/sets/train", target_protocol="s3"), files)  # as fsspec does for ...::s3://...
        with fsspec.open("ddpfs://class_00/item_0002.bin", dataset="s3://data/sets/train") as f:
            assert f.read() == files["class_00/item_0002.bin"]
        with pytest.raises(FileNotFoundError):
            DdpfsFileSystem(dataset="s3://data/sets/none").ls("")
