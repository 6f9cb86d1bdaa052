# SPDX-License-Identifier: Apache-2.0
"""Recognition against the libraries that are installed: numpy, Python, torch, Hugging Face datasets, DALI shuffle a list."""

import json
import os
import platform
import random

import pytest

from helpers import tools
from trainers import heavy, launch

CLASSES, PER_CLASS, OPENS = 200, 500, 1000
PATHS = [f"class_{c:04d}/item_{i:06d}.bin" for c in range(CLASSES) for i in range(PER_CLASS)]
N = len(PATHS)

np = pytest.importorskip("numpy", reason="numpy is not installed")


@pytest.fixture
def recognise(build_dir, scratch):
    """recognise(indices) -> [{text, list, opens, after, now, next}] for opens of paths[index], of a dataset of these paths."""
    programs = build_dir / "tests"

    def ask(indices, paths=PATHS):
        found, dataset = {}, scratch / "dataset"
        classes = len(paths) // PER_CLASS
        tools.run([programs / "shard" / "make_index", dataset, classes, PER_CLASS, 1, "shuffled"])
        text = tools.run([programs / "prefetch" / "recognise_trace", dataset], input="".join(paths[i] + "\n" for i in indices))
        for line in text.stdout.splitlines():
            head, *rest = line.split("\t")
            kind, number = head.split()
            if kind == "track":
                opens, _, after, say, of = rest
                found[number] = {"opens": int(opens), "after": int(after), "text": say, "list": of}
            else:
                found[number][kind] = rest
        return list(found.values())

    return ask


def numpy_permutation(seed):
    return np.random.RandomState(seed).permutation(N)


def numpy_seed_shuffle(seed):
    order = list(range(N))
    np.random.seed(seed)
    np.random.shuffle(order)
    return order


def numpy_shuffle_array(seed):
    order = np.arange(N)
    np.random.RandomState(seed).shuffle(order)
    return order


def numpy_rng_permutation(seed):
    return np.random.default_rng(seed).permutation(N)


def numpy_rng_shuffle(seed):
    order = list(range(N))
    np.random.default_rng(seed).shuffle(order)
    return order


def python_shuffle(seed):
    order = list(range(N))
    random.Random(seed).shuffle(order)
    return order


def python_sample(seed):
    return random.Random(seed).sample(range(N), N)


FAMILIES = {
    "numpy RandomState.permutation": (numpy_permutation, "numpy shuffle"),
    "numpy.random.seed, shuffle of a list": (numpy_seed_shuffle, "numpy shuffle"),
    "numpy RandomState.shuffle of an array": (numpy_shuffle_array, "numpy shuffle"),
    "numpy default_rng.permutation": (numpy_rng_permutation, "numpy default_rng shuffle"),
    "numpy default_rng.shuffle of a list": (numpy_rng_shuffle, "numpy default_rng shuffle"),
    "random.shuffle": (python_shuffle, "Python random.shuffle"),
    "random.sample": (python_sample, "Python random.sample"),
}


def check_two_epochs(recognise, order, after, text):
    (track,) = recognise(order[:OPENS])
    assert text in track["text"]
    assert track["after"] <= 96
    assert track["now"] == [PATHS[i] for i in order]
    assert track["next"] == [PATHS[i] for i in after]


@pytest.mark.parametrize("seed", [0, 42, 9001])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_shuffle_and_the_next_one(recognise, compared, family, seed):
    compared("numpy", np.__version__)
    compared("Python", platform.python_version())
    shuffle, text = FAMILIES[family]
    check_two_epochs(recognise, shuffle(seed), shuffle(seed + 1), f"{text}, seed+epoch {seed}")


@pytest.mark.trainers
@pytest.mark.parametrize("seed", [0, 42, 9001])
def test_hugging_face(recognise, compared, seed):
    """Dataset.shuffle(seed) and then seed + 1."""
    heavy.need("datasets")
    shuffled = json.loads(heavy.run(launch.HERE / "datasets_order.py", N, seed, seed + 1).stdout)
    compared("datasets", shuffled["version"])
    check_two_epochs(recognise, *shuffled["orders"], f"numpy default_rng shuffle, seed+epoch {seed}")


@pytest.mark.parametrize("deal", ["[rank::world]", "contiguous parts"])
@pytest.mark.parametrize("family", ["numpy RandomState.permutation", "random.shuffle", "torch.randperm"])
def test_dealt_to_ranks(recognise, compared, family, deal):
    world, rank = 8, 5
    if family == "torch.randperm":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        compared("torch", torch.__version__)
        order = torch.randperm(N, generator=torch.Generator().manual_seed(7)).tolist()
    else:
        order = FAMILIES[family][0](7)
    mine = order[rank::world] if deal == "[rank::world]" else order[rank * N // world:(rank + 1) * N // world]
    (track,) = recognise(mine[:OPENS])
    assert f"seed+epoch 7, rank {rank} of {world}" in track["text"]
    assert track["after"] <= 96
    assert track["now"] == [PATHS[i] for i in mine]


@pytest.mark.parametrize("deal", ["[rank::world]", "contiguous parts"])
def test_a_ranks_own_part_shuffled_by_itself(recognise, deal):
    """As dlio_sampler of DLIO 2.0.0 does: the same seed in each epoch, in place."""
    world, rank = 4, 1
    part = list(range(N))[rank::world] if deal == "[rank::world]" else list(range(rank * N // world, (rank + 1) * N // world))
    orders = []
    for _ in range(3):
        np.random.seed(123)
        np.random.shuffle(part)
        orders.append(list(part))
    (track,) = recognise(orders[0] + orders[1][:OPENS])
    assert track["opens"] >= len(part) + OPENS - 2 * 96
    assert track["now"] == [PATHS[i] for i in orders[1]]
    assert track["next"] == [PATHS[i] for i in orders[2]]


@pytest.mark.parametrize("seed", [0, 7, 42, 500, 9001])
@pytest.mark.parametrize("n", [33333, 33334])
def test_a_sample_of_a_part_rounded_up_or_down(recognise, compared, n, seed):
    """Rank 0 of 3.  A sample of one file less or more begins in the same way."""
    compared("Python", platform.python_version())
    first, second, third = (random.Random(seed + epoch).sample(range(n), n) for epoch in range(3))
    (track,) = recognise(first + second[:OPENS])
    assert f"Python random.sample, seed+epoch {seed + 1}" in track["text"]
    assert track["opens"] >= n + OPENS - 2 * 96
    assert track["now"] == [PATHS[i] for i in second]
    assert track["next"] == [PATHS[i] for i in third]


def epochs(way):
    """Three epochs of a trainer that shuffles its list of files anew."""
    order = list(range(N))
    rng = np.random.RandomState(5)
    for epoch in range(3):
        if way == "the generator goes on":
            yield list(rng.permutation(N))
            continue
        if way == "DLIO: seed + epoch, in place":
            np.random.seed(123 + epoch)
        elif way == "DLIO: the same seed, in place":
            np.random.seed(123)
        (rng if way == "the generator goes on, in place" else np.random).shuffle(order)
        yield list(order)


@pytest.mark.parametrize("way", ["the generator goes on", "the generator goes on, in place", "DLIO: seed + epoch, in place",
                                 "DLIO: the same seed, in place"])
def test_epochs_of_one_trainer(recognise, way):
    first, second, third = epochs(way)
    (track,) = recognise(first + second[:OPENS])
    assert track["opens"] >= N + OPENS - 2 * 96
    assert track["now"] == [PATHS[i] for i in second]
    assert track["next"] == [PATHS[i] for i in third]


@pytest.mark.parametrize(("n", "size", "initial"), [(10**4, 1000, 100), (10**4, 1250, 1250), (10**5, 1000, 1000), (10**5, 10**4, 5000)])
def test_a_shuffle_buffer_of_webdataset(recognise, compared, n, size, initial):
    webdataset = pytest.importorskip("webdataset", reason="WebDataset is not installed")
    compared("webdataset", webdataset.__version__)
    paths = [f"class_{i // PER_CLASS:04d}/item_{i % PER_CLASS:06d}.bin" for i in range(n)]
    rng, opens = random.Random(2**40 + 7), []
    for _ in range(2):
        opens += webdataset.filters.shuffle(size, initial=initial, rng=rng)(iter(range(n)))
    (track,) = recognise(opens, paths)
    assert track["text"].startswith("sorted order behind a shuffle buffer of about ")
    assert track["opens"] >= 2 * n - 8
    assert track["now"] == paths


def shuffled_like_webdataset(n, size, rng):
    """WebDataset's shuffle: its numbers are those of random.sample of the files that fill the buffer."""
    held = []
    for i in range(n):
        held.append(i)
        if len(held) >= size:
            k = rng.randint(0, len(held) - 1)
            yield held[k]
            held[k] = held[-1]
            held.pop()
    while held:
        k = rng.randint(0, len(held) - 1)
        yield held[k]
        held[k] = held[-1]
        held.pop()


@pytest.mark.parametrize("seed", [0, 1, 7, 42])
def test_a_shuffle_buffer_with_a_likely_seed_is_no_random_sample(recognise, seed):
    n, size = 10**4, 1000
    paths = [f"class_{i // PER_CLASS:04d}/item_{i % PER_CLASS:06d}.bin" for i in range(n)]
    rng = random.Random(seed)
    opens = [i for _ in range(2) for i in shuffled_like_webdataset(n, size, rng)]
    (track,) = recognise(opens, paths)
    assert track["text"].startswith("sorted order behind a shuffle buffer of about ")
    assert track["opens"] >= 2 * n - 8


@pytest.mark.parametrize("share", [2, 3])
def test_a_sample_of_some_files_of_the_list(recognise, share):
    """Of a third of the list or more: Python draws what it draws first of the whole list."""
    first, second = (random.Random(epoch + 5).sample(range(N), N // share) for epoch in range(2))
    (track,) = recognise(first + second, PATHS[:N])
    assert "Python random.sample, seed+epoch 6" in track["text"]
    assert track["opens"] >= 0.99 * 2 * len(first)


def test_a_sample_of_a_ranks_part_is_no_shuffle_buffer(recognise):
    part = random.Random(7).sample(range(1000), 1000)
    (track,) = recognise(part, PATHS[:10**4])
    assert "Python random.sample, seed+epoch 7" in track["text"]
    assert track["after"] <= 96
    assert track["now"] == [PATHS[i] for i in part]


DALI = {
    "DALI random_shuffle": {"random_shuffle": True, "initial_fill": 1},  # a buffer of one file: given out as they are opened
    "DALI shuffle_after_epoch, epoch 1": {"shuffle_after_epoch": True},
}
DALI_SHARDS = {  # of 4: the options, and what the recogniser says
    "a shuffle, from the second quarter on": ({"random_shuffle": True, "initial_fill": 1}, "DALI random_shuffle"),
    "the second quarter of a shuffle, four times": (
        {"random_shuffle": True, "initial_fill": 1, "stick_to_shard": True},
        "DALI random_shuffle, rank 1 of 4 in contiguous parts"),
    "the second quarter of four shuffles": (
        {"shuffle_after_epoch": True}, "DALI shuffle_after_epoch, epoch 4, rank 1 of 4 in contiguous parts"),
}


def opens_of_dali(scratch, compared, paths, options):
    for path in paths:
        os.makedirs(scratch / "files" / os.path.dirname(path), exist_ok=True)
        (scratch / "files" / path).write_bytes(path.encode())
    (scratch / "list").write_text("".join(f"{scratch / 'files' / path}\n" for path in paths))
    order = json.loads(heavy.run(launch.HERE / "dali_order.py", scratch / "list", json.dumps(options)).stdout)
    compared("DALI", order["version"])
    return order["opens"]


@pytest.mark.trainers
@pytest.mark.parametrize("text", DALI)
def test_dali(recognise, compared, scratch, text):
    heavy.need("nvidia-dali-cuda120")
    few = PATHS[:2 * PER_CLASS]
    opens = opens_of_dali(scratch, compared, few, DALI[text])
    assert sorted(opens) == few
    (track,) = recognise([PATHS.index(path) for path in opens], few)
    assert track["text"].startswith(text)


@pytest.mark.trainers
@pytest.mark.parametrize("what", DALI_SHARDS)
def test_a_shard_of_dali(recognise, compared, scratch, what):
    heavy.need("nvidia-dali-cuda120")
    few = PATHS[:4 * PER_CLASS]
    options, text = DALI_SHARDS[what]
    opens = opens_of_dali(scratch, compared, few, {"shard_id": 1, "num_shards": 4, **options})
    (track,) = recognise([PATHS.index(path) for path in opens], few)
    assert track["text"] == text
    assert track["after"] <= 128
    assert track["opens"] >= 0.99 * len(opens)
