# SPDX-License-Identifier: Apache-2.0
"""Datasets as they are in common libraries and repositories, with the names of their attributes: of each the files that
an item opens are announced, item by item.  The datasets are small models of these, and only open their files."""

import ctypes
import os
import random
import sys
import time
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from helpers import tools  # noqa: E402
from helpers.follow_recorder import recording  # noqa: E402
from helpers.waiting import wait_until  # noqa: E402
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset  # noqa: E402

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
import ddpfs  # noqa: E402
from ddpfs import dataset_lists, index_files, item_files, sampler_copy  # noqa: E402

COUNT = 60  # frames of each kind
KINDS = {"images": "images/{s}/{i:06d}.png", "masks": "masks/{s}/{i:06d}_mask.npy", "other": "other/{o}.bin",
         "points": "raw/{s}/points/data/{i:06d}.bin", "left": "raw/{s}/image_02/data/{i:06d}.png",
         "calib": "raw/{s}/calib.txt"}


@pytest.fixture
def recorder(scratch, monkeypatch):
    monkeypatch.setattr(index_files, "mounts", lambda: [])
    with recording(scratch / "recorder", monkeypatch, sampler_copy) as recorder:
        yield recorder


class Place:
    """A mount with COUNT files of each kind, in three directories.  No name of `other` tells one of another kind."""

    def __init__(self, root):
        self.root = str(root)

    def __call__(self, kind, i):
        if not 0 <= i < COUNT:
            raise IndexError(i)
        return f"{self.root}/" + KINDS[kind].format(s="abc"[i * 3 // COUNT], i=i, o=f"{(i * 37 + 11) * 7919 % 99991:x}")

    def all(self, kind):
        return [self(kind, i) for i in range(COUNT)]


@pytest.fixture
def place(mount, pack, scratch):
    here = Place(scratch / "tree")
    for kind in KINDS:
        for path in map(Path, here.all(kind)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(path.name)
    return Place(mount(pack(scratch / "tree"), "view=all").path)


class Model(Dataset):
    """An item opens files(self, i)."""

    def __init__(self, size, files, read=Path.read_bytes, /, **attributes):
        self._size, self._files, self._read = size, files, read
        self.__dict__.update(attributes)

    def __len__(self):
        return self._size

    def __getitem__(self, i):
        for path in self._files(self, i):
            self._read(Path(path))
        return i


class DataFrame:
    """Of pandas, what datasets use of it."""

    def __init__(self, columns):
        self.columns, self._values = list(columns), columns

    def __len__(self):
        return len(self._values[self.columns[0]])

    def __getitem__(self, name):
        return types.SimpleNamespace(values=np.array(self._values[name], dtype=object))


@dataclass
class Record:
    number: int
    image: str
    mask: str


def cityscapes(p):
    """torchvision: images, and targets of several types."""
    return Model(COUNT, lambda d, i: [d.images[i], *d.targets[i]], images=p.all("images"),
                 targets=list(map(list, zip(p.all("masks"), p.all("other")))))


def voc(p):
    return Model(COUNT, lambda d, i: [d.images[i], d.targets[i]], images=p.all("images"), targets=p.all("other"))


def coco(p):
    """The name of a file is in an object beside, and CocoPanoptic's mask has the name with another suffix."""
    names = types.SimpleNamespace(imgs={1000 + 7 * i: {"file_name": p("left", i)} for i in range(COUNT)})
    return Model(COUNT, lambda d, i: [path := d.coco.imgs[d.ids[i]]["file_name"],
                                      path.replace("image_02", "points").replace(".png", ".bin")],
                 coco=names, ids=sorted(names.imgs))


def inaturalist(p):
    return Model(COUNT, lambda d, i: [f"{p.root}/images/{d.all_categories[d.index[i][0]]}/{d.index[i][1]}"],
                 all_categories=["a", "b", "c"], index=[(i * 3 // COUNT, f"{i:06d}.png") for i in range(COUNT)])


def stereo(p):
    """torchvision: pairs of images, and of disparities, of which one is missing; a mask has the name of a disparity."""
    def files(d, i):
        disparity = d._disparities[i][0]
        return [*d._images[i], disparity, disparity.replace("image_02/data", "points/data").replace(".png", ".bin")]
    return Model(COUNT - 1, files,
                 _images=[(p("images", i), p("images", i + 1)) for i in range(COUNT - 1)],
                 _disparities=[(p("left", i), None) for i in range(COUNT - 1)])


def flow(p):
    """RAFT: image_list[i] = [a, b]."""
    return Model(2 * (COUNT - 1), lambda d, i: [*d.image_list[i], d.flow_list[i]],
                 image_list=2 * [[p("images", i), p("images", i + 1)] for i in range(COUNT - 1)],
                 flow_list=2 * p.all("other")[:-1])


def monodepth(p):
    """The neighbours of a frame by their numbers, and the points of the same number; no list has a path."""
    lines = [f"{'abc'[i * 3 // COUNT]} {i}" for i in range(COUNT) if 0 < i % 20 < 19]

    def files(d, i):
        folder, number = d.filenames[i].split()
        number = int(number)
        return [*(f"{p.root}/raw/{folder}/image_02/data/{number + k:06d}.png" for k in (0, -1, 1)),
                f"{p.root}/raw/{folder}/points/data/{number:06d}.bin", f"{p.root}/raw/{folder}/calib.txt"]
    return Model(len(lines), files, filenames=lines)


def windows(p):
    """The dataset is shorter than its list of frames."""
    return Model(COUNT - 7, lambda d, i: d.frames[i:i + 8], frames=p.all("other"))


def strided_windows(p):
    return Model(COUNT - 4 * 5, lambda d, i: [f"{d.image_dir}/{d.image_files[i + k * 5]}" for k in range(5)],
                 image_dir=f"{p.root}/other", image_files=[path[len(p.root) + 7:] for path in p.all("other")])


def clips_side_by_side(p):
    return Model(COUNT // 6, lambda d, i: d.frames[i * 6:i * 6 + 6], frames=p.all("other"))


def windows_within_ends(p):
    def files(d, i):
        return [d.images[min(max(i + k, 0), COUNT - 1)] for k in (-2, -1, 0, 1, 2)] + [d.labels[i]]
    return Model(COUNT, files, images=p.all("other"), labels=p.all("images"))


def windows_cut_at_ends(p):
    return Model(COUNT, lambda d, i: d.images[max(i - 2, 0):i + 3], images=p.all("other"))


def windows_around_ends(p):
    return Model(COUNT, lambda d, i: [d.images[i], d.images[i - 1]], images=p.all("other"))


def windows_of_a_dataset(p):
    """A dataset of sequences, made of one of images."""
    class Sequence(Dataset):
        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return len(self.dataset) - 3

        def __getitem__(self, i):
            for k in range(4):
                self.dataset[i + k]
            return i
    made = Sequence(Model(COUNT, lambda d, i: [d.samples[i][0]], samples=[(path, 0) for path in p.all("other")]))
    made._files = lambda _, i: [p("other", i + k) for k in range(4)]
    return made


def starts(p):
    """Windows that begin at numbers of a table."""
    table = [i for i in range(COUNT - 8) if i % 3]
    return Model(len(table), lambda d, i: d.frames[d.valid[i]:d.valid[i] + 8:2], frames=p.all("other"),
                 valid=np.array(table))


def clips_by_table(p):
    """(start, length), and a mask for each frame."""
    clips = [(i, 3 + i * 7 % 5) for i in range(0, COUNT - 8, 2)]

    def files(d, i):
        start, length = d.clips[i]
        return [path for k in range(start, start + length) for path in (d.frames[k], d.masks[k])]
    return Model(len(clips), files, frames=p.all("other"), masks=p.all("images"), clips=clips)


def clips_with_ends(p):
    clips = [{"first": i, "last": i + 4 + i * 5 % 7} for i in range(0, COUNT - 12, 2)]
    return Model(len(clips), lambda d, i: d.frames[d.clips[i]["first"]:d.clips[i]["last"]:2], frames=p.all("other"),
                 clips=clips)


def clips_in_samples(p):
    """A sample has the frames of a video, of which each has another number."""
    samples = [(p.all("other")[i:i + 3 + i % 4], i) for i in range(0, COUNT - 8, 2)]
    return Model(len(samples), lambda d, i: d.samples[i][0], samples=samples)


def clips_of_videos(p):
    """(video, start) into lists of frames."""
    videos = [p.all("other")[k:k + 20] for k in range(0, COUNT, 20)]
    clips = [(v, start) for v in range(3) for start in range(0, 13, 2)]

    def files(d, i):
        video, start = d.clips[i]
        return d.videos[video][start:start + 8]
    return Model(len(clips), files, videos=videos, clips=clips)


def fixed_frames_of_videos(p):
    """SuperSloMo's validation: the first, a middle and the last one of nine frames of each clip."""
    return Model(COUNT - 9, lambda d, i: [d.framesPath[i][k] for k in (0, 4, 8)],
                 framesPath=[p.all("other")[i:i + 9] for i in range(COUNT - 9)])


def data_frame(p):
    frame = DataFrame({"id": list(range(COUNT)), "image": p.all("images"), "mask": p.all("other")})
    return Model(COUNT, lambda d, i: [d.df["image"].values[i], d.df["mask"].values[i]], df=frame)


def cameras(p):
    """nuScenes' infos: the cameras of a sample, and its points."""
    infos = [{"lidar_path": p("points", i), "token": str(i), "cams": {
        "FRONT": {"data_path": p("other", i)}, "BACK": {"data_path": p("left", i)}}} for i in range(COUNT)]

    def files(d, i):
        return [*(one["data_path"] for one in d.data_infos[i]["cams"].values()), d.data_infos[i]["lidar_path"]]
    return Model(COUNT, files, data_infos=infos)


def records(p):
    return Model(COUNT, lambda d, i: [d.items[i].image, d.items[i].mask],
                 items=[Record(i, p("images", i), p("other", i)) for i in range(COUNT)])


def side_by_side(p):
    """torch's StackDataset."""
    one, two = (Model(COUNT, lambda d, i: [d.files[i]], files=p.all(kind)) for kind in ("images", "other"))
    made = StackDataset(image=one, mask=two)
    made._files = lambda _, i: [p("images", i), p("other", i)]
    return made


def repeated(p):
    """mmengine's RepeatDataset."""
    class RepeatDataset(Dataset):
        def __init__(self, dataset, times):
            self.dataset, self.times = dataset, times

        def __len__(self):
            return self.times * len(self.dataset)

        def __getitem__(self, i):
            return i if self.dataset[i % len(self.dataset)] < 0 else i
    made = RepeatDataset(voc(p), 3)
    made._files = lambda _, i: made.dataset._files(made.dataset, i % COUNT)
    return made


def part_of_lists(p):
    """A dataset that has its own table of indices."""
    order = random.Random(3).sample(range(COUNT), 40)
    return Model(40, lambda d, i: [d.images[d.indices[i]], d.masks[d.indices[i]]], images=p.all("images"),
                 masks=p.all("other"), indices=order)


MODELS = [cityscapes, voc, coco, inaturalist, stereo, flow, monodepth, windows, strided_windows, clips_side_by_side,
          windows_within_ends, windows_cut_at_ends, windows_around_ends, windows_of_a_dataset, starts, clips_by_table,
          clips_with_ends, clips_in_samples, clips_of_videos, fixed_frames_of_videos, data_frame, cameras, records,
          side_by_side, repeated, part_of_lists]


def files_of(dataset, i):
    """The files that item i opens, each once."""
    if isinstance(dataset, (ConcatDataset, OwnConcat)):
        for part in dataset.datasets:
            if i < len(part):
                return files_of(part, i)
            i -= len(part)
    if isinstance(dataset, Subset):
        return files_of(dataset.dataset, dataset.indices[i])
    return list(dict.fromkeys(dataset._files(dataset, i)))


def check(place, recorder, dataset, order, opened=None):
    """All files of the items are announced, in the order of the opens."""
    opened = opened or (lambda i: files_of(dataset, i))
    expected = [path[len(place.root) + 1:] for i in order for path in opened(i)]
    iterator = iter(ddpfs.torch.follow(DataLoader(dataset, 4, sampler=order, collate_fn=len)))
    next(iterator)
    wait_until(lambda: recorder.latest() == expected, "the announcement of all files")


def shuffled(n):
    return random.Random(5).sample(range(n), n)


@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "shuffled"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_all_files_of_an_item_are_announced(place, recorder, model, ordered):
    dataset = model(place)
    check(place, recorder, dataset, list(range(len(dataset))) if ordered else shuffled(len(dataset)))


def imgs_only(p):
    return Model(COUNT, lambda d, i: [d.imgs[i][0]], imgs=[(path, 1) for path in p.all("left")])


def masks_first(p):
    """The attributes are in another order than in voc(), and have other names."""
    return Model(COUNT, lambda d, i: [d.files[i], d.masks[i], d.depth[i]], depth=p.all("points"), masks=p.all("other"),
                 files=p.all("images"))


class OwnConcat(Dataset):
    """As fairseq's, which is not derived from torch's."""

    def __init__(self, datasets):
        self.datasets = datasets

    def __len__(self):
        return sum(map(len, self.datasets))

    def __getitem__(self, i):
        for part in self.datasets:
            if i < len(part):
                return part[i]
            i -= len(part)


PARTS = {"other attributes": lambda p: ConcatDataset([voc(p), imgs_only(p), masks_first(p)]),
         "a part of each": lambda p: ConcatDataset([Subset(one(p), range(50, 10, -2)) for one in (masks_first, voc)]),
         "no ConcatDataset of torch": lambda p: OwnConcat([windows(p), masks_first(p)]),
         "windows and images": lambda p: ConcatDataset([windows(p), imgs_only(p), clips_in_samples(p)]),
         "a part of all": lambda p: Subset(ConcatDataset([windows(p), voc(p)]), shuffled(COUNT * 2 - 7)[:90]),
         "twenty parts": lambda p: ConcatDataset([Subset((voc, masks_first)[k % 2](p), range(k, k + 12))
                                                  for k in range(20)])}


@pytest.mark.parametrize("kind", PARTS)
def test_parts_with_other_attributes(place, recorder, kind):
    dataset = PARTS[kind](place)
    check(place, recorder, dataset, shuffled(len(dataset)))


@pytest.mark.parametrize("source", ["global", "own"])
def test_a_neighbour_that_is_drawn_at_random_is_not_announced(place, recorder, source):
    draw = random if source == "global" else random.Random(4)
    dataset = Model(COUNT - 9, lambda d, i: [d.frames[i], d.frames[i + draw.randrange(1, 9)], d.labels[i]],
                    frames=place.all("other"), labels=place.all("images"))
    random.seed(1)
    check(place, recorder, dataset, shuffled(COUNT - 9), lambda i: [place("other", i), place("images", i)])


def test_a_list_that_cannot_be_read_is_named(monkeypatch, capfd):
    """It tells nothing; DDPFS_DEBUG=1 says so."""
    class Torn(list):
        def __getitem__(self, i):
            if i == 2:
                raise RuntimeError("torn")
            return super().__getitem__(i)

    place, read = Place("/nowhere"), (5, 10, 15, 20)
    frames = place.all("other")
    lists = dataset_lists.Lists(Model(COUNT, None, frames=Torn(frames)))
    seen = [item_files.Seen(lists, i, [frames[i], frames[i + 1]]) for i in read]
    for debug in "", "1":
        monkeypatch.setenv("DDPFS_DEBUG", debug)
        assert item_files.learn(seen)(lists)(7) == [frames[7], None]
        assert capfd.readouterr().err == ("ddpfs: the list ('frames',) is not searched for paths: RuntimeError('torn')\n"
                                          if debug else "")


def test_windows_that_begin_at_random_are_not_announced(place, recorder):
    """The first file is one of several: nothing tells it."""
    draw = random.Random(4)
    dataset = Model(COUNT - 16, lambda d, i: d.frames[(at := i + draw.randrange(9)):at + 4], frames=place.all("other"))
    loader = ddpfs.torch.follow(DataLoader(dataset, 4, shuffle=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wait_until(lambda: [time.sleep(0.05) for _ in loader] and caught, "a warning")
    assert "no file of a ddpfs mount is found for an index" in str(caught[0].message)
    assert not recorder.names()


@pytest.mark.parametrize("by_name", [False, True])
def test_files_that_cv2_opens(place, recorder, monkeypatch, by_name):
    """cv2.imread opens files where Python sees nothing: here a stand-in does.  by_name: from cv2 import imread."""
    libc = ctypes.CDLL(None)
    cv2 = types.SimpleNamespace(imread=lambda path: libc.close(libc.open(os.fsencode(path), os.O_RDONLY)))
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    user = types.SimpleNamespace(imread=cv2.imread) if by_name else cv2
    monkeypatch.setitem(sys.modules, "module_of_the_trainer", user)
    dataset = Model(COUNT - 7, lambda d, i: [*d.frames[i:i + 8:2], d.labels[i]], lambda path: user.imread(str(path)),
                    frames=place.all("other"), labels=place.all("images"))
    check(place, recorder, dataset, shuffled(COUNT - 7))
