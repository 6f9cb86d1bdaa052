"""Recognition against the torch that is installed: its samplers and DataLoader make the opens, in their own order."""

import os
import random

import pytest

from helpers import tools

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler  # noqa: E402

# Not in the core run: one of its DataLoader traces is now and then split into two tracks, see prefetch/README.md.
pytestmark = pytest.mark.trainers

CLASSES, PER_CLASS = 20, 500
PATHS = [f"class_{c:04d}/item_{i:06d}.bin" for c in range(CLASSES) for i in range(PER_CLASS)]


class Recorded(Dataset):
    """Notes each item it is asked for in a file that all its workers append to: the opens, in the order they happen."""

    def __init__(self, log):
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __len__(self):
        return len(PATHS)

    def __getitem__(self, index):
        os.write(self.log, (PATHS[index] + "\n").encode())
        return index


@pytest.fixture
def recognise(build_dir, scratch):
    """recognise(paths) -> [{text, list, opens, repeated, after, now, next}] for a dataset of PATHS."""
    dataset = scratch / "dataset"
    programs = build_dir / "tests"
    tools.run([programs / "shard" / "make_index", dataset, CLASSES, PER_CLASS, 1, "shuffled"])

    def ask(paths):
        found = {}
        text = tools.run([programs / "prefetch" / "recognise_trace", dataset], input="".join(p + "\n" for p in paths))
        for line in text.stdout.splitlines():
            head, *rest = line.split("\t")
            kind, number = head.split()
            if kind == "track":
                opens, repeated, after, say, of = rest
                found[number] = {"opens": int(opens), "repeated": int(repeated), "after": int(after), "text": say,
                                 "list": of}
            else:
                found[number][kind] = rest
        return list(found.values())

    return ask


def opens(scratch, sampler_of, epochs=1, workers=0, part=1.0, **options):
    """The opens of `epochs` epochs, the last one left after `part` of its batches."""
    log = scratch / "opens"
    log.unlink(missing_ok=True)
    data = Recorded(log)
    sampler = sampler_of(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=workers, **options)
    for epoch in range(epochs):
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        last = int(len(loader) * part) if epoch == epochs - 1 else len(loader)
        for step, _ in enumerate(loader):
            if step + 1 >= last:
                break
    os.close(data.log)
    return log.read_text().splitlines()


@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("seed, world, rank", [(0, 1, 0), (17, 2, 1), (1234, 4, 3)])
def test_distributed_sampler(recognise, scratch, seed, world, rank, workers):
    def sampler(data):
        return DistributedSampler(data, num_replicas=world, rank=rank, seed=seed)

    trace = opens(scratch, sampler, workers=workers, part=0.5)
    (track,) = recognise(trace)
    assert f"DistributedSampler, seed+epoch {seed}" in track["text"]
    if world > 1:
        assert f"rank {rank} of {world}" in track["text"]
    assert track["after"] <= 96
    now = sampler(range(len(PATHS)))
    assert track["now"] == [PATHS[i] for i in now]
    now.set_epoch(1)
    assert track["next"] == [PATHS[i] for i in now]


def test_epochs(recognise, scratch):
    trace = opens(scratch, lambda data: DistributedSampler(data, num_replicas=2, rank=0, seed=5), epochs=3, workers=2,
                  part=0.5)
    (track,) = recognise(trace)
    assert "seed+epoch 7, rank 0 of 2" in track["text"]
    assert track["repeated"] == 0
    assert track["opens"] >= 0.99 * len(trace)


def test_without_shuffle(recognise, scratch):
    trace = opens(scratch, lambda data: DistributedSampler(data, num_replicas=3, rank=2, shuffle=False), workers=2,
                  part=0.5)
    (track,) = recognise(trace)
    assert "without shuffle, rank 2 of 3" in track["text"]
    assert track["now"] == [PATHS[i] for i in DistributedSampler(PATHS, num_replicas=3, rank=2, shuffle=False)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("manual", [0, 42, 4711])
def test_random_sampler_after_manual_seed(recognise, scratch, manual, workers):
    torch.manual_seed(manual)
    trace = opens(scratch, RandomSampler, epochs=2, workers=workers, part=0.5)
    (track,) = recognise(trace)
    assert f"RandomSampler after manual_seed({manual})" in track["text"]
    assert set(trace[len(PATHS):]) <= set(track["now"][:len(PATHS) * 3 // 4])
    torch.manual_seed(manual)
    assert track["next"] == opens(scratch, RandomSampler, epochs=3)[2 * len(PATHS):]


def test_random_sampler_with_the_loaders_generator(recognise, scratch):
    def run(epochs, part=1.0):
        generator = torch.Generator().manual_seed(9)
        return opens(scratch, lambda data: RandomSampler(data, generator=generator), epochs=epochs, part=part,
                     generator=generator)

    (track,) = recognise(run(2, part=0.5))
    assert "RandomSampler, generator with seed 9" in track["text"]
    assert track["now"] == run(2)[len(PATHS):]
    assert track["next"] == run(3)[2 * len(PATHS):]


def test_set_epoch_forgotten(recognise, scratch):
    log = scratch / "opens"
    data = Recorded(log)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, num_replicas=2, rank=1), num_workers=2)
    for _ in range(2):
        for _ in loader:
            pass
    os.close(data.log)
    (track,) = recognise(log.read_text().splitlines())
    assert track["repeated"] == 1


def test_unseeded_is_not_recognised(recognise):
    order = PATHS[:]
    random.Random(3).shuffle(order)
    assert recognise(order[:1000]) == []
