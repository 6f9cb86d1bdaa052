# SPDX-License-Identifier: Apache-2.0
"""torchvision on a mount: FashionMNIST's idx files (ImageFolder under DDP is one of test_frameworks.py)."""

import json
import random

import pytest

from trainers import heavy, launch

pytestmark = pytest.mark.trainers


def write_idx(root):
    """The files of FashionMNIST with fewer images: idx as its page describes it, big-endian."""
    raw, rng = root / "FashionMNIST/raw", random.Random(3)
    raw.mkdir(parents=True)
    for name, count in (("train", 3000), ("t10k", 500)):
        head = bytes([0, 0, 8])
        images = head + bytes([3]) + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28)) + rng.randbytes(count * 784)
        labels = head + bytes([1]) + count.to_bytes(4, "big") + bytes(rng.randrange(10) for _ in range(count))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def read(root, report):
    heavy.run(launch.HERE / "fashion_read.py", root, report)
    return json.loads(report.read_text())


def test_fashion_mnist(scratch, pack, mount):
    heavy.need("torchvision")
    write_idx(scratch / "source")
    mounted = read(mount(pack(scratch / "source"), "view=all").path, scratch / "mounted")
    assert mounted == read(scratch / "source", scratch / "plain")
    assert [mounted["True"][0], mounted["False"][0]] == [3000, 500]
