# SPDX-License-Identifier: Apache-2.0
"""order=torch against the torch that is installed: randperm and DistributedSampler, item by item."""

import numpy
import pytest

from helpers import tools

torch = pytest.importorskip("torch", reason="torch is not installed")
INSIDE_OUT = 2**32 // 20  # from this many items on, randperm uses its second algorithm


def printed(*args):
    """What print_order says, as a list of integers."""
    program = tools.build_dir() / "tests" / "shard" / "print_order"
    return numpy.fromstring(tools.run([program, *args]).stdout, dtype=numpy.int64, sep="\n").tolist()


def ours(n, seed=0, epoch=0, world=1, rank=0, tail="pad", start=0, mode="torch"):
    return printed(mode, n, seed, epoch, world, rank, tail, start)


def theirs(n, seed=0, epoch=0, world=1, rank=0, tail="pad", shuffle=True):
    sampler = torch.utils.data.DistributedSampler(range(n), num_replicas=world, rank=rank, shuffle=shuffle, seed=seed,
                                                  drop_last=tail == "drop")
    sampler.set_epoch(epoch)
    return list(sampler)


def randperm(n, seed, dtype=torch.int64):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 31, 32, 33, 255, 256, 257, 623, 624, 625, 1000, 29_999, 65_537])
@pytest.mark.parametrize("seed", [0, 1, 7, 2**31, 2**32 - 1, 2**32, 2**32 + 7, 2**63 - 1])
def test_randperm(build_dir, n, seed):
    assert ours(n, seed) == randperm(n, seed).tolist()


def test_randperm_of_imagenets_size(build_dir):
    assert ours(1_281_167, 42) == randperm(1_281_167, 42).tolist()


@pytest.mark.parametrize("n", [1_281_167, INSIDE_OUT - 1])
def test_prefix(build_dir, n):
    expected = randperm(n, 3, torch.int32)[:5000].tolist()
    assert printed("prefix", n, 3, 5000) == expected


def test_prefix_beyond_the_second_algorithm(build_dir):
    expected = randperm(INSIDE_OUT, 3, torch.int32)[:5000].tolist()
    assert printed("prefix", INSIDE_OUT, 3, 5000) == expected


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 100, 1003])
def test_distributed_sampler(build_dir, n, world, tail):
    for rank in range(world):
        for seed, epoch in [(0, 0), (0, 1), (7, 3), (2**32 + 5, 2)]:
            assert ours(n, seed, epoch, world, rank, tail) == theirs(n, seed, epoch, world, rank, tail)


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_distributed_sampler_without_shuffle_is_order_none(build_dir, tail):
    for n, world in [(10, 3), (100, 7), (3, 8)]:
        for rank in range(world):
            assert ours(n, world=world, rank=rank, tail=tail, mode="none") == theirs(
                n, world=world, rank=rank, tail=tail, shuffle=False)


def test_start_continues_the_same_permutation(build_dir):
    """What four ranks left after 400 samples, three ranks get: each remaining item once."""
    whole = randperm(1000, 9).tolist()
    rest = [ours(1000, 7, 2, world=3, rank=r, tail="short", start=400) for r in range(3)]
    assert [rest[i % 3][i // 3] for i in range(600)] == whole[400:]
