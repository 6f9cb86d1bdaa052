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


def test_both_files_of_a_recognised_sample_are_read_ahead(grouped, mount):
    """torch's order of the sorted pictures; the labels lie beside them."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    dataset, files = grouped
    m = mount(dataset, f"{TREE},memory=24M")
    samples = samples_of(m, files)
    order = [samples[i] for i in torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(7))]
    before = read(m, files, order[:200])
    assert "torch DistributedSampler, seed+epoch 7" in before["recognised"]
    assert missed(before, read(m, files, order[200:])) <= 2 * SAMPLES / 50


def test_the_second_file_of_a_sample_that_comes_is_not_lost(grouped, mount):
    """Nobody knows the order, so both files are read on demand.  That the first one comes does not mean that the second was
    there: the budget would shrink, and what is read ahead would be fetched again."""
    dataset, files = grouped
    m = mount(dataset, f"{TREE},memory=24M")
    order = random.Random().sample(samples_of(m, files), 500)
    after = read(m, files, order)
    assert after["misses"] > 500 and after["lost"] <= after["misses"] / 20 and after["refetches"] == 0
