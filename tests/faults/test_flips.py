"""Every single-bit flip of a small dataset is harmless or noticed: no reader ever gets a wrong byte.

Bits of contents are flipped all; of the rest of the shards and of the index all with DDPFS_FLIPS=all (ten minutes), else a
sample that comes by every position in a byte."""

import json
import os

import pytest

from helpers import datasets, tools

ALL = os.environ.get("DDPFS_FLIPS") == "all"
STRIDE, INDEX_STRIDE = (1, 1) if ALL else (211, 23)
SIZES = (0, 1, 100, 512, 513, 1000)


@pytest.mark.parametrize("container", ["tar", "bare"])
def test_every_bit(scratch, pack, build_dir, container):
    root = scratch / "tree"
    files = datasets.write_tree(root, classes=2, per_class=3, sizes=SIZES)
    dataset = pack(root, f"--container={container}", "--shard-size=4K")
    shards = sorted(dataset.glob("shard-*"))
    assert len(shards) > 1
    done = tools.run([build_dir / "tests/faults/flips", dataset, scratch, str(STRIDE), str(INDEX_STRIDE)], timeout=3600)
    said = json.loads(done.stdout)
    print(container, said)
    content = 8 * sum(len(data) for data in files.values())
    bits = 8 * sum(shard.stat().st_size for shard in shards)
    assert said["in_contents"] == content
    assert abs(said["elsewhere"] - (bits - content) / STRIDE) <= (bits - content) / STRIDE / 4 + 2
    assert said["index_flips"] == -(-8 * (dataset / "index.ddpfs").stat().st_size // INDEX_STRIDE)
    assert said["index_met_by_readers"] > said["index_flips"] / 2
