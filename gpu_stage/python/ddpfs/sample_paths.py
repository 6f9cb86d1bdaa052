# SPDX-License-Identifier: Apache-2.0
"""Which file of which mount a dataset opens for an index: by the lists that datasets keep, or by trying.

Trying belongs into a process that is thrown away (sampler_copy.py): it calls the dataset, and an audit hook cannot be
removed."""

import ctypes
import functools
import json
import os
import select
import signal
import sys
import time
from bisect import bisect_right
from collections import Counter
from difflib import SequenceMatcher
from itertools import zip_longest
from operator import index as as_int

LISTS = ("samples", "imgs", "files", "paths", "data")  # attributes of datasets that hold a path, or (path, ...), an item
FILES_MAX = 8  # files of an item that are looked for
WHOLE_S = 2  # an item that is read whole has this time for each file that it opens, and for the rest
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


def mounts():
    """The mountpoints of ddpfs mounts that this process sees: that of `ddpfs exec` first, then the latest."""
    with open("/proc/self/mountinfo", "rb") as lines:
        fields = [line.split() for line in lines]
    seen = [os.fsdecode(field[4].decode("unicode_escape").encode("latin-1"))
            for field in reversed(fields) if field[field.index(b"-", 6) + 1] == b"fuse.ddpfs"]
    return list(dict.fromkeys(filter(None, [os.environ.get("DDPFS_MOUNT"), *seen])))


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


def innermost(dataset):
    """The dataset within torch's Subset, however deep, and the function from an index to the one that it has there."""
    data = sys.modules.get("torch.utils.data")
    if data is None or not isinstance(dataset, data.Subset):
        return dataset, as_int
    whole, number = innermost(dataset.dataset)
    return whole, lambda i, indices=dataset.indices: number(indices[i])


def _of_parts(dataset, functions):
    """The function of an index of a ConcatDataset, made of one function for each of its parts."""
    ends = dataset.cumulative_sizes

    def of_part(i):
        i = as_int(i)
        i += ends[-1] if i < 0 else 0
        part = bisect_right(ends, i)
        return functions[part](i - (ends[part - 1] if part else 0))

    return of_part


def listed(dataset):
    """The function from an index to a path by the dataset's own lists, or None.  It looks into torch's Subset and
    ConcatDataset."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(dataset, data.Subset):
        inner, indices = listed(dataset.dataset), dataset.indices
        return inner and (lambda i: inner(indices[i]))
    if data is not None and isinstance(dataset, data.ConcatDataset):
        inner = [listed(part) for part in dataset.datasets]
        return _of_parts(dataset, inner) if inner and all(inner) else None
    for name in LISTS:
        found = getattr(dataset, name, None)
        try:
            if _first(found[0]) is not None and len(found) == len(dataset):
                return lambda i, found=found: _first(found[i])
        except Exception:  # no list, or an empty one, or somebody's own type
            continue
    return None


def _keys(item):
    """Where an item of a list may hold a path: (None,) for the item itself."""
    if _is_path(item):
        return (None,)
    if isinstance(item, dict):
        return [key for key, value in item.items() if _is_path(value)]
    if isinstance(item, (tuple, list)) or type(item).__name__ == "ndarray":
        return [k for k in range(min(len(item), FILES_MAX)) if _is_path(item[k])]
    return ()


def columns(dataset, depth=3):
    """Functions from an index to a text: one for each attribute of the dataset that holds a path or name an item.
    It looks into Subset and ConcatDataset, and into datasets that the dataset holds, `depth` deep.  A text is None
    where a part of a ConcatDataset has fewer attributes than others."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(dataset, data.Subset):
        indices = dataset.indices
        return [lambda i, inner=inner: inner(indices[i]) for inner in columns(dataset.dataset, depth)]
    if data is not None and isinstance(dataset, data.ConcatDataset):
        parts = [columns(part, depth) for part in dataset.datasets]
        return [_of_parts(dataset, column) for column in zip_longest(*parts, fillvalue=lambda i: None)]
    by_list = listed(dataset)
    found = [by_list] if by_list else []
    for value in list(getattr(dataset, "__dict__", {}).values()):
        try:
            if _is_path(value) or len(value) != len(dataset):
                continue
            if data is not None and isinstance(value, data.Dataset):
                found += columns(value, depth - 1) if depth else []
            else:
                found += [lambda i, value=value, key=key: value[i] if key is None else value[i][key]
                          for key in _keys(value[0])]
        except Exception:  # no list
            continue
    return found


def named_after(pairs):
    """The rule that makes a second text of the first, as (image, mask) or (name, path); or None.

    Both have a part in common, and the texts before and behind that part are the same in all pairs.  A directory that
    both begin with may differ from pair to pair."""
    if all(given == made for given, made in pairs):
        return lambda path: path
    above = os.path.commonprefix([text for pair in pairs for text in pair])
    above = above[:above.rfind("/") + 1]
    given, made = (text[len(above):] for text in pairs[0])
    for a, b, size in sorted(SequenceMatcher(None, given, made, False).get_matching_blocks(), key=lambda block: -block[2]):
        cut, behind = given[:a], given[a + size:]
        put, then = made[:b], made[b + size:]
        cut, put = (above + cut, above + put) if cut or put else ("", "")

        def rule(path, cut=cut, behind=behind, put=put, then=then):
            if not (path.startswith(cut) and path.endswith(behind) and len(path) >= len(cut) + len(behind)):
                return None
            return put + path[len(cut):len(path) - len(behind)] + then

        if size and all(rule(first) == second for first, second in pairs):
            return rule
    return None


def _directories(dataset):
    """Directories that relative paths of a dataset may be meant below: those that it names, then the mounts."""
    values = [getattr(dataset, name, None) for name in getattr(dataset, "__dict__", ())]
    named = [os.fsdecode(value) for value in values if _is_path(value)]
    return [name for name in named if name.startswith("/")] + mounts()


def _below(column, directory):
    return lambda i: os.path.join(directory, os.fsdecode(column(i)))


def _is_text(item):
    """Whether an item is made of texts and numbers, so that it costs nothing to make: no image."""
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, (tuple, list)) else (item,)
    return all(part is None or _is_path(part) or isinstance(part, (int, float)) for part in parts)


def _text(value):
    return os.fsdecode(value) if _is_path(value) else None


def _told(column, i):
    try:
        return _text(column(i))
    except Exception:  # an item that is not as those that were asked for
        return None


class _Opened(BaseException):
    """Stops an item of the dataset at the open of its file; no `except Exception` of a dataset holds it up."""


class Trial:
    """The path of an item, found by asking the dataset for the item up to the open of its file.

    For this process only if it ends soon: the audit hook stays."""

    SHARED_MAX = 4  # files that items have in common, as a table of labels that is opened late

    def __init__(self, dataset, places, in_lists=False):
        """in_lists: the dataset takes lists of indices."""
        self._dataset, self._places, self._in_lists = dataset, places, in_lists
        self._shared, self._seen, self._stop, self._active, self._tell = set(), [], False, False, None
        self.several = False  # learn() has found several files an item
        self.mixed = len(getattr(innermost(dataset)[0], "datasets", ())) > 1  # a ConcatDataset: items differ
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
            if self._tell:
                self._tell(arguments[0])
            if self._stop:
                raise _Opened
        finally:
            self._active = not (self._stop and self._seen)

    def _item(self, i):
        return self._dataset[[i] if self._in_lists else i]

    def opened(self, i, stop=True):
        """The paths in ddpfs mounts that item i opens; with stop only the first, and nothing is read."""
        self._seen, self._stop, self._active = [], stop, True
        try:
            self._item(i)
        except _Opened:
            pass
        finally:
            self._active = False
        return self._seen

    def by_list(self, indices):
        """The function from an index to a path by the dataset's list, if it tells the first file that each of these items
        opens, or if Python sees no open.  Reads nothing, if Python sees one."""
        told = listed(self._dataset)
        try:
            for i in indices if told else ():
                there, opened = self._places.find(told(i)), self._try(i)
                if there is None or opened and self._places.find(opened[0]) != there:
                    return None
        except Exception:  # the dataset has other indices
            return None
        return told

    def learn(self, indices, whole):
        """Returns the function from an index to the paths of the files that the dataset opens, or None.

        indices   several, as different as possible; all are asked for
        whole     {index: paths that a Reader saw}; of others, the first file is looked for, unless Python sees none"""
        some, lists = list(dict.fromkeys(indices)), columns(self._dataset)
        if whole and not any(whole.values()):
            return self._unseen(lists, some)
        self._find_shared(some)
        self.several = any(len(self._unshared(paths)) > 1 for paths in whole.values())
        some = list(whole) if self.several else some
        opened = {i: self._unshared(whole.get(i) or self._try(i)) for i in some}
        counts = Counter(map(len, filter(None, opened.values())))
        if not counts:
            return None
        count = min(max(counts) if self.mixed else counts.most_common(1)[0][0], FILES_MAX)
        some = [i for i in some if len(opened[i]) >= (1 if self.mixed else count)]
        having = [[i for i in some if len(opened[i]) > k] for k in range(count)]
        found = [self._column(lists, items, [opened[i][k] for i in items]) for k, items in enumerate(having)]
        first = found[0]
        if first is None:
            if any(_text(self(i)) != opened[i][0] for i in some):  # it is drawn at random
                return None
            first = self
        rules = [None if found[k] or len(items) < 2 else named_after([(opened[i][0], opened[i][k]) for i in items])
                 for k, items in enumerate(having)][1:]

        def files(i):
            path = _told(first, i)
            rest = [_told(column, i) if column else rule and path and rule(path) for column, rule in zip(found[1:], rules)]
            return [path, *rest]

        return files

    def still_opens(self, whole):
        """Whether each of these items opens the first file that a Reader saw."""
        return all(not paths or list(map(_text, self._try(i)[:1])) == paths[:1] for i, paths in whole.items())

    def read(self, i, tell):
        """Reads all of item i; calls tell(path) at each open."""
        self._tell = tell
        self._try(i, stop=False)

    def _unshared(self, paths):
        return [text for text in dict.fromkeys(map(_text, paths)) if self._places.find(text) not in self._shared]

    def _find_shared(self, some):
        for _ in range(self.SHARED_MAX if len(some) > 1 else 0):
            mine, its = self._try(some[0]), self._try(some[1])
            if not mine or mine != its:
                break
            self._shared.add(self._places.find(mine[0]))

    @staticmethod
    def _column(lists, some, paths):
        """The function by which a list of the dataset tells these paths, or None."""
        for column in lists:
            try:
                rule = named_after([(_text(column(i)), path) for i, path in zip(some, paths)])
            except Exception:  # the dataset has other indices, or no text
                continue
            if rule and (len(some) > 1 or rule("") == ""):
                def by(i, column=column, rule=rule):
                    text = _text(column(i))
                    return text and rule(text)
                return by
        return None

    def _unseen(self, lists, some):
        """The dataset opens what Python does not see, as cv2.imread does: its lists tell, also with paths below a
        directory of the dataset or below a mount.  Or its items are paths, which the loader's collate_fn opens."""
        found = [column for column in lists if self._lie_here(column, some)]
        for column in lists if not found else ():
            found += [below for below in map(functools.partial(_below, column), _directories(self._dataset))
                      if self._are_files(below, some)][:1]
        if not found:
            try:
                item = self._item(some[0])
                keys = _keys(item) if _is_text(item) else ()
            except Exception:
                return None
            items = [lambda i, key=key: self._item(i) if key is None else self._item(i)[key] for key in keys]
            found = [column for column in items if self._lie_here(column, some)]
        return (lambda i: list(dict.fromkeys(_told(column, i) for column in found))) if found else None

    def _are_files(self, column, some):
        return self._lie_here(column, some) and all(map(os.path.isfile, map(column, some)))

    def _lie_here(self, column, some):
        try:
            told = [column(i) for i in some]
            return any(told) and all(path is None or self._places.find(path) for path in told)
        except Exception:  # no path, or the dataset has other indices
            return False

    def _try(self, i, stop=True):
        try:
            return self.opened(i, stop)
        except Exception:  # the trainer sees it, too
            return self._seen

    def __call__(self, i):
        found = self._try(i)
        return found[0] if found else None


class Reader:
    """Reads items whole and notes what they open: `whole`, {index: paths}.  Each item has a process of its own, as it may
    take long, or hang where threads of the trainer are missed.  Then those paths count that were opened before."""

    def __init__(self, trial, indices):
        self.whole, self._trial, self._left = {}, trial, list(dict.fromkeys(indices))
        self._start()

    def _start(self):
        self._index, self._text, self._heard, parent = self._left.pop(0), b"", time.monotonic(), os.getpid()
        self._pipe, there = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
                if os.getppid() == parent:
                    self._trial.read(self._index, lambda path: os.write(there, json.dumps(_text(path)).encode() + b"\n"))
            finally:
                os._exit(0)
        os.close(there)

    def has_seen(self):
        """Whether an item has opened a file."""
        return bool(self._text) or any(self.whole.values())

    def is_over(self, wait=lambda: False):
        """Whether all is read that is needed.  Waits for it while wait() is true."""
        while self._pipe is not None:
            ready = select.select([self._pipe], [], [], 0.05 if wait() else 0)[0]
            said = os.read(self._pipe, 1 << 16) if ready else b""
            if said:
                self._text += said
                self._heard = time.monotonic()
            if ready and not said or time.monotonic() - self._heard > WHOLE_S or self._text.count(b"\n") > 2 * FILES_MAX:
                self._end()
            elif not ready and not wait():
                return False
        return True

    def _end(self):
        os.close(self._pipe)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        paths = [json.loads(line) for line in self._text.split(b"\n")[:-1]]
        self._pipe, self._text, self.whole[self._index] = None, b"", list(dict.fromkeys(paths))[:2 * FILES_MAX]
        most = max(map(len, self.whole.values()))
        if self._left and (most > 1 or self._trial.mixed or most == 0 and len(self.whole) < 2):
            self._start()
