# SPDX-License-Identifier: Apache-2.0
"""Which file of which mount a dataset opens for an index: by the lists that datasets keep, or by trying.

Trying belongs into a process that is thrown away (sampler_copy.py): it calls the dataset, and an audit hook cannot be
removed."""

import ctypes
import functools
import json
import os
import random
import select
import signal
import sys
import time

from .dataset_lists import Leaves, is_path, keys_of_paths, listed, text_of
from .item_files import ASK, FILES_MAX, Seen, learn, told

# Functions that open files in C code, where Python sees nothing.
OPENERS = {"cv2": ("imread", "VideoCapture"), "torchvision.io.image": ("read_file",), "av": ("open",),
           "decord": ("VideoReader",), "torchaudio": ("load",), "soundfile": ("read",), "rasterio": ("open",),
           "SimpleITK": ("ReadImage",)}
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


def _directories(dataset):
    """Directories that relative paths of a dataset may be meant below: those that it names, then the mounts."""
    values = [getattr(dataset, name, None) for name in getattr(dataset, "__dict__", ())]
    named = [os.fsdecode(value) for value in values if is_path(value)]
    return [name for name in named if name.startswith("/")] + mounts()


def _below(column, directory):
    return lambda i: os.path.join(directory, os.fsdecode(column(i)))


def _is_text(item):
    """Whether an item is made of texts and numbers, so that it costs nothing to make: no image."""
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, (tuple, list)) else (item,)
    return all(part is None or is_path(part) or isinstance(part, (int, float)) for part in parts)


def _ask(_lists):
    """In place of a rule, for leaves of which no item was read."""
    return lambda i: [ASK]


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
        self._leaves = Leaves(dataset)
        self.several = False  # learn() has found several files an item
        self.mixed = self._leaves.several  # items may differ
        sys.addaudithook(self._audit)
        self._see_opens_in_c()

    def _see_opens_in_c(self):
        for module, names in OPENERS.items():
            for name in names if module in sys.modules else ():
                function = getattr(sys.modules[module], name, None)
                seen = callable(function) and self._seen_by_audit(function)
                for one in list(sys.modules.values()) if seen else ():  # also those that have imported it by its name
                    if getattr(one, "__dict__", {}).get(name) is function:
                        setattr(one, name, seen)

    def _seen_by_audit(self, function):
        def opens(*arguments, **named):
            for path in filter(is_path, (*arguments[:1], *named.values())):
                self._audit("open", (path,))
                break
            return function(*arguments, **named)

        return opens

    def _audit(self, event, arguments):
        if not self._active or event != "open" or not is_path(arguments[0]):
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

    def spread(self):
        """Indices of a few items of each leaf, far from one another."""
        return self._leaves.spread()

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
        by_list = listed(self._dataset)
        try:
            for i in indices if by_list else ():
                there, opened = self._places.find(by_list(i)), self._try(i)
                if there is None or opened and self._places.find(opened[0]) != there:
                    return None
        except Exception:  # the dataset has other indices
            return None
        return by_list

    def learn(self, indices, whole):
        """Returns the function from an index to the paths of the files that the dataset opens, or None.

        indices   several, as different as possible; all are asked for
        whole     {index: paths that a Reader saw}; of others, the first file is looked for, unless Python sees none"""
        some = list(dict.fromkeys(indices))
        if whole and not any(whole.values()):
            return self._unseen(some)
        self._find_shared(some)
        self.several = any(len(self._unshared(paths)) > 1 for paths in whole.values())
        some = list(whole) if self.several else some
        opened = {i: self._unshared(whole.get(i) or self._try(i)) for i in some}
        opened = {i: paths for i, paths in opened.items() if paths}
        if not opened:
            return None
        seen = {}
        for i, paths in opened.items():
            leaf, index = self._leaves.find(i)
            seen.setdefault(leaf.group, []).append(Seen(leaf.lists, index, paths))
        rules = {group: learn(items) for group, items in seen.items()}
        of_item = self._leaves.bind(lambda leaf: rules.get(leaf.group, _ask)(leaf.lists))
        for i, paths in opened.items():
            again = text_of(self(i))
            if paths[0] is None or again != paths[0] and (again or (told(of_item, i) or [None])[0] is ASK):
                return None  # the first file is drawn at random

        def files(i):
            first, *rest = told(of_item, i) or [None]
            if first is ASK:
                first = text_of(self(i))
            rest = [(first and path(first)) if callable(path) else path for path in rest]
            return list(dict.fromkeys([first, *rest]))

        return files

    def still_opens(self, whole):
        """Whether each of these items opens the first file that a Reader saw."""
        return all(not paths or list(map(text_of, self._try(i)[:1])) == paths[:1] for i, paths in whole.items())

    def read(self, i, tell):
        """Reads all of item i; calls tell(path) at each open."""
        self._tell = tell
        self._try(i, stop=False)

    def _unshared(self, paths):
        """A path is None if it is another one at each read of the item."""
        kept = []
        for text in map(text_of, paths):
            if text is None or text not in kept and self._places.find(text) not in self._shared:
                kept.append(text)
        return kept

    def _find_shared(self, some):
        for _ in range(self.SHARED_MAX if len(some) > 1 else 0):
            mine, *others = [self._try(i) for i in (*some[:2], some[-1])]  # two neighbours may share a frame
            if not mine or any(its != mine for its in others):
                break
            self._shared.add(self._places.find(mine[0]))

    def _unseen(self, some):
        """The dataset opens what Python does not see: its lists tell, also with paths below a directory of the dataset
        or below a mount.  Or its items are paths, which the loader's collate_fn opens."""
        of_item = self._leaves.bind(self._lists_of_files)
        if any(any(told(of_item, i) or ()) for i in some):
            return lambda i: list(dict.fromkeys(map(text_of, told(of_item, i) or ())))
        try:
            item = self._item(some[0])
            keys = keys_of_paths(item) if _is_text(item) else ()
        except Exception:
            return None
        items = [lambda i, key=key: self._item(i) if key is None else self._item(i)[key] for key in keys]
        found = [column for column in items if self._lie_here(column, some)]
        return (lambda i: list(dict.fromkeys(text_of(told(column, i)) for column in found))) if found else None

    def _lists_of_files(self, leaf):
        some, columns = leaf.some(), list(leaf.lists.columns.values())
        found = [column for column in columns if self._lie_here(column, some)]
        for column in columns if not found else ():
            found += [below for below in map(functools.partial(_below, column), _directories(leaf.dataset))
                      if self._are_files(below, some)][:1]
        return lambda i: [told(column, i) for column in found]

    def _are_files(self, column, some):
        return self._lie_here(column, some) and all(map(os.path.isfile, map(column, some)))

    def _lie_here(self, column, some):
        try:
            paths = [column(i) for i in some]
            return any(paths) and all(path is None or self._places.find(path) for path in paths)
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


def _seed(number):
    """Another random state in each process that reads an item, so that files drawn at random differ."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    random.seed(number)
    if torch:
        torch.default_generator.manual_seed(number)
    if numpy:
        numpy.random.seed(number)


def _line_of(path):
    return json.dumps(text_of(path)).encode() + b"\n"


class Reader:
    """Reads items whole and notes what they open: `whole`, {index: paths}.  Each item has a process of its own, as it may
    take long, or hang where threads of the trainer are missed.  Then those paths count that were opened before.

    If an item opens several files, some items are read once more, one behind the other: a file that is not the same
    then is drawn at random, and None stands in its place."""

    AGAIN = 4  # items that are read for the second time, of which the first one is not looked at

    def __init__(self, trial, indices):
        self.whole, self._trial, self._left = {}, trial, list(dict.fromkeys(indices))
        self._again = False  # whether items are read for the second time
        self._start([self._left.pop(0)])

    def _start(self, items):
        self._items, self._text, self._heard, parent = items, b"", time.monotonic(), os.getpid()
        self._pipe, there = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
                if os.getppid() == parent:
                    _seed(len(self.whole) + 1)
                    for k, i in enumerate(items):
                        os.write(there, _line_of(None) if k else b"")
                        self._trial.read(i, lambda path: os.write(there, _line_of(path)))
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
            too_many = self._text.count(b"\n") > 2 * FILES_MAX * len(self._items)
            if ready and not said or time.monotonic() - self._heard > WHOLE_S or too_many:
                self._end()
            elif not ready and not wait():
                return False
        return True

    def _end(self):
        os.close(self._pipe)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        read = [[]]
        for path in map(json.loads, self._text.split(b"\n")[:-1]):
            read.append([]) if path is None else read[-1].append(path)
        self._pipe, self._text = None, b""
        if self._again:
            self._leave_out_random(dict(zip(self._items[1:], read[1:])))
            return
        self.whole[self._items[0]] = read[0][:2 * FILES_MAX]
        most = max(len(set(paths)) for paths in self.whole.values())
        if self._left and (most > 1 or self._trial.mixed or most == 0 and len(self.whole) < 2):
            self._start([self._left.pop(0)])
        elif most > 1 and len(self.whole) > 1:
            self._again, some = True, list(self.whole)[:self.AGAIN]
            self._start([some[1], some[0], *some[2:]])

    def _leave_out_random(self, again):
        changed = {k for i, paths in again.items()
                   for k, (one, other) in enumerate(zip(self.whole[i], paths)) if one != other}
        for paths in self.whole.values():
            for k in changed & set(range(len(paths))):
                paths[k] = None
