# SPDX-License-Identifier: Apache-2.0
"""Recognition against the torch that is installed: its samplers and DataLoader make the opens, in their own order."""

import glob
import multiprocessing
import os
import random

import pytest

from helpers import tools

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler  # noqa: E402

# The order of the opens is up to the scheduler: run with --trainers until it has stood on many machines.
pytestmark = pytest.mark.trainers

CLASSES, PER_CLASS = 20, 500
PATHS = [f"class_{c:04d}/item_{i:06d}.bin" for c in range(CLASSES) for i in range(PER_CLASS)]


class Recorded(Dataset):
    """Notes each item it is asked for in a file that all its workers append to: the opens, in the order they happen."""

    def __init__(self, log, paths=None):
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.paths = paths or PATHS

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        os.write(self.log, (self.paths[index] + "\n").encode())
        return index


@pytest.fixture
def recognise(build_dir, scratch, compared):
    """recognise(paths) -> [{text, list, opens, repeated, after, now, next}] for a dataset of PATHS."""
    compared("torch", torch.__version__)
    dataset = scratch / "dataset"
    programs = build_dir / "tests"

    def ask(paths, dataset=dataset):
        found = {}
        if not dataset.exists():
            tools.run([programs / "shard" / "make_index", dataset, CLASSES, PER_CLASS, 1, "shuffled"])
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


def opens(scratch, sampler_of, epochs=1, workers=0, part=1.0, paths=None, **options):
    """The opens of `epochs` epochs, the last one left after `part` of its batches."""
    log = scratch / "opens"
    log.unlink(missing_ok=True)
    data = Recorded(log, paths)
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


# The lists: how trainers number the files they find.


@pytest.fixture
def nested(scratch, pack):
    """(dataset, source) with classes that have directories of their own, other files beside the images, and common files."""
    source = scratch / "source"
    names = {f"train/{c}/{d}img{i:04d}{s}" for i in range(150)
             for c, d, s in (("cat", "", ".jpg"), ("cat", "a/", ".JPEG"), ("cat", "a-b/", ".png"), ("cat", "a/z/", ".jpg"),
                             ("Dog", "", ".webp"), ("dog2", "x/", ".jpg"), ("dog2", "", ".txt"))}
    names |= {f"val/{c}/img{i:04d}.jpg" for i in range(700) for c in ("cat", "Dog", "dog2")}
    names |= {"labels.csv", "train/README.md", "train/stray.jpg", "train/cat/one_more.jpg"}
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    return pack(source), source


EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def image_folder(source, directory, extensions=EXTENSIONS):
    """What torchvision.datasets.folder.make_dataset returns, relative to the source."""
    root, found = source / directory, []
    for name in sorted(entry.name for entry in os.scandir(root) if entry.is_dir()):
        for place, _, files in sorted(os.walk(root / name, followlinks=True)):
            found += [os.path.join(place, f) for f in sorted(files) if f.lower().endswith(extensions)]
    return [os.path.relpath(path, source) for path in found]


def globbed(source, pattern):
    return [os.path.relpath(path, source) for path in sorted(glob.glob(str(source / pattern), recursive=True))
            if os.path.isfile(path)]


LISTS = {
    "images of train/": lambda source: image_folder(source, "train"),
    "images of val/": lambda source: image_folder(source, "val"),
    "all files of train/": lambda source: image_folder(source, "train", ("",)),
    "sorted(glob) of one suffix": lambda source: globbed(source, "train/**/*.jpg"),
    "sorted(glob) of everything": lambda source: globbed(source, "train/**"),
    "sorted(glob) of both": lambda source: globbed(source, "*/**/*.jpg"),
}


@pytest.mark.parametrize("which", LISTS)
def test_lists(recognise, scratch, nested, which):
    dataset, source = nested
    paths = LISTS[which](source)
    trace = opens(scratch, lambda data: DistributedSampler(data, num_replicas=2, rank=1, seed=3), workers=2, part=0.5,
                  paths=paths)
    (track,) = recognise(trace, dataset)
    assert "DistributedSampler, seed+epoch 3, rank 1 of 2" in track["text"]
    assert track["now"] == [paths[i] for i in DistributedSampler(paths, num_replicas=2, rank=1, seed=3)]


@pytest.mark.parametrize("drop_last", [False, True])
def test_pad_and_drop(recognise, scratch, nested, drop_last):
    dataset, source = nested
    paths = image_folder(source, "train")
    world = 4
    assert len(paths) % world
    sampler = DistributedSampler(paths, num_replicas=world, rank=3, seed=8, drop_last=drop_last)
    trace = opens(scratch, lambda data: sampler, epochs=3, workers=2, paths=paths)
    (track,) = recognise(trace, dataset)
    assert f"seed+epoch 10, rank 3 of {world}" in track["text"]
    assert track["repeated"] == 0
    now = [paths[i] for i in sampler]
    assert track["now"][:len(now)] == now
    assert len(track["now"]) - len(now) <= 1


def one_rank(log, paths, rank, world, barrier):
    data = Recorded(log, paths)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=21)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, _ in enumerate(DataLoader(data, batch_size=16, sampler=sampler, num_workers=2)):
            barrier.wait()  # gradients
            if epoch == 1 and step == 10:
                break


def test_eight_ranks_through_one_mount(recognise, scratch):
    """The opens of all ranks of a host come mixed."""
    log, world = scratch / "opens", 8
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(world, timeout=120)
    ranks = [context.Process(target=one_rank, args=(log, PATHS, rank, world, barrier)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * world
    (track,) = recognise(log.read_text().splitlines())
    assert "seed+epoch 22" in track["text"]
    assert "rank " not in track["text"] and track["repeated"] == 0
    now = DistributedSampler(PATHS, num_replicas=1, rank=0, seed=21)
    now.set_epoch(1)
    assert track["now"] == [PATHS[i] for i in now]


def test_a_validation_loader_between_epochs(recognise, scratch, nested):
    dataset, source = nested
    log = scratch / "opens"
    train = Recorded(log, image_folder(source, "train"))
    val = Recorded(log, image_folder(source, "val"))
    sampler = DistributedSampler(train, num_replicas=2, rank=0, seed=40)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for _ in DataLoader(train, batch_size=32, sampler=sampler, num_workers=2):
            pass
        for _ in DataLoader(val, batch_size=64, num_workers=2):
            pass
    tracks = recognise(log.read_text().splitlines(), dataset)
    assert sorted("sorted" in track["text"] for track in tracks) == [False, True]
    (track,) = (track for track in tracks if "sorted" not in track["text"])
    assert "seed+epoch 42, rank 0 of 2" in track["text"]
    assert all(track["repeated"] == 0 for track in tracks)
