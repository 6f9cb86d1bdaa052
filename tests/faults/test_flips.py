# SPDX-License-Identifier: Apache-2.0
"""Every single-bit flip of a small dataset is harmless or noticed: no reader ever gets a wrong byte.

Bits of contents are flipped all; of the rest of the shards and of the index all with DDPFS_FLIPS=all (five minutes), else a
sample that comes by every position in a byte."""

import json
import os

import pytest

from helpers import datasets, tools

ALL = os.environ.get("DDPFS_FLIPS") == "all"
STRIDE, INDEX_STRIDE = (1, 1) if ALL else (211, 23)
SIZES = (0, 1, 100, 512, 513)


@pytest.mark.parametrize("container", ["tar", "bare"])
def test_every_bit(tmp_path, build_dir, container):
    root = tmp_path / "tree"
    files = datasets.write_tree(root, classes=1, per_class=5, sizes=SIZES)
    dataset = tmp_path / "dataset"
    tools.mkshard("pack", f"--container={container}", "--shard-size=4K", root, dataset)
    shards = sorted(dataset.glob("shard-*"))
    assert len(shards) > 1 or container == "bare"
    done = tools.run([build_dir / "tests/faults/flips", dataset, tmp_path, str(STRIDE), str(INDEX_STRIDE)], timeout=3600)
    said = json.loads(done.stdout)
    print(container, said)
    content = 8 * sum(len(data) for data in files.values())
    bits = 8 * sum(shard.stat().st_size for shard in shards)
    assert said["in_contents"] == content
    assert abs(said["elsewhere"] - (bits - content) / STRIDE) <= (bits - content) / STRIDE / 4 + 2
    assert said["index_flips"] == -(-8 * (dataset / "index.ddpfs").stat().st_size // INDEX_STRIDE)
    assert said["index_met_by_readers"] > said["index_flips"] / 2
