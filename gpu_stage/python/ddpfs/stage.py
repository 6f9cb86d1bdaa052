# SPDX-License-Identifier: Apache-2.0
"""Batches of a rank's samples as views of the stage's arena, or of GPU memory, without a copy.

If a program writes to a view, all holders of that batch see it, and nobody later: the library verifies a sample again
before it hands it out again."""

import ctypes
import errno
import logging
import math
import operator
import os
import threading
import time
import warnings

import numpy as np

from ddpfs import _lib
from ddpfs._dlpack import DeviceArray

log = logging.getLogger("ddpfs")
WARN_AFTER_S = 10  # a warning after so long a wait for batches that the program keeps

_opening = threading.RLock()  # so that threads which share a stage open it once


def _renew_opening():
    global _opening
    _opening = threading.RLock()  # the thread that held it is not in this child


os.register_at_fork(after_in_child=_renew_opening)
_U32_MAX = (1 << 32) - 1
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class StageError(OSError):
    """An error of the library.  .file and .sample are ids, or None."""

    def __init__(self, code, text, file=None, sample=None):
        super().__init__(-code, text)
        self.file = file
        self.sample = sample


class OptionError(StageError, ValueError):
    """An option has no meaning, or contradicts a state."""


def _made(error):
    kind = OptionError if error.code == -errno.EINVAL else StageError
    return kind(error.code, error.text.decode(errors="replace"),
                None if error.file == _lib.NONE else error.file,
                None if error.sample == _lib.NONE else error.sample)


def _raise(error):
    raise _made(error)


def _number(name, value, low=0, high=(1 << 64) - 1):
    """Checks an integer parameter (numpy integers too) against its limits and returns it as an int."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise ValueError(f"{name}={value!r}: give a whole number from {low} to {high}")
    return number


def _bytes(name, size):
    """Turns 4096, "64M" or "1.5G" into bytes."""
    if size is None:
        return 0
    if not isinstance(size, (str, float)):
        return _number(name, size, high=(1 << 63) - 1)
    number = str(size).strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        value = float(number.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 <= value < 1 << 63:  # refuses inf and nan too
        raise ValueError(f'{name}={size!r}: give bytes, as a number or with K, M, G or T behind it ("512M")')
    return int(value)


def _word(name, value):
    """Turns a path or a word into bytes for the library; refuses a NUL; None stays None."""
    if value is None:
        return None
    try:
        text = os.fsencode(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}: give a str or a path") from None
    if b"\0" in text:
        raise ValueError(f"{name}={value!r}: there is a NUL in it, which no path has")
    return text


class _Open:
    """The library's stage.  It is closed when the Stage and the last batch are gone."""

    def __init__(self, lib, pointer):
        self.lib = lib
        self.pointer = pointer
        self.pid = os.getpid()
        base, size = ctypes.c_void_p(), ctypes.c_uint64()
        lib.ddpfs_stage_arena(pointer, ctypes.byref(base), ctypes.byref(size))
        self.base, self.size = base.value, size.value
        stats = _lib.Stats()
        lib.ddpfs_stage_stats_get(pointer, ctypes.byref(stats))
        self.ordinal = stats.backend_device - 1  # the GPU's; -1: host memory

    def route(self):
        buf = ctypes.create_string_buffer(_lib.TEXT_MAX)
        self.lib.ddpfs_stage_route(self.pointer, buf, len(buf))
        return buf.value.decode()

    def __del__(self):
        if self.pid == os.getpid():  # a forked child does not have the stage's threads
            self.lib.ddpfs_stage_close(self.pointer)


class _Held:
    """The library's batch.  It is released when no view uses it."""

    def __init__(self, opened, pointer):
        self.opened = opened
        self.pointer = pointer

    def wait(self, stream):
        error = _lib.Error()
        if self.opened.lib.ddpfs_batch_wait(self.pointer, stream, ctypes.byref(error)) < 0:
            _raise(error)

    def sync(self):
        error = _lib.Error()
        if self.opened.lib.ddpfs_batch_sync(self.pointer, ctypes.byref(error)) < 0:
            _raise(error)

    def __del__(self):
        if self.opened.pid == os.getpid():
            self.opened.lib.ddpfs_batch_release(self.pointer)


class _Memory:
    """Bytes of the arena for numpy.  numpy keeps this object, and so the batch."""

    def __init__(self, held, address, size, readonly):
        self.held = held
        self.__array_interface__ = {"data": (address, readonly), "shape": (size,), "typestr": "|u1", "version": 3}


class Batch:
    """One batch.  Other samples get its memory when the batch is gone or released, and all views of it are gone: hold
    few batches.

        len(batch), batch[i]       the files; batch[i] is a read-only numpy uint8 view of host memory
        batch.tensor(i)            the same as a torch tensor, on the GPU with backend="cuda".  You may change it in
                                   place: a later epoch has the dataset's bytes
        batch.tensor()             files of one length as one tensor [files, length]; in host memory a copy
        batch.device(i), .device() the same memory for every library that takes DLPack; with backend="cuda" only
        batch.flat()               (one uint8 tensor, offsets): file i is tensor[offsets[i] : offsets[i] + lengths[i]];
                                   in host memory a copy
        batch.device_flat()        the same for DLPack
        batch.wait(stream)         call it before you use the batch on another stream than the one that was current at
                                   tensor() or device().  A torch.cuda.Stream or its number
        batch.arena, .offsets      one view of all files: file i is arena[offsets[i] : offsets[i] + lengths[i]].
                                   ValueError if a file lies apart, because it found no room in the arena
        batch.lengths, .steps, .files, .samples    numpy arrays, one number a file
        batch.path(i)              its path in the dataset
        batch.epoch, .turn, .n_turns      its place in this rank's epoch
        batch.n_samples            samples in it; fewer than n_turns if on_bad left some out
    """

    def __init__(self, held):
        public = held.pointer.contents
        self._held = held
        self.epoch = public.epoch
        self.turn = public.turn
        self.n_samples = public.n_samples
        self.n_turns = public.n_turns
        raw = (ctypes.c_ubyte * (public.n_items * _lib.ITEM_BYTES)).from_address(public.items)
        items = np.frombuffer(raw, dtype=_lib.ITEM).copy()
        self.files = items["file"]
        self.samples = items["sample"]
        self.steps = items["step"]
        self.lengths = items["len"].astype(np.int64)
        base = np.uint64(held.opened.base)
        self._base = int(items["data"].min(initial=base))  # a sample that lies apart can have a lower address
        self.offsets = (items["data"] - np.uint64(self._base)).astype(np.int64)
        self._device = items["device"]

    def __len__(self):
        return len(self.lengths)

    def _memory(self, start, size, readonly):
        return np.asarray(_Memory(self._live(), self._base + start, size, readonly))

    def __getitem__(self, i):
        return self._memory(int(self.offsets[i]), int(self.lengths[i]), True)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    @property
    def arena(self):
        opened = self._live().opened
        end = opened.base + opened.size - self._base
        if self._base != opened.base or int((self.offsets + self.lengths).max(initial=0)) > end:
            raise ValueError("a file of this batch lies apart from the arena (it found no room in it): use batch[i]")
        return self._memory(0, end, True)

    def tensor(self, i=None):
        import torch

        if self._live().opened.ordinal >= 0:
            return torch.from_dlpack(self.device(i))
        if i is None:
            return torch.from_numpy(self.stack())
        return torch.from_numpy(self._memory(int(self.offsets[i]), int(self.lengths[i]), False))

    def device(self, i=None):
        if self._live().opened.ordinal < 0:
            raise ValueError('the batch is in host memory: open the stage with backend="cuda"')
        if i is None:
            return DeviceArray(self._held, int(self._device[0]), (len(self), self._one_length()))
        return DeviceArray(self._held, int(self._device[i]), (int(self.lengths[i]),))

    def flat(self):
        import torch

        if self._live().opened.ordinal >= 0:
            array, offsets = self.device_flat()
            return torch.from_dlpack(array), offsets
        files = list(self)  # in host memory other samples lie between the files
        offsets = np.cumsum(self.lengths) - self.lengths
        return torch.from_numpy(np.concatenate(files) if files else np.empty(0, np.uint8)), offsets

    def device_flat(self):
        if self._live().opened.ordinal < 0:
            raise ValueError('the batch is in host memory: open the stage with backend="cuda"')
        offsets = (self._device - self._device[0]).astype(np.int64)
        return DeviceArray(self._held, int(self._device[0]), (int(offsets[-1] + self.lengths[-1]),)), offsets

    def wait(self, stream):
        self._live().wait(getattr(stream, "cuda_stream", stream))

    def sync(self):
        """Waits until the batch is on the GPU."""
        self._live().sync()

    def stack(self):
        """Copies files of one length into one array [n, length] in host memory."""
        self._one_length()
        return np.stack(list(self))

    def _one_length(self):
        lengths = set(self.lengths.tolist())
        if len(lengths) != 1:
            raise ValueError("files of this batch differ in length")
        return lengths.pop()

    def _live(self):
        if self._held is None:
            raise ValueError("the batch was released")
        return self._held

    def path(self, i):
        return _path(self._live().opened, int(self.files[i]))

    def release(self):
        """Gives the batch up.  Views that exist keep its memory."""
        self._held = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def __reduce__(self):
        raise TypeError("a batch is memory of this process: send copies (bytes(batch[i])) to others")


def _path(opened, file):
    buf = ctypes.create_string_buffer(_lib.PATH_MAX)
    length = opened.lib.ddpfs_stage_path(opened.pointer, file, buf, len(buf))
    if length < 0:
        raise StageError(length, f"file {file}: {os.strerror(-length)}", file)
    return os.fsdecode(buf.raw[:length])


class Stage:
    """Gives the samples of a rank: `for batch in stage` gives what is left of the epoch, and next time the next
    epoch.  It is opened when it is first used, in the process that uses it.

    dataset   the directory of a packed dataset, or a mount.  With a mount, dataset, rank, world, order, epoch and
              start come from it, and its state follows the batches that are released
    batch     samples of a batch; drop_last leaves out a shorter batch at the end
    rank, world    of this process; world=0: 1, or the mount's
    memory    bytes, or "512M": arena and reads together; default: a quarter of what is free, at most 4 GiB
    order, deal, tail, seed, epoch, start, subdir, groups, redeal    as the options of the mount
    on_bad    what happens with a bad sample.  "eio": its batch fails.  "skip": it is left out.  "substitute":
              another sample of its directory takes its place.  With the last two, samples of the quarantine list
              are left out of the order, or replaced in it, as in a mount.  A function means "skip": it is called
              with the StageError that names the sample
    bad       a function that is called like that with any on_bad
    index     path of the index, if it does not lie with the shards (mkshard index -o): `dataset` is then the directory or
              the URL of the shards, and no mount
    quarantine    path of the list; default: quarantine.ddpfs in the dataset, if it is there; "": none
    backend   "cpu", or "cuda" (torch's current device) or "cuda:N": batches in GPU memory
    device_memory, copy    bytes of GPU memory for batches; how they get there: "auto", "each", "packed" (stage.h)
    state     a state (the text of state_dict()["ddpfs"]) to go on from
    """

    def __init__(self, dataset, batch=1, *, rank=0, world=0, order=None, deal=None, tail=None, seed=0, epoch=0, start=0,
                 subdir=None, memory=0, on_bad=None, backend=None, device_memory=0, copy=None, state=None, drop_last=False,
                 bad=None, quarantine=None, groups=0, redeal=0, index=None):
        self.dataset = os.fspath(dataset)
        self._dataset = _word("dataset", dataset)
        self.batch = _number("batch", batch, 1, _lib.BATCH_MAX)
        self.drop_last = drop_last
        rank, world = _number("rank", rank, high=_U32_MAX), _number("world", world, high=_U32_MAX)
        self._numbers = {"rank": rank, "world": world, "seed": _number("seed", seed), "epoch": _number("epoch", epoch),
                         "start": _number("start", start), "memory_bytes": _bytes("memory", memory),
                         "device_bytes": _bytes("device_memory", device_memory), "groups": _number("groups", groups),
                         "redeal": _number("redeal", redeal)}
        if bad and callable(on_bad):
            raise ValueError("on_bad is a function, and bad is one: give on_bad='skip' and bad, or one of them")
        self._bad = bad or (on_bad if callable(on_bad) else None)
        on_bad = "skip" if callable(on_bad) else on_bad
        words = {"order": order, "deal": deal, "tail": tail, "subdir": subdir, "on_bad": on_bad,
                 "backend": backend, "copy": copy, "state": state, "quarantine": quarantine, "index": index}
        self._words = {name: _word(name, value) for name, value in words.items()}
        if quarantine and not os.path.isfile(self._words["quarantine"]):
            raise OptionError(-errno.ENOENT, f"quarantine={os.fspath(quarantine)!r}: there is no such file; "
                                             'give the path of the list, or "" for none')
        self._opened = None
        self._closed = False
        self._route = None

    def _open(self):
        opened = self._opened
        if self._closed:
            raise ValueError("the stage was closed: make another one, with a state= taken before close() to go on")
        if opened is None:
            with _opening:
                opened = self._opened = self._opened or self._open_anew()
        if opened.pid != os.getpid():
            raise RuntimeError("this stage was opened before fork(): make one in the process that uses it")
        return opened

    def _open_anew(self):
        lib, error, pointer = _lib.load(), _lib.Error(), ctypes.c_void_p()
        words = {name: word for name, word in self._words.items() if word is not None}
        options = _lib.Options(size=ctypes.sizeof(_lib.Options), **self._numbers, **words)
        bad, self_bad = None, self._bad
        if self_bad is not None:
            bad = options.bad = _lib.BadFunction(lambda _arg, found: self_bad(_made(found.contents)))
        if lib.ddpfs_stage_open(self._dataset, ctypes.byref(options), ctypes.byref(error),
                                ctypes.byref(pointer)) < 0:
            _raise(error)
        opened = _Open(lib, pointer)
        opened.bad = bad  # keeps the callback while the library may call it
        self._route = opened.route()
        log.info("%s: %s", self.dataset, self._route)
        return opened

    def _call(self, function, *arguments):
        """Calls a function of the library that takes flags, an error and the output last.  Returns the batch, or
        None, or raises StageError.  Ctrl-C comes to the main thread, so there a wait for memory that batches hold
        is cut into short ones."""
        flags = _lib.BRIEFLY if threading.current_thread() is threading.main_thread() else 0
        flags |= 0 if self._open().ordinal >= 0 else _lib.LEND  # torch gets host memory and has no read-only tensors
        opened, error, out = self._open(), _lib.Error(), ctypes.POINTER(_lib.Batch)()
        call, warn_at = getattr(opened.lib, function), None
        while (rc := call(opened.pointer, *arguments, flags, ctypes.byref(error), ctypes.byref(out))) == -errno.EAGAIN:
            now = time.monotonic()
            warn_at = warn_at or now + WARN_AFTER_S
            if now >= warn_at:
                warnings.warn(f"{error.text.decode(errors='replace')}; it has waited {WARN_AFTER_S} s: let go of batches and "
                              "of what was made of them, or open the stage with more memory=", RuntimeWarning, stacklevel=3)
                warn_at = math.inf
        if rc < 0:
            _raise(error)
        return Batch(_Held(opened, out)) if rc else None

    def next(self, n=None):
        """Gives the next n samples as a Batch, fewer at the end of the epoch, then None.  Releases the
        interpreter's lock while it waits."""
        return self._call("ddpfs_stage_next", self.batch if n is None else _number("n", n, 1, _lib.BATCH_MAX))

    def get(self, path):
        """Gives one file, by its path in the dataset, as a batch of one."""
        return self._call("ddpfs_stage_get", _word("path", path))

    def skip(self, n):
        """Passes over the next n samples, for example over a batch with a damaged one."""
        opened = self._open()
        opened.lib.ddpfs_stage_skip(opened.pointer, _number("n", n))

    @property
    def position(self):
        """(epoch, samples handed out of it, samples that this rank has in it)"""
        opened, values = self._open(), [ctypes.c_uint64() for _ in range(3)]
        opened.lib.ddpfs_stage_position(opened.pointer, *map(ctypes.byref, values))
        return tuple(v.value for v in values)

    def set_epoch(self, epoch):
        """Goes to the beginning of an epoch."""
        opened, error = self._open(), _lib.Error()
        if opened.lib.ddpfs_stage_set_epoch(opened.pointer, _number("epoch", epoch), ctypes.byref(error)) < 0:
            _raise(error)

    def __iter__(self):
        epoch, turn, turns = self.position
        if turns and turn == turns:
            self.set_epoch(epoch + 1)
        return self._batches()

    def _batches(self):
        while True:
            batch = self.next()
            if batch is None or (self.drop_last and batch.n_turns < self.batch):
                return
            yield batch
            del batch  # so the consumer has the only reference while the next batch is awaited

    def __len__(self):
        """The number of batches of the present epoch, since its `start`."""
        return self.batches(self.position[0])

    def batches(self, epoch):
        """The number of batches of an epoch."""
        opened, turns = self._open(), ctypes.c_uint64()
        code = opened.lib.ddpfs_stage_turns(opened.pointer, _number("epoch", epoch), ctypes.byref(turns))
        if code < 0:
            raise StageError(code, f"epoch {epoch}: {os.strerror(-code)}")
        return turns.value // self.batch if self.drop_last else -(-turns.value // self.batch)

    def state_dict(self):
        """The state from which training goes on, if every rank has trained every batch handed out so far.  If you
        trained fewer, use state_after(batch)."""
        epoch, turn, _ = self.position
        return {"ddpfs": self._state(epoch, turn)}

    def state_after(self, batch):
        """The state from which training goes on after this batch, if every rank has trained it."""
        return {"ddpfs": self._state(batch.epoch, batch.turn + batch.n_turns)}

    def _state(self, epoch, turns):
        opened, buf = self._open(), ctypes.create_string_buffer(_lib.STATE_MAX)
        rc = opened.lib.ddpfs_stage_state(opened.pointer, epoch, turns, buf, len(buf))
        if rc < 0:
            raise StageError(rc, f"no state after {turns} samples of epoch {epoch}: {os.strerror(-rc)}")
        return buf.value.decode()

    def load_state_dict(self, state):
        """Goes to where a job with any number of ranks took this state.  Options that this stage was made with
        (order, deal, tail, seed, subdir, groups, redeal) must be those of the state."""
        text = state.get("ddpfs") if isinstance(state, dict) else None
        if not isinstance(text, str) or "\0" in text:
            raise ValueError(f"{str(state)[:80]!r} is no state of a stage: give what state_dict() or state_after() gave")
        opened, error = self._open(), _lib.Error()
        if opened.lib.ddpfs_stage_resume(opened.pointer, text.encode(), ctypes.byref(error)) < 0:
            _raise(error)

    def stats(self):
        opened, stats = self._open(), _lib.Stats()
        opened.lib.ddpfs_stage_stats_get(opened.pointer, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in _lib.Stats._fields_}

    @property
    def route(self):
        """The way of a sample's bytes, in words.  The log "ddpfs" has it too, at INFO, when the stage is opened."""
        return self._route if self._closed and self._route else self._open().route()

    def close(self):
        """Closes the library's stage when the last batch is gone.  This Stage cannot be used after it."""
        self._closed = True
        self._opened = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getstate__(self):
        return {**self.__dict__, "_opened": None}
