# SPDX-License-Identifier: Apache-2.0
"""ddpfs.torch.follow: what a PyTorch DataLoader draws is announced, and nothing of the trainer changes.  The mount is
real, and a stand-in for Mount.follow notes what it is told; tests/mount/test_announced_loaders.py has the real one."""

import ctypes
import errno
import mmap
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from helpers import tools  # noqa: E402
from helpers.follow_recorder import recording  # noqa: E402
from helpers.waiting import wait_until  # noqa: E402
from torch.utils.data import (ConcatDataset, DataLoader, Dataset, DistributedSampler, IterableDataset,  # noqa: E402
                              RandomSampler, Subset, WeightedRandomSampler)

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402
from ddpfs import index_files, sample_paths, sampler_copy  # noqa: E402


@pytest.fixture
def recorder(scratch, monkeypatch):
    with recording(scratch / "recorder", monkeypatch, sampler_copy) as recorder:
        yield recorder


@pytest.fixture
def place(mount, pack, tree):
    return mount(pack(tree[0]), "view=all").path


class Files(Dataset):
    """The files below a directory; an item is its number."""

    def __init__(self, root):
        self.samples = [(os.path.join(d, n), 0) for d, _, names in sorted(os.walk(root)) for n in sorted(names)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        with open(self.samples[i][0], "rb") as file:
            file.read()
        return i


class Waiting(Files):
    """An item has two files.  Workers, or all others (who find out what items open), open the second one when `gate` is
    there."""

    def __init__(self, root, gate, workers=True):
        super().__init__(root)
        self._gate, self._workers = gate, workers
        self.masks = [path for path, _ in reversed(self.samples)]

    def __getitem__(self, i):
        item = super().__getitem__(i)
        if bool(torch.utils.data.get_worker_info()) == self._workers:
            wait_until(self._gate.exists)
        Path(self.masks[i]).read_bytes()
        return item


class Hidden(Dataset):
    """A dataset without a list; it opens a table of its own once, and draws a random number before it opens a file."""

    def __init__(self, dataset, table=None):
        self.inside, self.table = dataset, table

    def __len__(self):
        return len(self.inside)

    def __getitem__(self, i):
        random.random(), torch.rand(1), np.random.rand()
        if self.table:
            with open(self.table, "rb") as file:
                file.read()
        return self.inside[i]


class Drawn:
    """A sampler by a function of its number of epochs."""

    def __init__(self, draw, n):
        self.draw, self.n, self.epoch = draw, n, -1

    def __len__(self):
        return self.n

    def __iter__(self):
        self.epoch += 1
        yield from self.draw(self.epoch)


def shuffled(n):
    numbers = list(range(n))
    random.shuffle(numbers)
    return numbers


def bucketed(n):
    order = np.random.permutation(n).tolist()
    return [sorted(order[at:at + 8]) for at in range(0, n, 8)]


def seeded(n, seed):
    return np.random.default_rng(seed).integers(n, size=2 * n).tolist()


SAMPLERS = {
    "weighted": lambda n: {"batch_size": 8, "sampler": WeightedRandomSampler(torch.rand(n), 2 * n)},
    "random, own generator": lambda n: {"batch_size": 8, "sampler": RandomSampler(
        range(n), replacement=True, num_samples=150, generator=torch.Generator().manual_seed(3))},
    "distributed": lambda n: {"batch_size": 8, "sampler": DistributedSampler(range(n), 2, 1, seed=5)},
    "bucketed batches": lambda n: {"batch_sampler": Drawn(lambda _: bucketed(n), n // 8)},
    "random.shuffle": lambda n: {"batch_size": None, "sampler": Drawn(lambda _: shuffled(n), n)},
    "one at a time": lambda n: {"batch_size": 8, "sampler": Drawn(
        lambda _: (random.randrange(n) for _ in range(150)), 150)},
    "tensors": lambda n: {"batch_sampler": Drawn(lambda _: torch.randperm(n).split(8), n // 8)},
    "numpy generator": lambda n: {"batch_size": 8, "sampler": Drawn(lambda e: seeded(n, e), 2 * n)},
}


def read(loader, after_first=None, limit=None):
    """The items of an epoch; after_first is called after the first draw."""
    seen = []
    for batch in loader:
        if after_first:
            after_first()
            after_first = None
        seen += batch.reshape(-1).tolist() if hasattr(batch, "reshape") else [batch]
        if limit and len(seen) >= limit:
            break
    return seen


def loader_of(dataset, kind, workers, **options):
    return DataLoader(dataset, num_workers=workers, **SAMPLERS[kind](len(dataset)), **options)


def seed_all():
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)


def all_states():
    return random.getstate(), torch.get_rng_state().tolist(), [str(part) for part in np.random.get_state()]


def until_told(recorder, count):
    return lambda: wait_until(lambda: len(recorder.names()) >= count)


def names_of(dataset, root, drawn):
    return [os.path.relpath(dataset.samples[i][0], root) for i in drawn]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_draw_is_announced_and_nothing_else_changes(place, recorder, kind, workers):
    """Two epochs: the same samples and random states as without, and the files in the order of the draws."""
    dataset = Files(place)
    seed_all()
    loader = loader_of(dataset, kind, workers)
    expected = [read(loader) for _ in range(2)]
    states = all_states()
    seed_all()
    loader = ddpfs.torch.follow(loader_of(dataset, kind, workers))
    for epoch in range(2):
        recorder.told.clear()
        assert read(loader, until_told(recorder, len(expected[epoch]))) == expected[epoch]
        assert recorder.names() == names_of(dataset, place, expected[epoch])
        assert len(recorder.lists()) == 1 and not recorder.ended()
        assert [append for _, append, _ in recorder.told] == [False] + [True] * (len(recorder.told) - 1)
    assert all_states() == states


def test_pieces_grow_so_slowly_that_the_next_is_there_in_time(place, recorder):
    """The trainer reads a piece while the next is made ready on a share of a processor."""
    def draw(_):
        time.sleep(0.2)  # it shuffles
        yield from (i % 100 for i in range(30000))

    loader = ddpfs.torch.follow(DataLoader(Files(place), 8, sampler=Drawn(draw, 30000)))
    read(loader, until_told(recorder, 30000), limit=8)
    sizes = [len(names) for _, _, names in recorder.told if names]
    assert 8 < sizes[0] <= 1024 and max(sizes) <= 4096
    assert all(later <= 2 * size for size, later in zip(sizes, sizes[1:]) if size >= 1024)


def test_persistent_workers_and_set_epoch(place, recorder):
    dataset = Files(place)
    sampler = DistributedSampler(dataset, 2, 0, seed=4)
    loader = ddpfs.torch.follow(DataLoader(dataset, 8, sampler=sampler, num_workers=2, persistent_workers=True))
    orders = []
    for epoch in 0, 1, 5:
        sampler.set_epoch(epoch)
        recorder.told.clear()
        orders.append(read(loader, until_told(recorder, len(sampler))))
        assert recorder.names() == names_of(dataset, place, orders[-1])
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_is_drawn_at_once(place, recorder, scratch, persistent):
    """All batches fit into workers x prefetch_factor: the loader has no draw left when the child begins."""
    dataset = Waiting(place, scratch / "gate")
    sampler = WeightedRandomSampler(torch.arange(len(dataset)) + 1.0, 100)
    loader = ddpfs.torch.follow(DataLoader(dataset, 8, sampler=sampler, num_workers=2, prefetch_factor=8,
                                           persistent_workers=persistent))
    for _ in range(2):
        (scratch / "gate").unlink(missing_ok=True)
        recorder.told.clear()
        iterator = iter(loader)
        wait_until(lambda: len(recorder.latest()) == 200)
        (scratch / "gate").touch()
        order = [i for batch in iterator for i in batch.tolist()]
        images, masks = names_of(dataset, place, order), [os.path.relpath(dataset.masks[i], place) for i in order]
        assert sorted(recorder.latest()) == sorted(images + masks) and not recorder.ended()


def test_what_items_open_is_found_out_though_all_is_drawn(place, recorder, scratch):
    dataset = Waiting(place, scratch / "gate", workers=False)
    loader = ddpfs.torch.follow(DataLoader(dataset, 4, shuffle=True, num_workers=2, prefetch_factor=len(dataset)))
    iterator = iter(loader)
    wait_until(lambda: len(recorder.names()) == len(dataset))
    for _ in range(len(dataset) // 8):
        next(iterator)
    (scratch / "gate").touch()
    wait_until(lambda: len(recorder.names()) > len(dataset), "further files of items")


@pytest.mark.parametrize("how", ["subset", "concat", "no list", "a table besides", "function", "wrong list", "link"])
def test_an_index_becomes_a_path(place, recorder, scratch, how):
    plain, options = Files(place), {}
    names = names_of(plain, place, range(len(plain)))
    if how == "subset":
        dataset, names = Subset(plain, range(50, 80)), names[50:80]
    elif how == "concat":
        dataset, names = ConcatDataset([Subset(plain, range(20)), plain]), names[:20] + names
    elif how == "no list":
        dataset = Hidden(plain)
    elif how == "a table besides":
        dataset, names = Hidden(Subset(plain, range(1, len(plain))), place / names[0]), names[1:]
    elif how == "function":
        dataset, options = Hidden(plain), {"paths": lambda i: [plain.samples[i][0], str(place / names[0])]}
        names = [name for one in names for name in (one, names[0])]
    elif how == "wrong list":  # it has the length of the dataset, and is another list
        dataset = Hidden(plain)
        dataset.files = [plain.samples[0][0]] * len(plain)
    else:
        (scratch / "link").symlink_to(place / "class_01")
        dataset = Files(scratch / "link")
        names = [f"class_01/{os.path.basename(path)}" for path, _ in dataset.samples]
    loader = ddpfs.torch.follow(DataLoader(dataset, 8, shuffle=False), **options)
    read(loader, until_told(recorder, len(names)))
    assert recorder.names() == names


class Items(Dataset):
    """A dataset by a function from an index to the paths that it opens, with the attributes of `lists`."""

    def __init__(self, n, paths, read=Path.read_bytes, **lists):
        self.n, self.paths_of, self.read = n, paths, read
        self.__dict__.update(lists)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        for path in self.paths_of(i):
            self.read(Path(path))
        return i


def read_in_c(path):
    libc = ctypes.CDLL(None)
    libc.close(libc.open(os.fsencode(path), os.O_RDONLY))


@pytest.mark.parametrize("how", ["two lists", "pairs", "dicts", "one has no mask", "one has no key", "by name",
                                 "by name, wrapped", "relative", "names", "in C", "in C, relative", "in C, below root",
                                 "indices in pairs", "triplets", "one is random", "parts", "parts with one file",
                                 "parts in C"])
def test_several_files_an_item(mount, pack, scratch, recorder, how):
    """Image and mask, image and label: both are announced, item by item."""
    n, pairs = 90, []
    for i in range(n):
        pairs.append([f"{kind}/class_{i % 3}/{i:03d}{end}" for kind, end in (("images", ".jpg"), ("masks", "_mask.png"))])
        for name in pairs[-1]:
            (scratch / "pairs" / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / "pairs" / name).write_text(name)
    root = mount(pack(scratch / "pairs"), "view=all").path
    full = [[os.path.join(root, name) for name in pair] for pair in pairs]
    images, masks = ([pair[k] for pair in full] for k in range(2))
    ends = [(0, 20), (20, 50), (50, n)]  # of parts

    def parts(lacks, read=Path.read_bytes):
        """Parts of a ConcatDataset.  The part number `lacks` has no masks."""
        def part(k, begin, end):
            lists = {"images": images[begin:end], "masks": others[begin:end]}
            if k == lacks:
                del lists["masks"]
            return Items(end - begin, lambda i: [paths[i] for paths in lists.values()], read, **lists)
        return ConcatDataset([part(k, *span) for k, span in enumerate(ends)])

    others = [masks[(7 * i + 1) % n] for i in range(n)]  # no name tells them
    some = [[a] if i == 17 else [a, others[i]] for i, a in enumerate(images)]
    sampler, expected = range(n - 1, -1, -1), [name for pair in reversed(pairs) for name in pair]
    dataset = {
        "two lists": lambda: Items(n, lambda i: full[i], images=images, masks=masks),
        "pairs": lambda: Items(n, lambda i: full[i], samples=full),
        "dicts": lambda: Items(n, lambda i: full[i], rows=[{"id": 3, "image": a, "mask": b} for a, b in full]),
        "one has no mask": lambda: Items(n, lambda i: some[i], samples=some),
        "one has no key": lambda: Items(n, lambda i: some[i], rows=[dict(zip(("image", "mask"), pair)) for pair in some]),
        "by name": lambda: Items(n, lambda i: full[i], im_files=np.array(images)),
        "by name, wrapped": lambda: Hidden(Subset(Items(n, lambda i: full[i]), range(n))),
        "relative": lambda: Items(n, lambda i: full[i], files=[a for a, _ in pairs]),
        "names": lambda: Items(n, lambda i: full[i], names=[os.path.splitext(a)[0][len("images/"):] for a, _ in pairs]),
        "in C": lambda: Items(n, lambda i: full[i], read_in_c, images=images, masks=masks),
        "in C, relative": lambda: Items(n, lambda i: full[i], read_in_c, rows=[dict(zip("ab", pair)) for pair in pairs]),
        "in C, below root": lambda: Items(n, lambda i: [images[i]], read_in_c, root=os.path.join(root, "images"),
                                          names=[a[len("images/"):] for a, _ in pairs]),
        "indices in pairs": lambda: Items(n, lambda i: full[i[0]]),
        "triplets": lambda: Items(n, lambda of: [images[i] for i in of], f=images),
        "parts": lambda: parts(None),
        "parts with one file": lambda: parts(2),
        "parts in C": lambda: Subset(parts(0, read_in_c), range(n)),
        "one is random": lambda: Items(n, lambda i: [images[i], masks[random.randrange(n)]], files=images),
    }[how]()
    if how == "indices in pairs":
        sampler = [(i, 224) for i in sampler]
    if how == "triplets":
        sampler = [(i, (7 * i + 3) % n, (13 * i + 5) % n) for i in sampler]
        expected = [pairs[i][0] for of in sampler for i in of]
    if how.startswith("one has"):
        expected = [os.path.relpath(path, root) for files in reversed(some) for path in files]
    if how.startswith("parts"):
        begin, end = {"parts": (n, n), "parts with one file": ends[2], "parts in C": ends[0]}[how]
        expected = [os.path.relpath(path, root) for i in reversed(range(n))
                    for path in ([images[i]] if begin <= i < end else [images[i], others[i]])]
    if how in ("one is random", "in C, below root"):
        expected = [a for a, _ in reversed(pairs)]
    loader = ddpfs.torch.follow(DataLoader(dataset, 8, sampler=sampler, collate_fn=len))
    seed_all()
    iterator = iter(loader)
    next(iterator)
    wait_until(lambda: recorder.latest() == expected)  # the first list may have the first files only


def test_both_files_of_an_item_are_announced_in_each_epoch(mount, pack, scratch, recorder):
    """Also where no list and no name tells the mask, and the draws of an epoch are others than those of the first."""
    for kind in "images", "masks":
        (scratch / "pairs" / kind).mkdir(parents=True)
        for i in range(60):
            (scratch / "pairs" / kind / f"{i:02d}").write_text("x")
    root = mount(pack(scratch / "pairs"), "view=all").path
    images = [str(root / "images" / f"{i:02d}") for i in range(60)]
    dataset = Items(60, lambda i: [images[i], images[i].replace("images", "masks")], files=images)
    loader = ddpfs.torch.follow(DataLoader(dataset, 4, shuffle=True))
    for _ in range(3):
        recorder.told.clear()
        iterator = iter(loader)
        next(iterator)
        wait_until(lambda: len(set(recorder.latest())) == 120)
        assert len(list(iterator)) == 14


class Slow(Files):
    """A dataset that hangs in forked children when it has read a file, and says so before."""

    def __init__(self, root, beside=None):
        super().__init__(root)
        self.process, self.beside = os.getpid(), beside

    def __getitem__(self, i):
        super().__getitem__(i)
        if self.beside:
            Path(self.beside(self.samples[i][0])).read_bytes()
        if os.getpid() != self.process:
            sampler_copy.Mount("").follow([], list="read", append=True, skip_unknown=True)
            time.sleep(600)
        return i


def test_draws_are_announced_while_an_item_is_read(place, recorder, monkeypatch):
    """A whole epoch, though the first item that is read whole is never over."""
    monkeypatch.setattr(sample_paths, "WHOLE_S", 600)
    for dataset in Slow(place), Hidden(Slow(place)):
        recorder.told.clear()
        drawn = [i * 7 % 100 for i in range(5000)]
        loader = ddpfs.torch.follow(DataLoader(dataset, 8, sampler=drawn))
        read(loader, until_told(recorder, 5000), limit=8)
        assert recorder.names() == names_of(Files(place), place, drawn)


def test_an_item_that_hangs_is_announced_with_the_files_before(mount, pack, scratch, recorder, monkeypatch):
    monkeypatch.setattr(sample_paths, "WHOLE_S", 0.2)
    for kind in "images", "masks":
        (scratch / "pairs" / kind).mkdir(parents=True)
        for i in range(50):
            (scratch / "pairs" / kind / str(i)).write_text("x")
    root = mount(pack(scratch / "pairs"), "view=all").path
    dataset = Slow(root / "images", beside=lambda path: path.replace("images", "masks"))
    loader = ddpfs.torch.follow(DataLoader(dataset, 8))
    expected = [name for path in names_of(dataset, root, range(50)) for name in (path, path.replace("images", "masks"))]
    read(loader, lambda: wait_until(lambda: recorder.latest() == expected))


def test_an_item_is_read_whole_in_one_epoch_only(place, recorder, monkeypatch):
    monkeypatch.setattr(sample_paths, "WHOLE_S", 0.2)
    dataset = Slow(place)
    for epoch in range(3):
        iterator = iter(ddpfs.torch.follow(DataLoader(dataset, 8, shuffle=True)))
        next(iterator)
        wait_until(lambda: len(recorder.names()) == 100 * (epoch + 1))
        if epoch == 0:
            wait_until(iterator._ddpfs._copy._shared.noted)
        assert len(list(iterator)) == 12
    assert [name for name, _, _ in recorder.told].count("read") == 1


@pytest.mark.parametrize("kind", ["lists", "tensors", "arrays"])
def test_batches_that_the_loader_does_not_make(place, recorder, kind):
    """batch_size=None and a batch sampler: the dataset takes a list of indices."""
    plain = Files(place)

    class Batches(Items):
        def __getitem__(self, indices):
            return [plain[int(i)] for i in indices]

    order = np.random.default_rng(3).permutation(96).reshape(12, 8)
    make = {"lists": lambda part: part.tolist(), "tensors": torch.from_numpy, "arrays": lambda part: part}[kind]
    loader = ddpfs.torch.follow(DataLoader(Batches(100, None), None, sampler=[make(part) for part in order]))
    assert [batch for batch in iter_after(loader, until_told(recorder, 96))] == order.tolist()
    assert recorder.names() == names_of(plain, place, order.reshape(-1))


@pytest.mark.parametrize("how", ["list", "rows"])
def test_paths_that_collate_fn_opens(place, recorder, how):
    plain = Files(place)
    paths = [path for path, _ in plain.samples]
    dataset = paths if how == "list" else [{"label": 1, "file": path} for path in paths]
    loader = ddpfs.torch.follow(DataLoader(dataset, 8, shuffle=True, collate_fn=lambda items: [
        item if how == "list" else item["file"] for item in items]))
    seen = [path for batch in iter_after(loader, until_told(recorder, 100)) for path in batch]
    assert recorder.names() == [os.path.relpath(path, place) for path in seen]


def iter_after(loader, after_first):
    iterator = iter(loader)
    yield next(iterator)
    after_first()
    yield from iterator


def test_an_iterable_dataset_by_its_paths(place, recorder):
    plain = Files(place)

    class Stream(IterableDataset):
        def __iter__(self):
            return (plain[i] for i in range(len(plain) - 1, -1, -1))

    paths = [path for path, _ in reversed(plain.samples)]
    loader = ddpfs.torch.follow(DataLoader(Stream(), 8), paths=lambda: iter(paths))
    for _ in range(2):
        recorder.told.clear()
        read(loader, until_told(recorder, len(paths)))
        assert recorder.names() == names_of(plain, place, range(len(plain) - 1, -1, -1))


def draw_some():
    """What a training takes from the global random states: dropout, augmentation, a validation loader."""
    torch.rand(3), random.random(), np.random.rand(2)


@pytest.mark.parametrize("kind", ["weighted", "bucketed batches", "random.shuffle"])
def test_each_epoch_is_copied_with_the_random_states_of_its_first_draw(place, recorder, kind):
    dataset = Files(place)
    seed_all()
    loader = ddpfs.torch.follow(loader_of(dataset, kind, 0))
    for _ in range(3):
        recorder.told.clear()
        iterator = iter(loader)
        draw_some()
        drawn = []
        for items in iterator:
            drawn += items.reshape(-1).tolist() if hasattr(items, "reshape") else [items]
            if len(recorder.names()) < 100:
                wait_until(lambda: len(recorder.names()) >= 100)
            draw_some()
        assert recorder.names() == names_of(dataset, place, drawn) and not recorder.ended()


PERMUTATIONS = {
    "torch": lambda: torch.randperm(500).remainder(100).tolist(),
    "numpy": lambda: (np.random.permutation(500) % 100).tolist(),
    "random": lambda: [i % 100 for i in random.sample(range(500), 500)],
    "RandomSampler": lambda: (i % 100 for i in RandomSampler(range(500))),  # timm's, Ultralytics' repeated sampler
}


@pytest.mark.parametrize("kind", PERMUTATIONS)
def test_a_sampler_without_end_is_copied_at_each_permutation(place, recorder, monkeypatch, kind):
    """One iterator for the whole training, which draws from the same random state.  The first wrong permutation is
    noticed; those behind it are announced in one list, without a wrong entry."""
    monkeypatch.setattr(sampler_copy, "RING", 2048)
    dataset = Files(place)

    def draw(_):
        while True:
            yield from PERMUTATIONS[kind]()

    def train(loader, after_step=lambda step: None):
        seed_all()
        iterator, drawn = iter(loader), []
        for step in range(200):
            drawn += next(iterator).tolist()
            after_step(step)
            draw_some()
        return drawn, all_states()

    def wait(step):  # a permutation begins: the copy announces what is left of it
        if step % 50 == 0:
            count = step // 50 * 490
            wait_until(lambda: len(recorder.latest()) == count if count else len(recorder.names()) >= 1024)

    expected = train(DataLoader(dataset, 10, sampler=Drawn(draw, 500)))
    got = train(ddpfs.torch.follow(DataLoader(dataset, 10, sampler=Drawn(draw, 500))), wait)
    assert got == expected
    drawn = names_of(dataset, place, got[0])
    assert recorder.latest() == drawn[510:1000] + drawn[1010:1500] + drawn[1510:]
    wait_until(lambda: recorder.ended() == list(recorder.lists()))  # once, as the iterator is gone


def test_a_list_ends_if_nothing_more_can_be_known(place, recorder):
    """The training begins to draw from the state that the sampler takes each index from."""
    def draw(_):
        while True:
            yield int(torch.randint(100, ()))

    iterator = iter(ddpfs.torch.follow(DataLoader(Files(place), 1, sampler=Drawn(draw, 100))))
    for step in range(400):
        if step == 140:
            wait_until(lambda: len(recorder.names()) >= 1024)
        if step >= 150:
            draw_some()
        next(iterator)
        if recorder.ended():
            break
        if step > 150:
            time.sleep(0.02)
    assert recorder.ended() == list(recorder.lists())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_follows_the_training_later_is_left_alone(place, recorder, monkeypatch, workers):
    """A second copy is made at the first difference, and none after that in this epoch."""
    losses, copies, fork = [0], [], sampler_copy.Copy.start

    def count(self, *work):
        copies.append(self.wary)
        fork(self, *work)

    def draw(_):
        yield from (i % 100 for i in range(400))
        yield from (int(i * 7 + losses[0]) % 100 for i in range(400))

    monkeypatch.setattr(sampler_copy.Copy, "start", count)
    loader = ddpfs.torch.follow(DataLoader(Files(place), 4, sampler=Drawn(draw, 800), num_workers=workers))
    for step, _ in enumerate(loader):
        if step == 0:
            wait_until(lambda: len(recorder.names()) == 800)
        if len(copies) == 2 and not recorder.ended():
            wait_until(lambda: len(recorder.names()) > 800)  # the second copy has said something
        losses[0] += 1
    assert copies == [False, True]
    wait_until(lambda: recorder.ended() == list(recorder.lists()))


def test_a_sampler_that_follows_the_training_is_left_alone(place, recorder):
    """Its announcement ends at the first difference; after two such epochs nothing is announced."""
    dataset, losses = Files(place), [0]
    sampler = Drawn(lambda _: ((i * 7 + losses[0]) % len(dataset) for i in range(len(dataset))), len(dataset))
    loader = ddpfs.torch.follow(DataLoader(dataset, 4, sampler=sampler))
    for epoch in range(4):
        recorder.told.clear()
        losses[0] = 0
        seen = []
        for batch in loader:
            if not seen and epoch < 2:
                wait_until(lambda: len(recorder.names()) == len(dataset))
            seen += batch.tolist()
            losses[0] += 1
        assert seen[:4] == [0, 7, 14, 21] and seen[4:8] != [28, 35, 42, 49]
        if epoch < 2:
            wait_until(lambda: recorder.ended() == list(recorder.lists()))
        else:
            assert not recorder.told


def test_a_sampler_that_fails_fails_as_without(place, recorder):
    dataset = Files(place)

    def draw(_):
        yield from range(20)
        raise KeyError("bad sampler")

    loader = ddpfs.torch.follow(DataLoader(dataset, 4, sampler=Drawn(draw, 100)))
    for _ in range(4):
        with pytest.raises(KeyError, match="bad sampler"):
            read(loader)


WHY_FAILED = {
    "raises": "failed (PermissionError: [Errno 13] Permission denied: 'curriculum'): ",
    "writes to shared memory": "failed (ended by signal 11, Segmentation fault; a copy cannot write to shared memory): ",
    "is killed": "failed (ended by signal 9, Killed, as when memory runs out): "}


@pytest.mark.parametrize("of", ["the copy of the sampler", "paths= of ddpfs.torch.follow"])
@pytest.mark.parametrize("kind", WHY_FAILED)
def test_why_a_copy_failed_is_said_at_once_and_stays(place, recorder, monkeypatch, kind, of):
    """In the first epoch, and also when the sampler is left alone."""
    dataset, parent, shared = Files(place), os.getpid(), mmap.mmap(-1, 4096)
    monkeypatch.setenv("DDPFS_MOUNT", str(place))
    monkeypatch.setattr(sampler_copy, "_tell_why", lambda name, why, roots: sampler_copy.Mount("").follow(
        [why], list="why", append=True, skip_unknown=True))

    def draw(_):
        yield from range(20)
        if os.getpid() != parent and kind == "raises":
            raise PermissionError(13, "Permission denied", "curriculum")
        if os.getpid() != parent and kind == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        shared[0] = 1  # a copy cannot
        yield from range(20, 40)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(40))

    if of == "the copy of the sampler":
        loader = ddpfs.torch.follow(DataLoader(dataset, 4, sampler=Drawn(draw, 40)))
    else:
        loader = ddpfs.torch.follow(DataLoader(Stream(), 4), paths=lambda: (dataset.samples[i][0] for i in draw(0)))
    for epoch in range(4):
        recorder.told.clear()
        iterator = iter(loader)
        next(iterator)
        copy = iterator._ddpfs._copy
        if copy:
            wait_until(lambda: copy._child is None or gone(copy._child))
        assert (copy is None) == (epoch >= 2) and len(list(iterator)) == 9
        wait_until(lambda: any(name == "why" for name, _, _ in recorder.told))
        assert all(f"{of} {WHY_FAILED[kind]}" in names[0] for name, _, names in recorder.told if name == "why")


def a_while():
    """Time for the copy to find out that there are no files: an epoch of 40 numbers ends sooner."""
    time.sleep(0.5)


@pytest.mark.parametrize("dataset", ["numbers", "other files"])
def test_other_datasets_have_no_announcement(scratch, recorder, monkeypatch, dataset):
    monkeypatch.setattr(index_files, "mounts", lambda: [])  # their servers would be asked about the numbers
    made = list(range(40))
    if dataset == "other files":
        (scratch / "own").mkdir()
        for i in range(40):
            (scratch / "own" / str(i)).write_text("x")
        made = Files(scratch / "own")
    loader = ddpfs.torch.follow(DataLoader(made, 4, shuffle=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wait_until(lambda: sorted(read(loader, a_while)) == list(range(40)) and caught, "a warning")
        for _ in range(3):
            assert sorted(read(loader)) == list(range(40))
    assert not recorder.told
    said = {"numbers": "no file of a ddpfs mount is found for an index", "other files": "list lie on no ddpfs mount"}
    assert len(caught) == 1 and said[dataset] in str(caught[0].message)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["list", "generator function", "iterable"])
def test_paths_that_shuffle_change_no_random_state(place, recorder, kind, workers):
    """The function shuffles as the dataset does, with each library, and counts its epochs."""
    files = [path for path, _ in Files(place).samples]
    epochs = []

    def drawn():
        order = torch.randperm(len(files)).tolist()
        np.random.shuffle(order)
        random.shuffle(order)
        return [files[i] for i in order]

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([files.index(path) for path in drawn()])

    class Shuffled:
        def __iter__(self):
            return iter(paths())

    def paths():
        epochs.append(len(epochs))
        return drawn()

    def generated():
        yield from drawn()

    def read_epochs(loader):
        return [read(loader, workers == 0 and until_told(recorder, len(files) * (i + 1))) for i in range(2)]

    given = {"list": paths, "generator function": generated, "iterable": Shuffled()}[kind]
    seed_all()
    plain = DataLoader(Stream(), 8, num_workers=workers)
    expected = [read(plain) for _ in range(2)]
    states = all_states()
    seed_all()
    assert read_epochs(ddpfs.torch.follow(DataLoader(Stream(), 8, num_workers=workers), paths=given)) == expected
    assert all_states() == states
    assert epochs == ([] if kind == "generator function" else [0, 1])
    if workers == 0:
        assert len(set(recorder.names()[:len(files)])) == len(files)


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_paths_of_no_mount_are_warned_of_once(scratch, recorder, kind):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(40))

    paths = [str(scratch / str(i)) for i in range(40)]
    given = paths.__getitem__ if kind == "map" else lambda: iter(paths)
    loader = ddpfs.torch.follow(DataLoader(list(range(40)) if kind == "map" else Stream(), 4), paths=given)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wait_until(lambda: read(loader, a_while) == list(range(40)) and caught, "a warning")
        for _ in range(3):
            assert read(loader) == list(range(40))
    assert len(caught) == 1 and "paths= gave no path below a ddpfs mountpoint" in str(caught[0].message)
    assert not recorder.told


def test_an_epoch_without_a_draw_is_not_warned_of(place, recorder):
    loader = ddpfs.torch.follow(DataLoader(Files(place), 4, sampler=Drawn(lambda _: iter(()), 0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert read(loader) == []


def test_loaders_of_exec_are_never_warned_of(scratch, recorder, monkeypatch):
    hook = sampler_copy.install(torch.utils.data.dataloader)
    monkeypatch.setattr(hook, "automatic", True)
    loader = DataLoader(list(range(40)), 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            assert read(loader) == list(range(40))
    assert not caught


def test_a_server_that_refuses_is_not_noticed(place, recorder, monkeypatch, capfd):
    def refuse(*_args, **_kwargs):
        raise OSError(errno.EOPNOTSUPP, "an older server")

    monkeypatch.setattr(sampler_copy.Mount, "follow", refuse)
    loader = ddpfs.torch.follow(DataLoader(Files(place), 4, shuffle=True, num_workers=2))
    for _ in range(3):
        assert len(read(loader)) == 100
    assert capfd.readouterr() == ("", "")


def test_a_full_server_is_asked_again(place, recorder, monkeypatch):
    asked, follow = [], sampler_copy.Mount.follow

    def full_at_first(self, *args, **kwargs):
        asked.append(1)  # in the child
        if len(asked) < 3:
            raise OSError(errno.ENOSPC, "the budget is full")
        follow(self, *args, **kwargs)

    monkeypatch.setattr(sampler_copy.Mount, "follow", full_at_first)
    dataset = Files(place)
    loader = ddpfs.torch.follow(DataLoader(dataset, 4, shuffle=True))
    drawn = read(loader, until_told(recorder, 100))
    assert recorder.names() == names_of(dataset, place, drawn)


def test_a_loop_that_is_left_forgets_its_order(place, recorder):
    loader = ddpfs.torch.follow(DataLoader(Files(place), 4, shuffle=True, num_workers=2))
    read(loader, until_told(recorder, 100), limit=20)
    wait_until(lambda: recorder.ended() == list(recorder.lists()))


def test_loaders_side_by_side_have_lists_of_their_own(place, recorder):
    train, val = (ddpfs.torch.follow(DataLoader(Files(place), 4, shuffle=True, num_workers=2)) for _ in range(2))
    first = iter(train)
    next(first)
    wait_until(lambda: len(recorder.names()) == 100)
    read(val, until_told(recorder, 200))
    assert len(recorder.lists()) == 2
    assert len(list(first)) == 24


def test_no_process_is_left(place, recorder):
    before = children()
    for sampler in Drawn(lambda _: iter(int, 1), 100), Drawn(lambda _: range(100), 100):  # one without end
        loader = ddpfs.torch.follow(DataLoader(Files(place), 4, sampler=sampler))
        read(loader, limit=12)
        assert children() == before


def test_a_trainer_that_waits_for_any_child_is_as_without(place, recorder):
    """Its handler of SIGCHLD may get the copy's number: then the copy was waited for already."""
    def reap(*_):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    former, descriptors = signal.signal(signal.SIGCHLD, reap), os.listdir("/proc/self/fd")
    try:
        loader = ddpfs.torch.follow(DataLoader(Files(place), 4, shuffle=True))
        for epoch in range(3):
            recorder.told.clear()
            assert sorted(read(loader, until_told(recorder, 100))) == list(range(100))
    finally:
        signal.signal(signal.SIGCHLD, former)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= len(descriptors))


def children():
    return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}


def test_a_trainer_may_have_closed_descriptors(place):
    """The copy's pipe may then have any small number."""
    script = f"""
import os
import sys
import time
os.close(0), os.close(1)
sys.path[:0] = {[str(tools.ROOT / "gpu_stage" / "python"), str(Path(__file__).parents[1])]}
from gpu_stage import test_sampler_copy as here
loader = here.ddpfs.torch.follow(here.DataLoader(here.Files({str(place)!r}), 8, shuffle=True))
iterator = iter(loader)
next(iterator)
while not here.tools.stat_json({str(place)!r})["announced"]:
    time.sleep(0.05)
"""
    tools.run([sys.executable, "-c", script], env={"DDPFS_DEBUG": "1"}, timeout=120)


def test_the_copy_can_do_no_harm(place, recorder, scratch, capfd):
    """A sampler that writes wherever it can: only what the trainer itself draws leaves a trace."""
    shared, file, pipe = mmap.mmap(-1, 4096), scratch / "drawn", os.pipe()
    tensor = torch.zeros(1).share_memory_()
    parent = os.getpid()
    os.set_blocking(pipe[0], False)
    tries = [lambda: file.write_text("x"), lambda: os.write(pipe[1], b"x"), lambda: print("x", flush=True),
             lambda: os.write(2, b"x"), lambda: os.unlink(scratch / "kept"), lambda: os.mkdir(scratch / "made"),
             lambda: os.truncate(scratch / "kept", 0), lambda: shared.write(b"x"), lambda: tensor.add_(1)]
    (scratch / "kept").write_text("kept")
    if not landlock():
        tries = [tries[i] for i in (1, 2, 3, 7, 8)]
    for harm in tries:
        recorder.told.clear()
        reached = threading.Event()

        def draw(_, harm=harm, reached=reached):
            yield from range(50)
            if os.getpid() != parent:
                try:
                    harm()
                except OSError:
                    pass
            else:
                assert reached.wait(60)
            yield from range(50, 100)

        loader = ddpfs.torch.follow(DataLoader(Files(place), 4, sampler=Drawn(draw, 100)))
        iterator = iter(loader)
        next(iterator)
        child = iterator._ddpfs._copy._child
        wait_until(lambda: gone(child))  # it has announced all, or was ended by what it tried
        reached.set()
        assert len(list(iterator)) == 24
    assert capfd.readouterr() == ("", "") and not file.exists() and (scratch / "kept").read_text() == "kept"
    assert not (scratch / "made").exists() and shared[0] == 0 and tensor.item() == 0
    with pytest.raises(BlockingIOError):
        os.read(pipe[0], 1)


def landlock():
    return ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) >= 3


def gone(pidfd):
    return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_wrong_use_is_told():
    with pytest.raises(TypeError, match="DataLoader within it; without one, announce what the sampler draws"):
        ddpfs.torch.follow([1, 2])
    with pytest.raises(ValueError, match="give paths="):
        ddpfs.torch.follow(DataLoader(type("Stream", (IterableDataset,), {"__iter__": lambda _: iter(())})()))
    with pytest.raises(TypeError, match="takes an index"):
        ddpfs.torch.follow(DataLoader([1]), paths=["a"])
    stream = type("Stream", (IterableDataset,), {"__iter__": lambda _: iter(())})
    for once in (path for path in ["a"]), iter(["a"]), map(str, ["a"]):
        with pytest.raises(TypeError, match="nothing left in the second epoch: give the function that makes it, or a list"):
            ddpfs.torch.follow(DataLoader(stream()), paths=once)


def test_places(place, scratch, monkeypatch):
    """Paths as trainers write them, and those on no ddpfs mount."""
    places = sample_paths.Places()
    name = sorted(n for n in os.listdir(place / "class_01"))[0]
    there = (str(place), f"class_01/{name}")
    assert places.find(place / "class_01" / name) == there
    assert places.find(os.fsencode(f"{place}//class_00/../class_01/./{name}")) == there
    monkeypatch.chdir(place / "class_00")
    assert places.find(f"../class_01/{name}") == there
    assert places.find(__file__) is None and places.find(Path("/no/such/file")) is None
