# SPDX-License-Identifier: Apache-2.0
"""Samples of two files each, as a WebDataset has them, in a mount of all files whose trainer opens both."""

import random
import sys

import pytest

from helpers import datasets, tools
from helpers.waiting import wait_until
from mount.control import settled

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402

SAMPLES, SIZE, STEP = 3000, 5000, 50
TREE = "layout=tree,view=all"


@pytest.fixture(params=["webdataset", "packed"])
def grouped(request, scratch):
    """A dataset of samples of a picture and a label: tars where they are, or packed.  Its files."""
    files = datasets.write_webdataset(scratch / "tars", SAMPLES, SIZE)
    if request.param == "webdataset":
        said = tools.mkshard("index", scratch / "tars").stdout
        assert "samples: by key" in said, said
        return scratch / "tars", files
    (scratch / "loose").mkdir()
    for name, data in files.items():
        (scratch / "loose" / name).write_bytes(data)
    tools.mkshard("pack", "--sample=key", scratch / "loose", scratch / "packed")
    return scratch / "packed", files


def samples_of(m, files):
    """The paths of both files of each sample, sorted by the picture's."""
    places = {path.name: path for path in m.path.rglob("*.???") if path.name in files}
    assert len(places) == len(files)
    return [(path, places[name.replace("jpg", "cls")]) for name, path in sorted(places.items()) if name.endswith("jpg")]


def read(m, files, samples):
    """Opens both files of each sample.  Returns the counters then."""
    for i, sample in enumerate(samples):
        if i % STEP == 0:
            settled(m)
        for path in sample:
            assert path.read_bytes() == files[path.name]
    return settled(m)


def missed(before, after):
    """READs between the two that are not of what the kernel took back; a refetch takes 1,024 turns for lost."""
    taken = 2 * (after["lost"] - before["lost"]) + 2048 * (after["refetches"] - before["refetches"])
    return after["misses"] - before["misses"] - taken


@pytest.mark.parametrize("told", [1, 2], ids=["pictures", "both"])
def test_all_files_of_an_announced_sample_are_read_ahead(told, grouped, mount):
    """The list has the pictures only, or the labels, too.  The names of so many samples are made as fit: with more, what is used
    late would take the room of what is used next."""
    dataset, files = grouped
    m = mount(dataset, f"{TREE},memory=24M")  # about half of the files, names and inodes
    order = random.Random(1).sample(samples_of(m, files), SAMPLES)
    first = settled(m)
    ddpfs.Mount(m.path).follow([str(path.relative_to(m.path)) for sample in order for path in sample[:told]])
    before = wait_until(lambda: (now := settled(m))["stored_bytes"] > 0 and now)
    after = read(m, files, order)
    assert missed(before, after) <= 2 * SAMPLES / 200
    listed = after["lookups"] - first["lookups"] <= SAMPLES / 3 + after["lost"] + 2048 * after["refetches"]
    assert listed, "names are listed by directory, not looked up"


def torch_randperm(n, seed):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def numpy_shuffle(n, seed):
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    return np.random.RandomState(seed).permutation(n).tolist()


def numpy_default_rng(n, seed):
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    return np.random.default_rng(seed).permutation(n).tolist()


def python_shuffle(n, seed):
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return order


SHUFFLES = [(torch_randperm, "torch DistributedSampler"), (numpy_shuffle, "numpy shuffle"),
            (numpy_default_rng, "numpy default_rng shuffle"), (python_shuffle, "Python random.shuffle")]
KINDS = {"both": slice(None), "labels first": slice(None, None, -1), "pictures": slice(1)}
TRAINERS = [(*shuffle, "both") for shuffle in SHUFFLES] + [(*SHUFFLES[1], kinds) for kinds in ("labels first", "pictures")]


@pytest.mark.parametrize("shuffle, name, kinds", TRAINERS, ids=[f"{name}, {kinds}" for _, name, kinds in TRAINERS])
def test_recognised_samples_are_read_ahead(shuffle, name, kinds, grouped, mount):
    """A shuffle of the sorted pictures; the labels lie beside them.  The trainer opens both files of a sample, or one."""
    dataset, files = grouped
    m = mount(dataset, f"{TREE},memory=24M")
    samples = samples_of(m, files)
    order = [samples[i][KINDS[kinds]] for i in shuffle(SAMPLES, 7)]
    read(m, files, order[:2 * STEP])
    before = wait_until(lambda: (now := settled(m))["recognised"] != "nothing" and now, "a recognised order")
    assert before["recognised"].startswith(f"{name}, seed+epoch 7") and len(before["samplers"]) == 1
    after = read(m, files, order[2 * STEP:])
    assert missed(before, after) <= len(order[0]) * SAMPLES / 100
    assert len(after["samplers"]) == 1 and after["recognise_wrong"] == 0


def test_the_second_file_of_a_sample_that_comes_is_not_lost(grouped, mount):
    """Nobody knows the order, so both files are read on demand.  That the first one comes does not mean that the second was
    there: the budget would shrink, and what is read ahead would be fetched again."""
    dataset, files = grouped
    m = mount(dataset, f"{TREE},memory=24M")
    order = random.Random().sample(samples_of(m, files), 500)
    after = read(m, files, order)
    assert after["misses"] > 500 and after["lost"] <= after["misses"] / 20 and after["refetches"] == 0


def test_readers_of_both_files_who_leave_the_order_are_noticed(grouped, mount):
    """The second file of a sample is no second open: else half of the opens would count as fitting."""
    dataset, files = grouped
    m = mount(dataset, f"{TREE},memory=24M")
    samples = samples_of(m, files)
    names = list(samples)
    random.Random(7).shuffle(names)
    read(m, files, names[:1000])
    wait_until(lambda: settled(m)["order_source"] == "recognised")
    now = read(m, files, random.sample(samples, SAMPLES))
    assert now["order_source"] == "unknown" and now["read_ahead_note"] and now["warm_ups"], now
