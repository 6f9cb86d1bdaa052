# SPDX-License-Identifier: Apache-2.0
"""Which file of which mount a dataset opens for an index: by the lists that datasets keep, or by trying.

Trying belongs into a process that is thrown away (sampler_copy.py): it calls the dataset, and an audit hook cannot be
removed."""

import os
import sys
from bisect import bisect_right
from operator import index as as_int

LISTS = ("samples", "imgs", "files", "paths", "data")  # attributes of datasets that hold a path, or (path, ...), an item
XATTR = "user.ddpfs.view"  # the root of a ddpfs mount has it


class Place:
    """A directory as paths name it, in a mount."""

    def __init__(self, prefix, root, inside):
        self.prefix, self.root, self.inside = prefix, root, inside

    @classmethod
    def of(cls, path):
        """The place of a file or directory with an absolute path, or None if it lies on no ddpfs mount."""
        for name in (path, os.path.realpath(path)):
            try:
                directory = cls._mountpoint(os.path.dirname(name))
                os.getxattr(directory, XATTR)
            except OSError:
                continue
            if name == path:
                return cls(directory.rstrip("/") + "/", directory, "")
            given = os.path.dirname(path)
            inside = os.path.relpath(os.path.realpath(given), directory)
            return cls(given.rstrip("/") + "/", directory, "" if inside == "." else inside + "/")
        return None

    @staticmethod
    def _mountpoint(directory):
        device = os.stat(directory).st_dev
        while (above := os.path.dirname(directory)) != directory and os.stat(above).st_dev == device:
            directory = above
        return directory


class Places:
    """Turns paths into (root of the mount, path in the mount)."""

    MAX = 1024  # directories that are remembered; of more, those on ddpfs are left out

    def __init__(self):
        self._known, self._elsewhere = [], set()

    def find(self, path):
        """Returns None for a path on no ddpfs mount."""
        text = os.fsdecode(path)
        if not text.startswith("/"):
            text = os.path.join(os.getcwd(), text)
        if "/." in text or "//" in text:
            text = os.path.normpath(text)
        for place in self._known:
            if text.startswith(place.prefix):
                return place.root, place.inside + text[len(place.prefix):]
        directory = os.path.dirname(text)
        if len(self._known) >= self.MAX or directory in self._elsewhere:
            return None
        place = Place.of(text)
        if place is None:
            if len(self._elsewhere) < self.MAX:
                self._elsewhere.add(directory)
            return None
        self._known.append(place)
        return self.find(text)


def _is_path(value):
    return isinstance(value, (str, bytes, os.PathLike))


def _first(item):
    """The path of an item of a list: the item, or its first part."""
    if _is_path(item):
        return item
    part = item[0] if isinstance(item, (tuple, list)) and item else None
    return part if _is_path(part) else None


def listed(dataset):
    """The function from an index to a path by the dataset's own lists, or None.  It looks into torch's Subset and
    ConcatDataset."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(dataset, data.Subset):
        inner, indices = listed(dataset.dataset), dataset.indices
        return inner and (lambda i: inner(indices[i]))
    if data is not None and isinstance(dataset, data.ConcatDataset):
        inner, ends = [listed(part) for part in dataset.datasets], dataset.cumulative_sizes

        def of_part(i):
            i = as_int(i)
            i += ends[-1] if i < 0 else 0
            part = bisect_right(ends, i)
            return inner[part](i - (ends[part - 1] if part else 0))

        return of_part if inner and all(inner) else None
    for name in LISTS:
        found = getattr(dataset, name, None)
        try:
            if _first(found[0]) is not None and len(found) == len(dataset):
                return lambda i, found=found: _first(found[i])
        except Exception:  # no list, or an empty one, or somebody's own type
            continue
    return None


class _Opened(BaseException):
    """Stops an item of the dataset at the open of its file; no `except Exception` of a dataset holds it up."""


class Trial:
    """The path of an item, found by asking the dataset for the item up to the open of its file.

    For this process only if it ends soon: the audit hook stays."""

    SHARED_MAX = 4  # files that items have in common, as a table of labels that is opened late

    def __init__(self, dataset, places):
        self._dataset, self._places = dataset, places
        self._shared, self._seen, self._stop, self._active = set(), [], False, False
        sys.addaudithook(self._audit)

    def _audit(self, event, arguments):
        if not self._active or event != "open" or not _is_path(arguments[0]):
            return
        self._active = False  # what follows opens nothing, but may look at files
        try:
            there = self._places.find(arguments[0])
            if there is None or there in self._shared:
                return
            self._seen.append(arguments[0])
            if self._stop:
                raise _Opened
        finally:
            self._active = not (self._stop and self._seen)

    def opened(self, i, stop=True):
        """The paths in ddpfs mounts that item i opens; with stop only the first, and nothing is read."""
        self._seen, self._stop, self._active = [], stop, True
        try:
            self._dataset[i]
        except _Opened:
            pass
        finally:
            self._active = False
        return self._seen

    def learn(self, i, other):
        """Finds out which files items have in common, and whether there is one file an item.  Returns whether so."""
        for _ in range(self.SHARED_MAX):
            mine, its = self.opened(i), self.opened(other)
            if not mine or mine != its or i == other:
                break
            self._shared.add(self._places.find(mine[0]))
        return bool(mine) and len(set(self.opened(i, stop=False))) == 1

    def __call__(self, i):
        found = self.opened(i)
        return found[0] if found else None
