# SPDX-License-Identifier: Apache-2.0
"""libddpfs_stage over shards that may only be read, with their index in a file of this host."""

import pickle
import sys
import tarfile

import pytest

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import datasets, tools  # noqa: E402

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402
from ddpfs import files as opened_files  # noqa: E402
from ddpfs.fsspec import DdpfsFileSystem  # noqa: E402


@pytest.fixture(autouse=True)
def library(build_dir, monkeypatch):
    monkeypatch.setenv("DDPFS_STAGE_LIB", str(build_dir / "gpu_stage" / "libddpfs_stage.so"))
    yield
    opened_files.forget_all()


@pytest.fixture(params=["directory", "http"])
def shards(request, scratch, http_store):
    """(DATASET, its index, {name: bytes})"""
    files = datasets.write_tree(scratch / "source", classes=3, per_class=20, sizes=(0, 1, 20_000, 1_500_000))
    for i in range(2):
        with tarfile.open(http_store.root / f"train-{i}.tar", "w") as tar:
            for name in sorted(files)[i::2]:
                tar.add(scratch / "source" / name, name)
    name = http_store.url if request.param == "http" else str(http_store.root)
    words = [f"{name}/train-{i}.tar" for i in range(2)] if request.param == "http" else []
    tools.mkshard("index", "-o", scratch / "wds.ddpfs", name, *words)
    return name, str(scratch / "wds.ddpfs"), files


def read(stage):
    """{name: bytes} of an epoch."""
    with stage:
        return {batch.path(i): bytes(batch[i]) for batch in stage for i in range(len(batch))}


def test_an_epoch_of_two_ranks(shards):
    dataset, index, files = shards
    parts = [read(ddpfs.Stage(dataset, 4, index=index, rank=rank, world=2, memory="32M")) for rank in (0, 1)]
    assert not parts[0].keys() & parts[1].keys() and parts[0] | parts[1] == files


def test_a_mount_tells_the_stage_its_index(shards, mount):
    dataset, index, files = shards
    m = mount(dataset, f"index={index},rank=0,world=1,tail=short,memory=32M")
    assert read(ddpfs.Stage(m.path, 4, memory="32M")) == files
    with pytest.raises(ddpfs.StageError, match="is a mount, which has its index"):
        read(ddpfs.Stage(m.path, 4, index=index))


def test_another_index_is_refused(shards, scratch, http_store):
    dataset, _, _ = shards
    (scratch / "others").mkdir()
    with tarfile.open(scratch / "others/train-0.tar", "w") as tar:
        tar.add(scratch / "source/class_00", "class_00")
    tools.mkshard("index", "-o", scratch / "other.ddpfs", scratch / "others")
    with pytest.raises(ddpfs.StageError, match="is not that of the shards in"):
        read(ddpfs.Stage(dataset, 4, index=scratch / "other.ddpfs"))
    with pytest.raises(OSError, match="is not that of the shards in"):
        DdpfsFileSystem(dataset=dataset, index=scratch / "other.ddpfs").ls("")
    with pytest.raises(ddpfs.StageError, match="there is none"):
        read(ddpfs.Stage(dataset, 4, index=scratch / "none"))


def test_files_by_their_paths(shards):
    dataset, index, files = shards
    fs = DdpfsFileSystem(dataset=dataset, index=index)
    assert set(fs.find("")) == set(files) and fs.cat(sorted(files)) == files
    large = max(files, key=lambda path: len(files[path]))
    with pickle.loads(pickle.dumps(fs)).open(large) as f, pickle.loads(pickle.dumps(f)) as again:
        assert f.read() == again.read() == files[large]
    with pytest.raises(ValueError, match="name it, too"):
        DdpfsFileSystem(index=index)
