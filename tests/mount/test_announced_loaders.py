# SPDX-License-Identifier: Apache-2.0
"""A PyTorch trainer that does not know ddpfs, under `ddpfs exec`: whatever its sampler is, the files that it draws are
in memory before it opens them."""

import json
import os
import random
import shutil
import sys
import textwrap

import pytest

from helpers import tools
from helpers.private import NOBODY
from helpers.waiting import wait_until

pytest.importorskip("torch", reason="torch is not installed")
COUNT, BATCH = 2000, 8

# The first batch waits until the server has read what was announced: the first window.  Then counters are noted, and the
# trainer goes on.  No file needs to be read while the trainer runs, so nothing depends on how fast it is.
TRAINER = """
    import glob, json, os, random, sys, time
    import numpy, torch
    from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler

    mount, kind, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    side_by_side = 2 if kind == "two" else 1

    def stats():
        with open(os.path.join(mount, ".ddpfs/stats.json")) as file:
            return json.load(file)

    def meet():  # the trainers of one shell
        place = f"{__file__}.{os.getppid()}"
        open(f"{place}.{os.getpid()}", "w").close()
        while len(glob.glob(f"{place}.*")) < side_by_side:
            time.sleep(0.01)

    class Files(Dataset):
        def __init__(self):
            self.samples = sorted((os.path.join(d, n), 0) for d, _, names in os.walk(mount) for n in names)

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, i):
            with open(self.samples[i][0], "rb") as file:
                return len(file.read())

    class Clips(Files):  # of four files each
        def __len__(self):
            return len(self.samples) // 4

        def __getitem__(self, i):
            for name, _ in self.samples[4 * i:4 * i + 4]:
                with open(name, "rb") as file:
                    size = len(file.read())
            return size

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
            self.generator = numpy.random.default_rng(os.getpid())

        def __iter__(self):
            return iter(self.generator.permutation(len(data)))

        def __len__(self):
            return len(data)

    torch.manual_seed(1), random.seed(2), numpy.random.seed(3)
    data = Files()
    if kind == "no list":
        data = NoList(data)
    elif kind == "clips":
        data = Clips()
    options = {"weighted": {"sampler": WeightedRandomSampler(torch.rand(len(data)), len(data)), "batch_size": BATCH},
               "buckets": {"batch_sampler": Buckets()},
               "own": {"sampler": Own(), "batch_size": BATCH},
               "two": {"sampler": Own(), "batch_size": BATCH},
               "clips": {"shuffle": True, "batch_size": BATCH // 4},
               "no list": {"shuffle": True, "batch_size": BATCH},
               "stateful": {"shuffle": True, "batch_size": BATCH},
               "resumed": {"shuffle": True, "batch_size": BATCH},
               "nodes": {}}[kind]
    if kind in ("stateful", "resumed"):
        from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader
    loader = DataLoader(data, num_workers=workers, **options)
    if kind == "nodes":
        import ddpfs
        from torch.utils.data import RandomSampler
        from torchdata.nodes import Batcher, Loader, ParallelMapper, SamplerWrapper

        class Announced(RandomSampler):  # tools/ORDERS.md
            def __iter__(self):
                order = list(super().__iter__())
                ddpfs.Mount(mount).follow([data.samples[i][0] for i in order])
                return iter(order)

        nodes = Batcher(SamplerWrapper(Announced(data)), BATCH)
        loader = Loader(ParallelMapper(nodes, lambda batch: [data[i] for i in batch], num_workers=workers))
    if len(sys.argv) > 4:
        import ddpfs.torch
        ddpfs.torch.follow(loader)
    noted, seen = None, 0
    if kind == "resumed":
        for _, sizes in zip(range(5), loader):
            seen += len(sizes)
        state = loader.state_dict()
        loader = DataLoader(data, num_workers=workers, **options)
        loader.load_state_dict(state)
    rest = (len(data) - seen) * (4 if kind == "clips" else 1)
    for sizes in loader:
        while noted is None:
            now = stats()
            lists = [one["entries"] for one in now["announced"]]
            if now["order_source"] == "announced" and lists.count(rest) == side_by_side and now["idle"]:
                noted = now
                meet()
            time.sleep(0.02)
        seen += len(sizes)
    assert seen == len(data)
    end = stats()
    since = {key: end[key] - noted[key] for key in ("opens", "hits", "misses", "lost", "orders_dropped")}
    print(json.dumps({**since, "lists": [one["list"] for one in noted["announced"]]}))
    """


@pytest.fixture(scope="module")
def dataset(build_dir, tmp_path_factory):
    del build_dir
    place = tmp_path_factory.mktemp("packed")
    for i in range(COUNT):
        path = place / "tree" / f"class_{i % 10}" / f"{i:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(i).randbytes(500 + i))
    tools.mkshard("pack", place / "tree", place / "dataset")
    return place / "dataset"


@pytest.fixture
def train(dataset, scratch):
    (scratch / "mnt").mkdir()
    (scratch / "train.py").write_text(f"BATCH = {BATCH}\n" + textwrap.dedent(TRAINER))

    def once(*arguments, options=(), place=scratch / "mnt", within=(), **kwargs):
        command = [*within, sys.executable, "-W", "ignore", scratch / "train.py", place, *arguments]
        if arguments[0] == "two":
            command = ["sh", "-c", '"$@" & "$@" && wait $!', "sh", *command]
        done = tools.ddpfs("exec", "-q", "-o", "view=all,memory=256M", *options, dataset, scratch / "mnt", "--", *command, **kwargs)
        assert done.stderr == ""
        # Each trainer counts the opens of all, until it ends.
        return max(map(json.loads, done.stdout.splitlines()), key=lambda since: since["opens"])

    def run(*arguments, **kwargs):
        """A run in which the kernel took nothing back: else files are read a second time."""
        return wait_until(lambda: (since := once(*arguments, **kwargs))["lost"] == 0 and since)

    return run


@pytest.mark.parametrize("kind, workers", [("weighted", 2), ("buckets", 4), ("own", 2), ("no list", 4), ("clips", 2)])
def test_what_a_sampler_draws_is_in_memory(train, kind, workers):
    since = train(kind, workers)
    assert since["opens"] >= COUNT - 8 * BATCH * workers
    assert since["misses"] < 0.01 * COUNT and since["orders_dropped"] == 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
@pytest.mark.parametrize("kind, workers", [("weighted", 2), ("buckets", 4)])
def test_what_another_user_draws_is_in_memory(train, dataset, mount, scratch, kind, workers):
    """The trainer reads a mount of root's, not that of `ddpfs exec`, and cannot reach that mount's control socket."""
    os.chmod(scratch, 0o777)
    m = mount(dataset, "view=all,allow_other,memory=256M")
    # The capability lets the other user read the interpreter, wherever it lies. Sockets are still refused to him.
    user = [*NOBODY.split(), "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    since = train(kind, workers, place=m.path, within=user)
    assert since["opens"] >= COUNT - 8 * BATCH * workers
    assert since["misses"] < 0.01 * COUNT and since["orders_dropped"] == 0
    assert since["lists"][0].startswith("65534 torch-")


def test_two_trainers_side_by_side_have_a_list_each(train):
    """Under one `ddpfs exec`, with the shuffles of two generators of numpy."""
    since = train("two", 2)
    assert since["opens"] > 2 * (COUNT - 8 * BATCH * 2) * 0.9
    assert since["misses"] < 0.01 * COUNT and since["orders_dropped"] == 0


@pytest.mark.parametrize("kind", ["stateful", "resumed"])
def test_torchdatas_loader_is_announced_too(train, kind):
    """Its iterators are derived from those of torch, and a resumed one goes on with a sampler that it has put forward."""
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed (tests/requirements-loaders.txt)")
    since = train(kind, 2)
    assert since["opens"] >= COUNT - 8 * BATCH * 2
    assert since["misses"] < 0.01 * COUNT and since["orders_dropped"] == 0


def test_nodes_of_torchdata_are_announced_by_one_line(train):
    """The hook does not know them."""
    pytest.importorskip("torchdata.nodes", reason="torchdata is not installed (tests/requirements-loaders.txt)")
    since = train("nodes", 2, env={"PYTHONPATH": tools.ROOT / "gpu_stage/python"})
    assert since["opens"] >= COUNT - 8 * BATCH * 2
    assert since["misses"] < 0.01 * COUNT and since["orders_dropped"] == 0
    assert since["lists"] == ["default"]


@pytest.mark.parametrize("workers", [0, 2])
def test_one_line_in_the_trainer_does_the_same(train, workers):
    since = train("buckets", workers, "follow", options=["--no-interpose"],
                  env={"PYTHONPATH": tools.ROOT / "gpu_stage/python"})
    assert since["misses"] < 0.01 * COUNT and since["orders_dropped"] == 0


# The loader of each kind announces nothing, and the statistics say why.
LEFT_ALONE = """
    import json, os, random, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

    mount, kind = sys.argv[1], sys.argv[2]
    names = sorted(os.path.join(d, n) for d, _, names in os.walk(mount) for n in names)

    def read(name):
        with open(name, "rb") as file:
            return len(file.read())

    class Stream(IterableDataset):
        def __iter__(self):
            return map(read, random.sample(names, 100))

    class Elsewhere(Dataset):
        def __init__(self, samples):
            self.samples = samples

        def __len__(self):
            return 100

        def __getitem__(self, i):
            return i

    class OfLosses(Sampler):
        def __iter__(self):
            for i in range(100):
                yield i if i < 2 else int(time.monotonic_ns()) % 100

        def __len__(self):
            return 100

    class OfLateLosses(OfLosses):
        def __iter__(self):
            yield from range(200)
            for _ in range(200):
                random.random()
                yield int(time.monotonic_ns()) % 400

    class OfEntropy(OfLosses):
        def __iter__(self):
            return iter(random.SystemRandom().sample(range(100), 100))

    def raising(i):
        raise ValueError("no path \\x1b\u00e4")

    def killed():  # in the process that announces
        yield from names[:20]
        os.getpid() == trainer or os.kill(os.getpid(), 9)

    trainer = os.getpid()
    loader = {"iterable": lambda: DataLoader(Stream()),
              "no file": lambda: DataLoader(Elsewhere(range(100))),
              "elsewhere": lambda: DataLoader(Elsewhere([os.path.abspath(__file__)] * 100)),
              "losses": lambda: DataLoader(Elsewhere(names[:100]), sampler=OfLosses()),
              "late losses": lambda: DataLoader(Elsewhere(names[:400]), sampler=OfLateLosses()),
              "entropy": lambda: DataLoader(Elsewhere(names[:100]), sampler=OfEntropy()),
              "raises": lambda: DataLoader(Elsewhere(names[:100])),
              "killed": lambda: DataLoader(Stream()),
              "numpy": lambda: map(read, random.sample(names, 600))}[kind]()
    if kind in ("raises", "killed"):
        sys.path.insert(0, sys.argv[3])
        import ddpfs.torch
        ddpfs.torch.follow(loader, paths=raising if kind == "raises" else killed)
    said = "unknown: no opens yet"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for _ in loader:
            time.sleep(0.001)
        with open(os.path.join(mount, ".ddpfs/stats.json")) as file:
            said = json.load(file)["order_note"]
        if "announces no order" in said or "fit no sampler" in said:
            break
    print(said)
    """

WHY = {
    "iterable": "an IterableDataset (Stream) has no indices: call ddpfs.torch.follow(loader, paths=...) with a function",
    "no file": "no file of the mount is found for an index of the dataset (Elsewhere): call ddpfs.torch.follow(loader, paths",
    "elsewhere": "the files of the dataset's list (Elsewhere) are not on the mount: make it of paths below the mountpoint",
    "losses": "the sampler (OfLosses) did not draw what its copy drew, as if it depends on the training: announce with ddpfs.M",
    "late losses": "the sampler (OfLateLosses) did not draw what its copy drew, as if it depends on the training: announce",
    "entropy": "the sampler (OfEntropy) drew other indices than its copy from the first draw on, as with a random generator",
    "raises": "the copy of the sampler failed (ValueError: no path   ): call ddpfs.torch.follow(loader, paths=...), or announce",
    "killed": "paths= of ddpfs.torch.follow failed (ended by signal 9, Killed, as when memory runs out): mend that, or announce",
}


@pytest.mark.parametrize("kind", [*WHY, "numpy"])
def test_the_statistics_say_why_a_loader_is_left_alone(dataset, scratch, kind):
    (scratch / "mnt").mkdir()
    (scratch / "train.py").write_text(textwrap.dedent(LEFT_ALONE))
    done = tools.ddpfs("exec", "-q", "-o", "view=all,memory=256M", dataset, scratch / "mnt", "--", sys.executable, "-W",
                       "ignore", scratch / "train.py", scratch / "mnt", kind, tools.ROOT / "gpu_stage/python")
    assert done.stderr == ""
    if kind in WHY:
        assert f"unknown: the trainer announces no order: {WHY[kind]}" in done.stdout
    else:
        assert "opens fit no sampler that ddpfs knows, and no DataLoader of PyTorch announced them: see that the trainer's " \
               "Python gets PYTHONPATH and DDPFS_MOUNT" in done.stdout
        assert "`ddpfs exec`" not in done.stdout
