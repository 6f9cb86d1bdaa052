# SPDX-License-Identifier: Apache-2.0
"""Announces to a mount what a PyTorch DataLoader will open: a forked copy of the trainer draws ahead of it.

When a loader's epoch draws its first index, the process forks.  The child has a copy of the sampler in its present
state, and of every random state.  It draws on, tells the mount's server the files (Mount.follow), and ends.  So nothing
of the trainer changes: no sampler, no random state, no worker.  The trainer compares its own draws with the child's.
At the first difference (a sampler that depends on losses, say) the announcement ends.

A sampler without end may draw from a global random state again and again (`while True: yield from torch.randperm(n)`),
and the training draws from the same state meanwhile.  So, after a first difference, a second copy is made, of the sampler
as it is then.  That one stops before the first draw that takes from a global random state.  When the trainer has made
this draw, the next such copy is made, and its announcement continues the list.

    trainer   draws, compares  <-- indices (shared memory), how many (pipe) --  child   draws ahead, announces

The child can do no harm.  It has no descriptor of the trainer.  It cannot change shared memory, nor files (Landlock, if
the kernel has it).  It prints nothing, and signals have their default effect on it.  It ends with the epoch, with the
trainer, and when it is wrong.

Nothing of install() raises in the trainer or prints, but one warning for a loader that the trainer follows itself, if
none of its files lies on a mount.  The mount of `ddpfs exec` and those of the loader's files are told why nothing is
announced (order_note of `ddpfs stat`).  DDPFS_DEBUG=1 prints it."""

import ctypes
import errno
import fcntl
import functools
import gc
import importlib
import json
import mmap
import os
import pickle
import random
import resource
import secrets
import signal
import struct
import sys
import threading
import time
import warnings
import weakref
from array import array
from operator import index as as_int

from .dataset_lists import innermost, listed
from .index_files import Search, numbered
from .mount import Mount
from .sample_paths import Places, Reader, Trial

RING = 1 << 22  # indices that the child may be ahead of the trainer; 8 bytes each, used as they are needed
ROOTS_BYTES = 1 << 16  # for the paths of mounts
NOTE_BYTES = 1 << 20  # for what the child found out about files
LATEST_MAX = 1 << 18  # indices that the child may be ahead of the trainer while it finds out what items open
SEARCH_AHEAD = 1024  # the same while it is searched which files the indices mean
SEARCH_S = 0.02  # between two looks of a search
FIRST_PIECE, PIECE = 1024, 4096  # indices of an announcement; the next one is ready before a fast trainer needs it
WINDOW, WINDOW_S = 16384, 0.5  # so much is announced, or so long, before items are read to find out what else they open
PIECE_S = 0.05  # a sampler that draws slowly is announced in smaller pieces
WRONG_MAX = 2  # a sampler that was wrong, or a dataset whose files were not found out, in so many epochs is left alone
STRETCH_MIN = 128  # draws; a copy that agreed for fewer has no successor in the same epoch
ENDED, NO_FILES, UNSURE = 0, -1, -2  # what the child says, besides the number of its draws

_COUNT = struct.Struct("q")
_DEBUG = os.environ.get("DDPFS_DEBUG", "") not in ("", "0")
_token = secrets.token_hex(4)  # two containers can have processes of the same number

# Why nothing is announced, and what helps.
TELL_PATHS = "call ddpfs.torch.follow(loader, paths=...)"
NO_INDICES = f"an IterableDataset ({{}}) has no indices: {TELL_PATHS} with a function that returns an epoch's paths"
NO_FILE = f"no file of the mount is found for an index of the dataset ({{}}): {TELL_PATHS} with a function from index to path"
NO_FILE_FOLLOWED = ("no file of a ddpfs mount is found for an index, so nothing is read ahead: give paths=, a function from "
                    "an index to its path below a mountpoint; 'ddpfs ls' shows them")
ELSEWHERE = "the files of the dataset's list ({}) are not on the mount: make it of paths below the mountpoint"
NO_PATHS = "paths= of ddpfs.torch.follow gave no path below the mountpoint: 'ddpfs ls' shows mountpoints"
DIFFERS = ("the sampler ({}) did not draw what its copy drew, as if it depends on the training: "
           "announce with ddpfs.Mount(MNT).follow(...)")
AT_ONCE = ("the sampler ({}) drew other indices than its copy from the first draw on, as with a random generator that nobody "
           "seeds: seed it, or make it in __init__ and not in __iter__")
FAILED = f"the copy of the sampler failed ({{}}): {TELL_PATHS}, or announce with ddpfs.Mount(MNT).follow(...)"
PATHS_FAILED = "paths= of ddpfs.torch.follow failed ({}): mend that, or announce with ddpfs.Mount(MNT).follow(...)"


def _debug(what):
    if _DEBUG:
        print(f"ddpfs: {what}", file=sys.stderr, flush=True)


def _ended_by(number):
    """Why a child has failed that could not say it."""
    if number is None:
        return "it ended without a reason"
    hints = {signal.SIGSEGV: "; a copy cannot write to shared memory", signal.SIGKILL: ", as when memory runs out"}
    return f"ended by signal {number}, {signal.strsignal(number)}{hints.get(number, '')}"


def _kind(thing):
    return type(thing).__name__


def _tell_why(name, why, roots):
    for root in dict.fromkeys([*filter(None, [os.environ.get("DDPFS_MOUNT")]), *roots]):
        try:
            Mount(root)._announces_nothing(name, why)
        except Exception as error:
            _debug(f"{name}: {error}")


def _say_why(name, why, roots=()):
    """Has the mounts say why nothing is announced.  A server that hangs does not hold up the trainer."""
    _debug(f"{name}: nothing is announced: {why}")
    if roots or os.environ.get("DDPFS_MOUNT"):
        threading.Thread(target=_tell_why, args=(name, why, roots), name="ddpfs-why", daemon=True).start()


def _number(index):
    """A number of an index; the same in parent and child."""
    if type(index) is int:
        return index
    if hasattr(index, "item"):  # a tensor, whose own hash is its address
        index = index.item()
    return hash(index)


def _is_batch(drawn):
    """Whether a draw is several indices, also where the loader does not know: batch_size=None and a batch sampler."""
    return isinstance(drawn, list) or getattr(drawn, "ndim", 0) == 1


def _items(drawn, batched):
    """The indices of one draw."""
    if not batched and not _is_batch(drawn):
        return [drawn]
    return drawn.tolist() if hasattr(drawn, "tolist") else list(drawn)


class _Shared:
    """Memory of parent and child.  `index` is a ring of the child's draws.  `used` is how many of them the parent has
    compared.  `searches` is 1 while the child searches which files the indices mean.  The mounts that the child has
    told stand behind them, and what it found out about files."""

    def __init__(self):
        end = 8 * (RING + 3)
        memory = memoryview(mmap.mmap(-1, end + ROOTS_BYTES + NOTE_BYTES))
        words = memory[:end].cast("q")
        self.used, self._noted, self.searches, self.index = words[:1], words[1:2], words[2:3], words[3:]
        self._roots, self._note, self._end = memory[end:end + ROOTS_BYTES], memory[end + ROOTS_BYTES:], 0

    def address(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self._roots))

    def add_root(self, root):
        text = os.fsencode(root) + b"\0"
        if self._end + len(text) <= ROOTS_BYTES:
            self._roots[self._end:self._end + len(text)] = text
            self._end += len(text)

    def note(self, kind, value):
        """For later epochs: "whole", what a Reader saw, "numbers", what a Search found, or "failed", why it failed."""
        text = json.dumps([kind, value]).encode()
        if len(text) <= NOTE_BYTES:
            self._note[:len(text)] = text
            self._noted[0] = len(text)  # last, as the child may be ended at any point

    def noted(self):
        """What was noted: (kind, value), or None."""
        return tuple(json.loads(bytes(self._note[:self._noted[0]]))) if self._noted[0] else None

    def drawn(self, begin, end):
        """The child's draws of these numbers."""
        return [self.index[i % RING] for i in range(max(0, begin), end)]

    def roots(self):
        return list(dict.fromkeys(os.fsdecode(root) for root in bytes(self._roots).split(b"\0") if root))


# The child


def _make_shared_memory_read_only(libc, keep):
    """All but the mapping that holds the address `keep`."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights = line.split(None, 2)[:2]
            if rights[1] == "w" and rights[3] == "s":
                begin, end = (int(part, 16) for part in span.split("-"))
                if not begin <= keep < end:
                    libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.PROT_READ)


def _forbid_changes_of_files(libc):
    """landlock(7): no right to write, make or remove a file.  /dev/null may be written: subprocess opens it."""
    create, add_rule, restrict = 444, 445, 446  # system calls; the same numbers on all architectures
    version = libc.syscall(create, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    rights = 0x1FFF & ~0b1101  # all of version 1 but EXECUTE, READ_FILE and READ_DIR
    rights |= (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)  # REFER, TRUNCATE
    ruleset = libc.syscall(create, ctypes.byref(ctypes.c_uint64(rights)), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return
    null = os.open(os.devnull, os.O_RDONLY)
    libc.syscall(add_rule, ruleset, 1, struct.pack("=Qi", 1 << 1, null), 0)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    libc.syscall(restrict, ruleset, 0)
    os.close(null)
    os.close(ruleset)


def _confine(parent, pipe, keep):
    """Makes this forked process one that can do no harm.  Returns the descriptor of the pipe."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(0)
    os.setpgid(0, 0)  # a Reader's processes are found by it, Copy.close()
    libc.prctl(15, b"ddpfs-copy", 0, 0, 0)  # PR_SET_NAME
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    pipe = fcntl.fcntl(pipe, fcntl.F_DUPFD, 4)  # it may be 0 to 3 if the trainer has closed them
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1) if _DEBUG else (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(pipe, 3, inheritable=False)
    if hasattr(libc, "close_range"):
        libc.close_range(4, 0x7FFFFFFF, 0)
    else:
        os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass
    _make_shared_memory_read_only(libc, keep)
    _forbid_changes_of_files(libc)
    return 3


def _random_states():
    """The global random states of this process, as something to compare."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    of_torch = torch and torch.get_rng_state()
    return (random.getstate(), torch and ctypes.string_at(of_torch.data_ptr(), of_torch.numel()),
            numpy and pickle.dumps(numpy.random.get_state()))


class _RandomStates:
    """Puts the random states of this process back at the end of a `with` block."""

    def __enter__(self):
        self._torch, self._numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        self._kept = (random.getstate(), self._torch and self._torch.get_rng_state(),
                      self._numpy and self._numpy.random.get_state())

    def __exit__(self, *_):
        random.setstate(self._kept[0])
        if self._torch:
            self._torch.set_rng_state(self._kept[1])
        if self._numpy:
            self._numpy.random.set_state(self._kept[2])


class _Child:
    """Draws, tells the servers the files, and tells the parent the indices.

    draws, batched   the sampler's iterator, and whether it draws lists
    dataset          or None: draws are paths
    paths            the function from an index to a path or several; or None: to be found out
    known            what an earlier epoch's child has noted, or None
    wary             it stops before a draw that takes from a global random state
    continued        roots of mounts whose list is there already"""

    def __init__(self, name, shared, pipe, draws, batched, dataset, paths, known, wary, continued):
        self._name, self._shared, self._pipe = name, shared, pipe
        self._draws, self._batched, self._dataset, self._paths = draws, batched, dataset, paths
        self._places, self._mounts, self._n, self._in_lists = Places(), {}, 0, False
        kind, value = known or (None, None)
        self._trial, self._some, self._whole, self._reader = None, (), dict(value) if kind == "whole" else None, None
        self._numbers, self._search = value if kind == "numbers" else None, None
        self._innermost, self._inner_index = innermost(dataset)  # a server numbers the files of the whole dataset
        self._looks, self._latest = False, []  # whether it is to be found out what items open; what was announced since
        self._wary, self._unsure, self._begun, self._began = wary, False, set(continued), time.monotonic()

    def run(self):
        if self._dataset is None:
            self._paths = lambda path: path
        size, more, any_drawn = FIRST_PIECE, True, False
        while more:
            indices, more = self._draw(size)
            if not indices:
                break
            any_drawn = True
            if not self._knows_files() and not self._find_paths(indices) and not self._begin_search(indices):
                self._say(NO_FILES)
                return
            self._publish(indices)
            self._look_further(lambda: self._n - self._shared.used[0] > LATEST_MAX)
            if not self._go_on_searching(more):
                self._say(NO_FILES)
                return
            size = min(size * 2, PIECE)
        self._say(NO_FILES if any_drawn and not self._mounts else UNSURE if self._unsure else ENDED)
        self._look_further(lambda: True)

    def _draw(self, size):
        """Returns the next indices, about `size`, and whether there may be more."""
        indices, began, states = [], None, self._wary and _random_states()
        while began is None or len(indices) < size and time.monotonic() - began < PIECE_S:
            try:
                drawn = next(self._draws)
                if self._wary and _random_states() != states:
                    self._unsure = True
                    return indices, False
                self._in_lists = not self._batched and _is_batch(drawn)
                indices += _items(drawn, self._batched)
                began = began or time.monotonic()  # the first draw may shuffle, and takes as long as all others
            except StopIteration:
                return indices, False
        return indices, True

    def _knows_files(self):
        return bool(self._paths or self._search or self._numbers)

    def _find_paths(self, indices):
        """Decides how an index becomes a path.  Returns whether there is a way.

        If a list or a first open tells it, that goes out at once: to find out whether items have more files takes longer,
        and goes on beside (_look_further)."""
        some = indices[0], next((i for i in indices if i != indices[0]), indices[0]), indices[-1]
        try:
            some = tuple(map(as_int, some))
            size = len(self._dataset)
            some += 0, size // 2, size - 1
        except Exception:
            pass  # a dataset need not have a length, and an index need not be a number
        with _RandomStates():
            self._trial = trial = Trial(self._dataset, self._places, self._in_lists)
            self._some = some = (*some, *trial.spread()) if type(some[0]) is int else some
            self._paths = trial.by_list(some[:2])
            if self._whole and trial.still_opens(self._whole):  # an earlier epoch has read them
                self._learn(self._whole)
                return self._paths is not None
            if self._paths is None:
                self._reader = reader = Reader(trial, some)
                reader.is_over(lambda: not reader.has_seen())
                if reader.has_seen():
                    self._paths = trial.learn(some, {})
        self._looks = True
        if self._paths is None and reader.is_over(lambda: True):
            self._look_further()
        return self._paths is not None

    def _learn(self, whole):
        """Decides by what a Reader saw.  Returns whether that is news."""
        if self._paths is not None and max(map(len, whole.values())) < 2:
            return False
        with _RandomStates():
            learned = self._trial.learn(self._some, whole)
        news = learned is not None and (self._paths is None or self._trial.several)
        if news:
            self._paths = learned
        return news

    def _look_further(self, wait=lambda: False):
        """Takes notice if the items are read that tell whether an item has several files.  Has them read, if they are not,
        and a first window is announced (or wait() is true)."""
        soon = len(self._latest) < WINDOW and time.monotonic() < self._began + WINDOW_S and not wait()
        if self._looks and self._reader is None and not soon:
            with _RandomStates():
                self._reader = Reader(self._trial, self._some)
        if self._reader is None or not self._reader.is_over(wait):
            return
        self._looks = False
        whole, self._reader = self._reader.whole, None
        if all(type(i) is int for i in whole):
            self._shared.note("whole", list(whole.items()))
        latest = self._latest[max(0, self._shared.used[0] - FIRST_PIECE):]
        self._latest = []
        if self._learn(whole) and latest:
            self._begun.clear()  # the list begins anew, where the trainer is
            self._announce(latest)

    def _begin_search(self, indices):
        """Has the servers search which files the indices mean.  Returns whether they can."""
        try:
            size = len(self._innermost)
            for i in indices:
                self._inner_index(i)
        except Exception:  # the dataset has other indices, or no length
            return False
        self._search = Search(size)
        self._shared.searches[0] = 1
        return not self._search.in_vain

    def _go_on_searching(self, more):
        """Searches until the trainer needs further draws, or until it is known which files the indices mean.  Returns
        False if that cannot be found out."""
        used = self._shared.used
        while self._search and (not more or self._n - used[0] > SEARCH_AHEAD):
            search, drawn = self._search, used[0]  # a server that was replaced begins another search
            search.go_on(drawn, lambda n, drawn=drawn: map(self._inner_index, self._shared.drawn(drawn - n, drawn)))
            if search.in_vain:
                return False
            if search.root is None:
                time.sleep(SEARCH_S)
                continue
            self._search, self._numbers = None, (search.root, search.name)
            self._shared.searches[0] = 0
            self._shared.note("numbers", self._numbers)
            self._announce(self._shared.drawn(used[0] - FIRST_PIECE, self._n))
        return True

    def _publish(self, indices):
        """Tells the servers and the parent."""
        if not self._search:
            self._announce(indices)
        if self._looks:
            self._latest += indices
        if self._dataset is not None:
            self._tell(indices)

    def _resolve(self, indices):
        """Returns {mount: paths in it} of these indices."""
        found = {}
        for index in indices:
            paths = self._paths(index)
            for path in paths if isinstance(paths, (list, tuple)) else (paths,):
                there = path is not None and self._places.find(path)
                if there:
                    found.setdefault(there[0], []).append(there[1])
        return found

    def _announce(self, indices):
        if self._numbers:
            self._announce_numbers(indices)
            return
        with _RandomStates():
            found = self._resolve(indices)
        for root, names in found.items():
            self._follow(root, names, skip_unknown=True)

    def _announce_numbers(self, indices):
        root, name = self._numbers
        try:
            self._follow(root, array("q", map(self._inner_index, indices)), files=numbered(root, name))
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._numbers = None  # the server was replaced, and its successor has no numberings
            self._begun.discard(root)
            self._begin_search(indices)

    def _follow(self, root, order, **how):
        if root not in self._mounts:
            self._mounts[root] = Mount(root)
            self._shared.add_root(root)
        while True:
            try:
                self._mounts[root].follow(order, list=self._name, append=root in self._begun, **how)
                self._begun.add(root)
                break
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                time.sleep(0.2)  # there is room when the trainer has read some

    def _tell(self, indices):
        for index in indices:
            while self._n - self._shared.used[0] >= RING:
                self._say(self._n)
                time.sleep(0.05)
            self._shared.index[self._n % RING] = _number(index)
            self._n += 1
        self._say(self._n)

    def _say(self, count):
        os.write(self._pipe, _COUNT.pack(count))


# The parent


class Copy:
    """One epoch of a loader, or a part of it, announced by a child.  Its functions are for the loader's thread.

    wrong      the draws differ from the child's, or the child has failed
    failed     the child has failed
    told       why, if the child has said it to the mounts
    killed_by  the number of the signal that has ended the failed child, or None
    at_once    the first draw differed already
    stopped    all was compared, and the child has stopped before a draw that nobody can know beforehand
    no_files   the child found no file of a ddpfs mount
    unfound    the epoch ended while the child was still searching which files the indices mean
    agreed     draws that were the child's, too"""

    def __init__(self, name, wary=False, continues=None):
        """wary: it stops before a draw that takes from a global random state.  continues: the Copy before it."""
        self.wary, self.wrong, self.stopped, self.no_files, self.unfound = wary, False, False, False, False
        self.failed, self.told, self.killed_by, self._failed = False, None, None, FAILED
        self.at_once, self.agreed, self.roots = False, 0, ()
        self._name, self._child, self._shared, self._pipe, self._dataset = name, None, None, None, None
        self._pending, self._known, self._ended, self._unsure, self._before = [], 0, False, False, continues

    def start(self, draws, batched, dataset, paths):
        """Forks a _Child with these arguments."""
        self._shared, self._dataset = _Shared(), dataset
        self._failed = PATHS_FAILED if dataset is None else FAILED
        self._pipe, child_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        before, self._before = self._before, None
        for root in before.roots if before else ():
            self._shared.add_root(root)
        continued = before.roots if before and before.stopped else ()
        work = draws, batched, dataset, paths, _recall(dataset), self.wary, continued
        if "numpy" in sys.modules:  # it is imported at its first use, and then has a random state of its own
            importlib.import_module("numpy.random")
        state, parent = random.getstate(), os.getpid()  # the module random gives a forked child another state
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until the child has no handlers
        try:
            pid = os.fork()
            if pid == 0:
                self._be_the_child(parent, state, child_end, *work)
            self._child, self._group = self._pidfd(pid), pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(child_end)

    @staticmethod
    def _pidfd(pid):
        try:
            return os.pidfd_open(pid)
        except (AttributeError, OSError):  # a kernel, a sandbox or a Python without it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def _be_the_child(self, parent, state, pipe, *work):
        try:
            gc.disable()
            pipe = _confine(parent, pipe, self._shared.address())
            random.setstate(state)
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(1)  # OpenMP's threads are not in a forked child
            _Child(self._name, self._shared, pipe, *work).run()
        except BaseException as error:  # whatever it is, the trainer's code must not go on in this process
            why = self._failed.format(f"{_kind(error)}: {error}"[:100])
            _debug(f"{self._name}: {why}")
            self._shared.note("failed", why)
            _tell_why(self._name, why, self._shared.roots())
        finally:
            os._exit(0)

    def drew(self, indices):
        """Compares what the loader has drawn itself."""
        if self._pipe is None:
            return
        self._pending += indices if set(map(type, indices)) == {int} else map(_number, indices)
        while self._pending:
            if self._known == self.agreed and not self._hear():
                break
            place = self.agreed % RING
            n = min(len(self._pending), self._known - self.agreed, RING - place)
            if n == 0 and self._unsure:
                self.stopped = True
                self.close()
                return
            if n == 0 or self._shared.index[place:place + n].tolist() != self._pending[:n]:
                _debug(f"{self._name}: draw {self.agreed} or soon after: the sampler differs from its copy")
                self.wrong = True
                self.at_once = n > 0 and self.agreed == 0 and self._shared.index[0] != self._pending[0]
                self.close()
                return
            del self._pending[:n]
            self.agreed += n
            self._shared.used[0] = self.agreed
        if len(self._pending) > RING:
            self.close()

    def over(self):
        """Compares what the loader has drawn last.  Returns whether the child has ended: it has announced all, and
        knows what items open, for the next epoch, too."""
        self.drew([])
        if not self._pending and self._pipe is not None:
            self._hear()
        return self._pipe is None or self._ended and not self._pending and self._has_ended()

    def _has_ended(self):
        try:
            return not os.read(self._pipe, _COUNT.size)
        except BlockingIOError:
            return False

    def listen(self):
        """Takes notice if the child found no files, or has failed.  For draws that nothing compares."""
        if self._pipe is not None:
            self._hear()

    def why_failed(self):
        return self.told or self._failed.format(_ended_by(self.killed_by))

    def _hear(self):
        """Reads what the child has said.  Returns whether there is something to compare with: draws, or an end."""
        if self._ended:
            return True
        try:
            said = os.read(self._pipe, 512 * _COUNT.size)
        except BlockingIOError:
            return False
        counts = [count for (count,) in _COUNT.iter_unpack(said)]
        self.no_files = NO_FILES in counts
        if not counts or self.no_files:  # nothing: the child has failed
            self.wrong, self.wary = not counts, True  # no other copy would do better
            self.failed = not counts
            self.close()
            self._pending.clear()
            return False
        self._unsure = counts[-1] == UNSURE
        self._ended = self._unsure or counts[-1] == ENDED
        self._known = max(self._known, *counts)
        return self._ended or self._known > self.agreed

    def close(self):
        """Ends the child."""
        child, pipe, shared = self._child, self._pipe, self._shared
        self._child = self._pipe = self._shared = None
        if child is not None:
            try:
                signal.pidfd_send_signal(child, signal.SIGKILL)
                ended = os.waitid(os.P_PIDFD, child, os.WEXITED)
                if self.failed and ended.si_code != os.CLD_EXITED:  # it was ending before SIGKILL
                    self.killed_by = ended.si_status
                while True:  # a Reader's process, if this process is the reaper of its container
                    os.waitpid(-self._group, 0)
            except OSError:
                pass  # somebody else has waited for it
            os.close(child)
        if pipe is not None:
            os.close(pipe)
        if shared is not None:
            self.roots = shared.roots()
            kind, value = noted = shared.noted() or (None, None)
            if kind == "failed":
                self.told = value
            elif kind:
                _remember(self._dataset, noted)
            self.unfound = bool(shared.searches[0]) and self.agreed > 0

    def forget(self):
        """Ends the child.  The servers shall read nothing more ahead of what it has told them."""
        self.close()
        if self.roots:  # a server that hangs does not hold up the trainer
            threading.Thread(target=_forget, args=(self.roots, self._name), name="ddpfs-forget", daemon=True).start()


def _forget(roots, name):
    for root in roots:
        try:
            Mount(root).unfollow(list=name)
        except Exception as error:
            _debug(f"{name}: {error}")


# The loaders


_wrong = weakref.WeakKeyDictionary()  # sampler or dataset: epochs in which it was wrong
_why = weakref.WeakKeyDictionary()  # sampler or dataset that is left alone: why
_lies_on_ddpfs = weakref.WeakKeyDictionary()  # dataset: whether
_known = weakref.WeakKeyDictionary()  # dataset: what a child has noted
_names = set()  # numbers of lists that iterators have


def _count_wrong(thing, by=0):
    """Adds to the count and returns it.  What has no weak references has no count."""
    try:
        _wrong[thing] = _wrong.get(thing, 0) + by
        return _wrong[thing]
    except TypeError:
        return 0


def _blame(thing, by, why):
    if _count_wrong(thing, by) > 0:
        _why[thing] = why


def _remember(dataset, known):
    try:
        _known[dataset] = known
        _wrong.pop(dataset, None)
    except TypeError:
        pass  # a list, say: the next epoch reads again


def _recall(dataset):
    try:
        return _known.get(dataset)
    except TypeError:
        return None


def _may_lie_on_ddpfs(dataset):
    """False if the dataset's own list says that its files lie elsewhere; True if there is no list of whole paths."""
    try:
        if dataset in _lies_on_ddpfs:
            return _lies_on_ddpfs[dataset]
        by_list, places = listed(dataset), Places()
        some = by_list and [os.fsdecode(by_list(i)) for i in (0, len(dataset) - 1)]
        lies = not some or any(not path.startswith("/") or places.find(path) for path in some)
        _lies_on_ddpfs[dataset] = lies
        return lies
    except Exception:
        return True  # the child finds out


class _Announcing:
    """What is announced for one iterator of a loader, epoch after epoch."""

    def __init__(self, paths, warn=lambda why: None):
        self._paths, self._warn, self._draws, self._dataset, self._copy = paths, warn, None, None, None
        self._pid, self._differed = os.getpid(), False  # whether a copy before this one was wrong in this epoch
        self._over = False  # all is drawn
        self._number = next(i for i in range(len(_names) + 1) if i not in _names)
        _names.add(self._number)

    def _name(self):
        return f"torch-{os.getpid()}-{_token}-{self._number}"

    def say(self, why, roots=()):
        _say_why(self._name(), why, roots)

    def before(self, iterator, is_map):
        """The iterator is about to draw: an epoch begins if it draws from a new iterator of the sampler."""
        if iterator._sampler_iter is self._draws:
            return
        self.end()
        self._draws, self._dataset, self._differed = iterator._sampler_iter, iterator._dataset, False
        self._over = False
        for one in iterator._index_sampler, iterator._dataset:
            if _count_wrong(one) >= WRONG_MAX:
                self.say(_why[one])
                return
        paths = self._paths
        if is_map and (paths is not None or _may_lie_on_ddpfs(iterator._dataset)):
            work = self._draws, iterator._auto_collation, iterator._dataset, paths
        elif not is_map and paths is not None:
            with _RandomStates():  # it may shuffle.  In this process, as it may count epochs
                work = iter(paths() if callable(paths) else paths), False, None, None
        else:
            if not is_map or not _why:  # a list of other files is a lesser reason than all others
                self.say((ELSEWHERE if is_map else NO_INDICES).format(_kind(iterator._dataset)))
            self._warn("the files of the dataset's list lie on no ddpfs mount, so nothing is read ahead: make the "
                       "dataset of paths below a mountpoint; 'ddpfs ls' shows them")
            return
        self._copy = Copy(self._name())
        self._copy.start(*work)

    def _go_on(self, iterator):
        """Has a copy made of the sampler as it is now."""
        before = self._copy
        self._differed = self._differed or before.wrong
        self._copy = Copy(self._name(), True, before)
        self._copy.start(self._draws, iterator._auto_collation, iterator._dataset, self._paths)

    def after(self, iterator, drawn, is_map):
        copy = self._copy
        if copy is None:
            return
        if is_map:
            copy.drew(_items(drawn, iterator._auto_collation))
        else:
            copy.listen()
        if (copy.stopped or copy.wrong and not copy.wary) and copy.agreed >= STRETCH_MIN:
            self._go_on(iterator)
            return
        self._judge(copy, iterator)

    def _judge(self, copy, iterator):
        """Says why nothing more is announced, if the copy is of no use any more."""
        why = NO_PATHS if self._paths is not None else NO_FILE.format(_kind(iterator._dataset))
        sampler = getattr(iterator._index_sampler, "sampler", iterator._index_sampler)
        if copy.no_files:
            _blame(iterator._dataset, WRONG_MAX, why)
        elif copy.stopped and not copy.agreed and self._differed:  # no copy can go on
            self.say(DIFFERS.format(_kind(sampler)), copy.roots)
        elif copy.wrong:
            why = (copy.why_failed() if copy.failed
                   else (AT_ONCE if copy.at_once else DIFFERS).format(_kind(sampler)))
            _blame(iterator._index_sampler, 1, why)
        if copy.no_files or copy.wrong and not (copy.failed and copy.told):
            self.say(why, copy.roots)
        if copy.wrong or copy.no_files or copy.stopped and not copy.agreed:
            copy.forget()
        if copy.wrong or copy.no_files or copy.stopped:
            self._copy = None
        if copy.no_files and self._paths is None:
            self._warn(NO_FILE_FOLLOWED)
        elif copy.no_files:
            self._warn("paths= gave no path below a ddpfs mountpoint, so nothing is read ahead: 'ddpfs ls' shows the "
                       "mountpoints")

    def over(self, iterator, is_map):
        """All is drawn.  A short epoch is drawn at once, and workers read it while the child still announces it.  This
        is called again for each batch that they bring."""
        copy, self._over = self._copy, True
        if copy is None or os.getpid() != self._pid:
            return
        if is_map and iterator._num_workers > 0:
            if not copy.over():
                return
            self._judge(copy, iterator)
        self.end()

    def end(self, forget=False):
        copy, self._copy = self._copy, None
        if copy is not None and os.getpid() == self._pid:  # a worker is a forked copy of all this
            copy.forget() if forget or copy.wary and not copy.agreed else copy.close()
            if copy.unfound:
                part = min(1, copy.agreed / STRETCH_MIN)  # a loop that was left early shows little
                _blame(self._dataset, part, NO_FILE.format(_kind(self._dataset)))
            if copy.unfound and _count_wrong(self._dataset) >= WRONG_MAX:
                self._warn(NO_FILE_FOLLOWED)

    def __del__(self):
        if not sys.is_finalizing():
            _names.discard(self._number)
            self.end(forget=not self._over)  # the loop was left before its end


class _Hook:
    """What the functions that install() puts in place know.  One of a process: the first copy of this file makes it."""

    def __init__(self):
        self.automatic, self.options, self.warned = False, weakref.WeakKeyDictionary(), weakref.WeakSet()

    def of(self, loader):
        """What is announced for a new iterator of the loader, or None."""
        if loader in self.options:
            return _Announcing(self.options[loader], functools.partial(self._warn_once, weakref.ref(loader)))
        return _Announcing(None) if self.automatic else None

    def _warn_once(self, reference, why):
        loader = reference()
        if loader is not None and loader not in self.warned:
            self.warned.add(loader)
            warnings.warn(f"ddpfs.torch.follow: {why}", stacklevel=2)


def watch(dataloader, loader, paths):
    """Announces this loader; ddpfs.torch.follow()."""
    install(dataloader).options[loader] = paths


def install(dataloader, automatic=False):
    """Watches loaders of the module torch.utils.data.dataloader: all, or those of watch()."""
    base = dataloader._BaseDataLoaderIter
    init, next_index = base.__init__, base._next_index
    hook = getattr(next_index, "_ddpfs", None) or _Hook()
    hook.automatic |= automatic
    if hasattr(next_index, "_ddpfs"):
        return hook

    def attempt(function, iterator, *arguments):
        is_map = True
        try:
            is_map = iterator._dataset_kind == dataloader._DatasetKind.Map
            function(iterator, *arguments, is_map)
        except Exception as error:
            iterator._ddpfs.say((FAILED if is_map else PATHS_FAILED).format(repr(error)[:100]))
            iterator._ddpfs.end(forget=True)

    @functools.wraps(init)
    def __init__(self, loader, *args, **kwargs):
        init(self, loader, *args, **kwargs)
        try:
            self._ddpfs = hook.of(loader)
        except Exception as error:
            _debug(f"nothing is announced: {error!r}")

    @functools.wraps(next_index)
    def _next_index(self):
        announcing = self.__dict__.get("_ddpfs")
        if announcing is None:
            return next_index(self)
        attempt(announcing.before, self)
        try:
            drawn = next_index(self)
        except StopIteration:
            attempt(announcing.over, self)
            raise
        except BaseException:
            announcing.end()
            raise
        attempt(announcing.after, self, drawn)
        return drawn

    _next_index._ddpfs = hook
    base.__init__, base._next_index = __init__, _next_index
    return hook
