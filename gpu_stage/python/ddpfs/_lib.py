# SPDX-License-Identifier: Apache-2.0
"""libddpfs_stage by ctypes: the structs and functions of gpu_stage/stage.h, and nothing else."""

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from functools import cache

NONE = 0xFFFFFFFF
BRIEFLY = 2  # DDPFS_STAGE_BRIEFLY
LEND = 4  # DDPFS_STAGE_LEND
BATCH_MAX = 1 << 20  # DDPFS_STAGE_BATCH_MAX
PATH_MAX = 4097
TEXT_MAX = 1024
STATE_MAX = 4096
FILES_NAME_MAX = 256


class Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("file", c_uint32), ("sample", c_uint32), ("text", c_char * 1024)]


BadFunction = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Error))


class Options(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("rank", c_uint32), ("world", c_uint32), ("threads_io", c_uint32), ("seed", c_uint64),
                ("epoch", c_uint64), ("start", c_uint64), ("memory_bytes", c_uint64), ("order", c_char_p),
                ("deal", c_char_p), ("tail", c_char_p), ("subdir", c_char_p), ("on_bad", c_char_p),
                ("backend", c_char_p), ("state", c_char_p), ("device_bytes", c_uint64), ("bad", BadFunction),
                ("bad_arg", c_void_p), ("copy", c_char_p), ("quarantine", c_char_p), ("timed", c_uint32),
                ("groups", c_uint64), ("redeal", c_uint64), ("index", c_char_p)]


# struct ddpfs_item, as a numpy dtype
ITEM = [("data", "<u8"), ("device", "<u8"), ("len", "<u8"), ("step", "<u8"), ("file", "<u4"), ("sample", "<u4")]
ITEM_BYTES = 40


class Batch(ctypes.Structure):
    _fields_ = [("epoch", c_uint64), ("turn", c_uint64), ("n_samples", c_uint32), ("n_items", c_uint32),
                ("items", c_void_p), ("n_turns", c_uint32)]


class Stats(ctypes.Structure):
    _fields_ = ([(n, c_uint64) for n in (
        "batches", "samples", "bytes", "ready", "waited", "asked", "wait_ns", "wait_memory_ns", "arena_bytes",
        "used_bytes", "held_bytes", "landing_bytes", "refused", "evicted", "reads", "read_bytes", "bad_blocks",
        "io_errors", "left_out", "uploads", "upload_copies", "upload_bytes", "device_bytes", "device_used_bytes",
        "copied_bytes", "replaced", "told", "untold", "changed")] +
                [(n, c_uint32) for n in ("depth", "uring", "direct", "backend_device", "numa_node")])


class Entry(ctypes.Structure):
    _fields_ = [("len", c_uint64), ("xxh3", c_uint64), ("mtime_s", c_int64), ("id", c_uint32), ("mode", c_uint32),
                ("is_dir", c_uint32), ("name", c_char * FILES_NAME_MAX)]


class Range(ctypes.Structure):
    _fields_ = [("offset", c_uint64), ("len", c_uint64), ("data", c_void_p), ("got", c_uint64), ("file", c_uint32),
                ("rc", c_int32)]


_SIGNATURES = {
    "ddpfs_stage_open": (c_int, [c_char_p, POINTER(Options), POINTER(Error), POINTER(c_void_p)]),
    "ddpfs_stage_close": (c_int, [c_void_p]),
    "ddpfs_stage_next": (c_int, [c_void_p, c_uint32, c_uint, POINTER(Error), POINTER(POINTER(Batch))]),
    "ddpfs_stage_skip": (c_int, [c_void_p, c_uint64]),
    "ddpfs_stage_get": (c_int, [c_void_p, c_char_p, c_uint, POINTER(Error), POINTER(POINTER(Batch))]),
    "ddpfs_batch_wait": (c_int, [POINTER(Batch), c_void_p, POINTER(Error)]),
    "ddpfs_batch_sync": (c_int, [POINTER(Batch), POINTER(Error)]),
    "ddpfs_batch_release": (None, [POINTER(Batch)]),
    "ddpfs_stage_set_epoch": (c_int, [c_void_p, c_uint64, POINTER(Error)]),
    "ddpfs_stage_position": (c_int, [c_void_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint64)]),
    "ddpfs_stage_turns": (c_int, [c_void_p, c_uint64, POINTER(c_uint64)]),
    "ddpfs_stage_state": (c_int, [c_void_p, c_uint64, c_uint64, c_char_p, c_size_t]),
    "ddpfs_stage_resume": (c_int, [c_void_p, c_char_p, POINTER(Error)]),
    "ddpfs_stage_path": (c_int, [c_void_p, c_uint32, c_char_p, c_size_t]),
    "ddpfs_stage_arena": (None, [c_void_p, POINTER(c_void_p), POINTER(c_uint64)]),
    "ddpfs_stage_stats_get": (None, [c_void_p, POINTER(Stats)]),
    "ddpfs_stage_route": (c_int, [c_void_p, c_char_p, c_size_t]),
    "ddpfs_stage_version": (c_char_p, []),
    "ddpfs_files_open_with": (c_int, [c_char_p, c_char_p, POINTER(Error), POINTER(c_void_p)]),
    "ddpfs_files_close": (None, [c_void_p]),
    "ddpfs_files_find": (c_int, [c_void_p, c_char_p, POINTER(Error), POINTER(Entry)]),
    "ddpfs_files_list": (c_int, [c_void_p, c_uint32, POINTER(c_uint64), c_uint32, POINTER(Error), POINTER(Entry)]),
    "ddpfs_files_read": (c_int, [c_void_p, POINTER(Range), c_uint32, POINTER(Error)]),
}


@cache
def load():
    """Loads the library: $DDPFS_STAGE_LIB, or the one of the wheel, or the one that the loader finds."""
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native", "lib", "libddpfs_stage.so.0")
    name = os.environ.get("DDPFS_STAGE_LIB") or (bundled if os.path.exists(bundled) else "libddpfs_stage.so.0")
    try:
        lib = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(f"cannot load {name} ({error}): install ddpfs (`ldconfig` as root makes the loader see it), or set DDPFS_STAGE_LIB "
                          "to its path") from error
    for function, (result, arguments) in _SIGNATURES.items():
        getattr(lib, function).restype = result
        getattr(lib, function).argtypes = arguments
    return lib
