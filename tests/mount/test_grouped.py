# SPDX-License-Identifier: Apache-2.0
"""Samples of two files each, as a WebDataset has them, in a mount of all files whose trainer opens both."""

import random

import pytest

from helpers import datasets, tools
from mount.control import settled

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


def test_the_second_file_of_a_sample_that_comes_is_not_lost(grouped, mount):
    """Nobody knows the order, so both files are read on demand.  That the first one comes does not mean that the second was
    there: the budget would shrink, and what is read ahead would be fetched again."""
    dataset, files = grouped
    m = mount(dataset, f"{TREE},memory=24M")
    order = random.Random().sample(samples_of(m, files), 500)
    after = read(m, files, order)
    assert after["misses"] > 500 and after["lost"] <= after["misses"] / 20 and after["refetches"] == 0
