# SPDX-License-Identifier: Apache-2.0
"""webdataset on shards that ddpfs adopted where they are, and on one rank's part of them."""

import hashlib
import io
import tarfile
import warnings

import pytest

from helpers import tools

wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
pytest.importorskip("torch", reason="torch is not installed")

SAMPLES, SHARDS = 60, 4


def write_shards(root):
    """{key: (jpg, cls)} in tar shards as webdataset's own writer makes them."""
    root.mkdir()
    samples = {}
    for shard in range(SHARDS):
        with tarfile.open(root / f"train-{shard:06d}.tar", "w") as tar:
            for i in range(shard, SAMPLES, SHARDS):
                key = f"{i:05d}"
                samples[key] = (hashlib.sha256(key.encode()).digest() * (i + 1), str(i % 10).encode())
                for extension, data in zip(("jpg", "cls"), samples[key]):
                    member = tarfile.TarInfo(f"{key}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return samples


def read(urls):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = wds.WebLoader(wds.WebDataset(urls, shardshuffle=False, empty_check=False), batch_size=None)
        return [(s["__key__"], (s["jpg"], s["cls"])) for s in loader]


@pytest.fixture
def shards(build_dir, scratch):
    samples = write_shards(scratch / "shards")
    tools.mkshard("index", "--sample=key", scratch / "shards")
    return scratch / "shards", samples


def test_adopted_shards_stay_webdatasets(shards, mount):
    root, samples = shards
    assert dict(read([str(p) for p in sorted(root.glob("*.tar"))])) == samples
    mnt = mount(root, "view=all").path
    assert {p.name: p.read_bytes() for p in mnt.rglob("*") if p.is_file()} == \
        {f"{key}.{ext}": data for key, both in samples.items() for ext, data in zip(("jpg", "cls"), both)}


def test_a_ranks_part_as_a_stream(shards, mount):
    """tar(1) makes a shard of each rank's directory on the way: webdataset reads the rank's epoch, in its order."""
    root, samples = shards
    parts = []
    for rank in range(2):
        m = mount(root, f"layout=flat,order=full,seed=3,rank={rank},world=2")
        parts.append(read([f"pipe:tar -C {m.path} --sort=name -cf - ."]))
    positions = [[int(key.split("/")[-1].split("-")[1]) for key, _ in part] for part in parts]
    assert positions == [list(range(rank, SAMPLES, 2)) for rank in range(2)]
    assert {key.split("-")[-1]: data for part in parts for key, data in part} == samples
