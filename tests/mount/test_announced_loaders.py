# SPDX-License-Identifier: Apache-2.0
"""A PyTorch trainer that does not know ddpfs, under `ddpfs exec`: whatever its sampler is, the files that it draws are
in memory before it opens them."""

import json
import random
import sys
import textwrap

import pytest

from helpers import tools
from helpers.waiting import wait_until

pytest.importorskip("torch", reason="torch is not installed")
COUNT, BATCH = 2000, 8

# The first batch waits until the server has read what was announced: the first window.  Then counters are noted, and the
# trainer goes on.  No file needs to be read while the trainer runs, so nothing depends on how fast it is.
TRAINER = """
    import json, os, random, sys, time
    import numpy, torch
    from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler

    mount, kind, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])

    def stats():
        with open(os.path.join(mount, ".ddpfs/stats.json")) as file:
            return json.load(file)

    class Files(Dataset):
        def __init__(self):
            self.samples = sorted((os.path.join(d, n), 0) for d, _, names in os.walk(mount) for n in names)

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, i):
            with open(self.samples[i][0], "rb") as file:
                return len(file.read())

    class NoList(Dataset):
        def __init__(self, dataset):
            self.wrapped = dataset

        def __len__(self):
            return len(self.wrapped)

        def __getitem__(self, i):
            return self.wrapped[i]

    class Buckets(Sampler):
        def __iter__(self):
            for part in numpy.random.permutation(len(data)).reshape(-1, BATCH):
                yield sorted(part.tolist())

        def __len__(self):
            return len(data) // BATCH

    class Own(Sampler):
        def __init__(self):
            self.generator = numpy.random.default_rng(7)

        def __iter__(self):
            return iter(self.generator.permutation(len(data)))

        def __len__(self):
            return len(data)

    torch.manual_seed(1), random.seed(2), numpy.random.seed(3)
    data = Files()
    if kind == "no list":
        data = NoList(data)
    options = {"weighted": {"sampler": WeightedRandomSampler(torch.rand(len(data)), len(data)), "batch_size": BATCH},
               "buckets": {"batch_sampler": Buckets()},
               "own": {"sampler": Own(), "batch_size": BATCH},
               "no list": {"shuffle": True, "batch_size": BATCH}}[kind]
    loader = DataLoader(data, num_workers=workers, **options)
    if len(sys.argv) > 4:
        import ddpfs.torch
        ddpfs.torch.follow(loader)
    first, noted, seen = True, None, 0
    for sizes in loader:
        while noted is None:
            now = stats()
            if now["order_source"] == "announced" and sum(one["entries"] for one in now["announced"]) == len(data) and now["idle"]:
                noted = now
            time.sleep(0.02)
        seen += len(sizes)
    assert seen == len(data)
    end = stats()
    print(json.dumps({key: end[key] - noted[key] for key in ("opens", "hits", "misses", "lost", "orders_dropped")}))
    """


@pytest.fixture
def dataset(pack, scratch):
    for i in range(COUNT):
        path = scratch / "tree" / f"class_{i % 10}" / f"{i:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(i).randbytes(500 + i))
    return pack(scratch / "tree")


@pytest.fixture
def train(dataset, scratch):
    (scratch / "mnt").mkdir()
    (scratch / "train.py").write_text(f"BATCH = {BATCH}\n" + textwrap.dedent(TRAINER))

    def once(*arguments, options=(), **kwargs):
        done = tools.ddpfs("exec", "-q", "-o", "view=all,memory=256M", *options, dataset, scratch / "mnt", "--",
                           sys.executable, "-W", "ignore", scratch / "train.py", scratch / "mnt", *arguments, **kwargs)
        assert done.stderr == ""
        return json.loads(done.stdout)

    def run(*arguments, **kwargs):
        """A run in which the kernel took nothing back: else files are read a second time."""
        return wait_until(lambda: (since := once(*arguments, **kwargs))["lost"] == 0 and since)

    return run


@pytest.mark.parametrize("kind, workers", [("weighted", 2), ("buckets", 4), ("own", 2), ("no list", 4)])
def test_what_a_sampler_draws_is_in_memory(train, kind, workers):
    since = train(kind, workers)
    assert since["opens"] >= COUNT - 8 * BATCH * workers
    assert since["misses"] < 0.01 * COUNT and since["orders_dropped"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_one_line_in_the_trainer_does_the_same(train, workers):
    since = train("buckets", workers, "follow", options=["--no-interpose"],
                  env={"PYTHONPATH": tools.ROOT / "gpu_stage/python"})
    assert since["misses"] < 0.01 * COUNT and since["orders_dropped"] == 0
