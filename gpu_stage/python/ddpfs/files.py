# SPDX-License-Identifier: Apache-2.0
"""Packed datasets opened by paths (the ddpfs_files_ functions of stage.h), and which of them this process has open."""

import atexit
import ctypes
import errno
import os
import threading
from collections import OrderedDict
from urllib.parse import unquote

import numpy as np

from ddpfs import _lib

KEPT = 8  # datasets that stay open when nobody uses them
LISTED = 256  # entries of a directory taken at once

_lock = threading.RLock()  # guards _kept; opening a dataset happens under it, so that threads open it once
_kept = OrderedDict()  # name: Dataset, the one used last at the end


def _after_fork():
    global _lock
    _lock = threading.RLock()  # the thread that held it is not in this child
    _kept.clear()  # nor are the datasets' threads


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_kept.clear)


def _error(code, text, path=None):
    """The OSError of an errno: FileNotFoundError, PermissionError ...  A file in the middle of a path is no path."""
    return OSError(errno.ENOENT if code == -errno.ENOTDIR else -code, text, path)


def shown(name):
    """A name as a message shows it: of a URL that may have a user or password, the scheme only."""
    name = os.fsdecode(name)
    scheme, colon, rest = name.partition(":/")
    return f"{scheme}://..." if colon and "@" in unquote(rest) else name


class Dataset:
    """A packed dataset, open in this process.  It closes when nobody refers to it."""

    def __init__(self, name, version=None, index=None):
        self.name, self.index = name, index
        self.version = version
        self.pid = os.getpid()
        self._pointer = None
        self._lib, error, pointer = _lib.load(), _lib.Error(), ctypes.c_void_p()
        code = self._lib.ddpfs_files_open_with(os.fsencode(name), None if index is None else os.fsencode(index),
                                               ctypes.byref(error), ctypes.byref(pointer))
        if code < 0:
            raise _error(code, error.text.decode(errors="replace"), shown(name))
        self._pointer = pointer

    def __del__(self):
        if self._pointer is not None and self.pid == os.getpid():  # a forked child does not have its threads
            self._lib.ddpfs_files_close(self._pointer)

    def _check(self, code, error, path):
        if code == -errno.ESTALE:
            forget(self)
        if code < 0:
            raise _error(code, error.text.decode(errors="replace"), path)
        return code

    def find(self, path):
        """Finds a file or directory by its path in the dataset, as a _lib.Entry."""
        entry, error, name = _lib.Entry(), _lib.Error(), os.fsencode(path)
        if b"\0" in name:
            raise _error(-errno.ENOENT, "there is a NUL in the path", path)
        code = self._lib.ddpfs_files_find(self._pointer, name, ctypes.byref(error), ctypes.byref(entry))
        self._check(code, error, path)
        return entry

    def list(self, directory):
        """Gives the entries of a directory (an entry of `find`), one after the other.  Each is valid until the next
        is taken."""
        entries, error, cookie = (_lib.Entry * LISTED)(), _lib.Error(), ctypes.c_uint64()
        while True:
            n = self._lib.ddpfs_files_list(self._pointer, directory.id, ctypes.byref(cookie), LISTED,
                                           ctypes.byref(error), entries)
            if self._check(n, error, self.name) == 0:
                return
            yield from entries[:n]

    def read(self, wanted):
        """Reads ranges: (file id, offset, length) each.  Returns for each its bytes, or an OSError."""
        ranges, error = (_lib.Range * len(wanted))(), _lib.Error()
        memory = np.empty(sum(length for _, _, length in wanted), np.uint8)
        at = 0
        for one, (file, offset, length) in zip(ranges, wanted):
            one.file, one.offset, one.len, one.data = file, offset, length, memory.ctypes.data + at
            at += length
        code = self._lib.ddpfs_files_read(self._pointer, ranges, len(wanted), ctypes.byref(error))
        if code == -errno.ESTALE:
            forget(self)
        got, at = [], 0
        for one in ranges:
            if one.rc < 0:
                told = one.file == error.file  # the sentence is about the first of them
                said = error.text.decode(errors="replace") if told else f"file {one.file}: {os.strerror(-one.rc)}"
                got.append(_error(one.rc, said))
            else:
                got.append(memory[at:at + one.got].tobytes())
            at += one.len
        return got


def forget(dataset):
    """Opens the dataset anew next time."""
    with _lock:
        if _kept.get((dataset.name, dataset.index)) is dataset:
            del _kept[dataset.name, dataset.index]


def forget_all():
    with _lock:
        _kept.clear()


def _version(name, index):
    """What changes when a dataset on a disk is replaced; None in a store."""
    if "://" in name and index is None:
        return None
    path = os.path.join(name, "index.ddpfs") if index is None else index
    try:
        s = os.stat(path)
    except OSError as error:
        raise _error(-error.errno, error.strerror, shown(path)) from None
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns


def opened(name, index=None):
    """Returns the dataset of this name and index, opened once in this process, and anew if it was replaced on its disk."""
    key = name, index
    with _lock:
        version, dataset = _version(name, index), _kept.get(key)
        if dataset is None or dataset.version != version:
            dataset = _kept[key] = Dataset(name, version, index)
        _kept.move_to_end(key)
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
        return dataset
