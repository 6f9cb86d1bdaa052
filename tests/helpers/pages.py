# SPDX-License-Identifier: Apache-2.0
"""What the page cache holds of a file.  The kernel may take pages back at any time."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

libc = ctypes.CDLL(None, use_errno=True)


def cached_bytes(mapped):
    """Bytes of a read-only mapping that are in the page cache (mincore)."""
    view = np.frombuffer(mapped, dtype=np.uint8)
    pages = (len(view) + 4095) // 4096
    vector = (ctypes.c_ubyte * pages)()
    if libc.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view)), vector):
        raise OSError(ctypes.get_errno(), "mincore")
    return 4096 * sum(v & 1 for v in vector)


def resident(path):
    """Bytes of the file in the page cache."""
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return cached_bytes(mapped)


def drop(path):
    """Takes the file's pages out of the page cache."""
    with open(path, "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_dropped(path):
    """The file's bytes, after its pages were taken out of the page cache."""
    with open(path, "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return f.read()


def caches_dropped():
    """How often somebody has had the kernel drop caches of the whole host; pages and names count each for itself."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts["drop_pagecache"]) + int(counts["drop_slab"])


def undisturbed(measured, rounds=20):
    """Calls `measured(begin)` until no other process drops the caches of the host meanwhile.  Returns what it gave.

    `measured` calls `begin()` when its own drops are done: only others' drops after that disturb it."""
    for _ in range(rounds):
        began = []
        result = measured(lambda began=began: began.append(caches_dropped()))
        if began[-1] == caches_dropped():
            return result
    pytest.skip(f"another process dropped the caches of this host in each of {rounds} rounds")
