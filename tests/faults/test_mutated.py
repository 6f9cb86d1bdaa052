# SPDX-License-Identifier: Apache-2.0
"""Whole datasets, mutated anywhere, under real mounts: refused with one sentence, or served with right bytes and errors only.

DDPFS_MUTATIONS says how many (default 12)."""

import os
import random
import shutil

import pytest

from helpers import datasets, mounts, tools

MUTATIONS = int(os.environ.get("DDPFS_MUTATIONS", "12"))


def mutate(rng, path):
    data = bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            n = rng.randrange(1, 600)
            data[at:at + n] = rng.randbytes(len(data[at:at + n]))
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            n = rng.randrange(1, 5000)
            data[at:at + n] = bytes(len(data[at:at + n]))
        else:
            data[at:at] = data[rng.randrange(at + 1):at][:4096]
        if not data:
            break
    path.chmod(0o644)
    path.write_bytes(data)


def walk(top, files):
    """Reads what can be read; every byte of it is the source's.  Returns how many files came whole."""
    whole = 0
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            try:
                with open(path, "rb") as f:
                    data = f.read()
            except OSError:
                continue
            assert data == files[os.path.relpath(path, top)], path
            whole += 1
    return whole


@pytest.mark.parametrize("part", ["index", "shards", "both"])
def test_mutations(mount, pack, scratch, part):
    root = scratch / "tree"
    files = datasets.write_tree(root, classes=3, per_class=12, sizes=(0, 600, 5000, 40_000))
    clean = pack(root, "--shard-size=128K")
    rng = random.Random(part)
    served = refused = 0
    for _ in range(MUTATIONS):
        dataset = scratch / "mutated"
        shutil.rmtree(dataset, ignore_errors=True)
        shutil.copytree(clean, dataset)
        shards = sorted(dataset.glob("shard-*"))
        if part != "shards":
            mutate(rng, dataset / "index.ddpfs")
        if part != "index":
            for shard in rng.sample(shards, 2):
                mutate(rng, shard)
        tools.mkshard("verify", dataset, check=False)
        try:
            m = mount(dataset, "view=all,layout=tree")
        except AssertionError as e:
            assert "ended with 1" in str(e) and not mounts.is_mounted(scratch / f"mnt{served + refused}"), e
            mount.mounts.pop()
            refused += 1
            continue
        whole = walk(m.path, files)
        assert part != "shards" or whole > 0
        served += 1
        m.unmount()
    print(f"{part}: {served} served, {refused} refused")
    assert served + refused == MUTATIONS and (part != "shards" or refused == 0)
