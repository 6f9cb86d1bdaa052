# SPDX-License-Identifier: Apache-2.0
"""A mount from inside a program that learns its rank late (spawned workers, Ray, notebooks), and its resume state."""

import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from . import follow as _follow  # relative: the hook of `ddpfs exec` loads this file under another name

_numbers = itertools.count()
_token = os.urandom(4).hex()  # containers of one mount may have equal process IDs


# What the program says to a command line, and what it means to a caller in Python.
_IN_PYTHON = (
    (r"(?m)^Try ['`]ddpfs .*\n?", ""),
    (r"(?<!\S)-o (?=[a-z_]+=)", ""),  # add -o world=W
    (r"--turns\b|(?<=\")turns(?=\")", "trained"),
    (r"--epoch\b", "epoch"),
    (r"'ddpfs mount --help' lists the options", "ddpfs(1) lists the options"),
    (r"state file '/proc/self/fd/\d+'", "the text of state="),
    (r"remove it and give state=-FILE to begin", "give state=None to begin"),
)


def _in_python(text):
    for said, meant in _IN_PYTHON:
        text = re.sub(said, meant, text)
    return text.strip()


def _run(arguments, **kwargs):
    """Runs a program and returns its output.  RuntimeError: it failed; the text is the program's sentence, with the
    names that Python has for options.  If an exception (Ctrl-C) comes meanwhile, the program is ended: `ddpfs mount`
    then undoes what it has begun."""
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, **kwargs)
    try:
        out, err = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode != 0:
        raise RuntimeError(_in_python(err or out) or f"{' '.join(arguments)}: exit code {process.returncode}")
    return out


def _program(program=None):
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native", "bin", "ddpfs")  # of the wheel
    program = program or os.environ.get("DDPFS_PROGRAM") or shutil.which(bundled) or shutil.which("ddpfs")
    if program is None:
        raise FileNotFoundError("the ddpfs program is not in PATH: install ddpfs, or name it with program=")
    return os.fspath(program)


def _option(name, value):
    if value is True:  # fill_class=True, allow_other=True
        return name
    text = re.sub(r'([\\,"])', r"\\\1", str(value))
    return f"{name}={text}"


def _is_mounted(place):
    """Tells whether something is mounted there, by the kernel's list: also if its server hangs or has died."""
    place = os.fsencode(os.path.realpath(place))
    with open("/proc/self/mountinfo", "rb") as mounts:
        return any(line.split()[4].decode("unicode_escape").encode("latin-1") == place for line in mounts)


class Mount(type(Path())):
    """The directory of a rank's mount: a Path, with the mount's epoch and state.  mounted() gives one.  Under
    `ddpfs exec` it is Mount(os.environ["DDPFS_MOUNT"])."""

    _ddpfs = None
    _connection = None

    def _ctl(self, *words):
        return json.loads(_run([_program(self._ddpfs), "ctl", "--json", os.fspath(self), *map(str, words)]))

    @property
    def epoch(self):
        """The epoch that listings show; after a resume, the epoch that is not finished."""
        return self._ctl("epoch")["epoch"]

    def set_epoch(self, epoch):
        """Makes listings show this epoch from now on.  It does not advance by itself after this."""
        self._ctl("epoch", epoch)

    def _control_socket(self):
        """Finds the server by its stats.json: below the mountpoint, or in a mount of several ranks below each rank."""
        here, mountpoint = Path(os.path.realpath(self)), Path(os.path.realpath(_mountpoint(self)))
        within = [place for place in (here, *here.parents) if mountpoint in (place, *place.parents)]
        for place in (*within, *mountpoint.glob("rank*")):
            try:
                return json.loads((place / ".ddpfs" / "stats.json").read_text())["control"]
            except (FileNotFoundError, NotADirectoryError):
                continue
        raise OSError(errno.ENODEV, f"'{self}' is no ddpfs mount: give the mountpoint")

    def _follower(self):
        if self._connection is None:
            self._connection = _follow.Connection(_mountpoint(self), Mount(self)._control_socket)
        return self._connection

    def follow(self, order, *, list="default", append=False, files=None, dir=None, listing="sorted",
               skip_unknown=False, buffer=0):
        """Announces what will be opened, in this order, so that the mount reads it ahead.  Returns how many entries
        were announced.

        order         paths (absolute, or relative to the mount), or indices: any buffer of 4 or 8 byte integers
                      (numpy, array.array), or an iterable of ints.  A generator must end; it is announced in pieces.
        list          the name of the list: one for each rank or worker that opens its own files in an order of its own
        append        behind what this list holds, as for the next epoch; else the list begins anew
        files         what Mount.files() gave: indices are numbers of its paths
        dir, listing  without files: indices number the files below this directory of the mount.  "sorted": all
                      files by the bytes of their paths, as `find DIR -type f | LC_ALL=C sort`.  "imagefolder": the
                      images as torchvision's ImageFolder numbers them
        skip_unknown  leave out paths that are not in the mount, instead of ValueError
        buffer        how many paths the trainer's shuffle buffer holds (tf.data's shuffle(N) before files are read);
                      0: there is none, and the list is opened in its order.  The mount keeps what the buffer may
                      hold.  An append keeps the buffer of its list

        An announcement changes nothing but what is read ahead, so a wrong one costs time only.  ValueError: a path
        or an index that is not there; OSError: no server, or no room for so many entries (announce less ahead)."""
        follower = self._follower()
        request = {"list": list, "listing": "table" if files is not None else listing}
        if files is not None:
            request["table"] = files.name
        if dir is not None:
            request["dir"] = os.fsdecode(follower.relative(dir)).strip("/")
        if skip_unknown:
            request["skip_unknown"] = True
        if buffer:
            request["buffer"] = buffer
        renew = None
        if files is not None and files.paths is not None:  # a successor of the server has no tables
            renew = partial(self._announce_files, files)
        announced, how = 0, "append" if append else "replace"
        for data, form in _follow.pieces(order, follower.relative):
            announced += follower.announce({**request, "how": how, "form": form}, data, renew)["entries"]
            how = "append"
        if how != "append" or (append and announced == 0):
            raise ValueError("nothing is announced: the order is empty")
        return announced

    def _learn(self, indices, size):
        """Asks by which list a trainer numbers its `size` files, of which its sampler has drawn these indices (a buffer
        of 8 byte integers).  Returns {"found": True, "list": in words, "table": the name of the server's numbering}; or
        {"found": False, "more": whether later opens can show it}."""
        return self._follower().announce({"how": "learn", "size": size, "form": "u64"}, indices)

    def unfollow(self, list="default"):
        """Forgets a list: nothing more of it is read ahead."""
        _follow.check(self._follower().ask({"how": "end", "list": list}))

    def _announces_nothing(self, list, why):  # noqa: A002
        """Says in `ddpfs stat` why no order is announced.  The server takes 255 printable ASCII characters."""
        text = "".join(c if " " <= c <= "~" else " " for c in why)[:255]
        _follow.check(self._follower().ask({"how": "none", "list": list, "reason": text}))

    def _announce_files(self, files):
        follower = self._follower()
        _follow.check(follower.ask({"how": "table-end", "table": files.name}))
        for data, form in _follow.pieces(files.paths, follower.relative):
            request = {"how": "table", "table": files.name, "form": form}
            follower.announce({**request, "skip_unknown": True} if files.skip_unknown else request, data)

    def files(self, paths, *, skip_unknown=False):
        """Makes a numbering of these paths, a ddpfs.Files: follow(indices, files=...) takes it.  The paths are
        resolved once, so each epoch costs 4 or 8 bytes an entry.  Keep `paths` as it is meanwhile."""
        made = _follow.Files(self, f"files-{os.getpid()}-{_token}-{next(_numbers)}", paths, skip_unknown)
        self._announce_files(made)
        return made

    def state(self, epoch, trained):
        """Gives what a checkpoint must hold to go on from here with any number of ranks: a str, one line of JSON of
        at most 4 KB.  mounted(state=) takes it.  `ddpfs exec -o state=FILE` takes it as a file (write_text).  For
        rank views only: with view="all" the trainer's own sampler goes on, and this raises RuntimeError.

        trained    samples of `epoch` in this mount that this rank has trained: batches times their size, as the
                   trainer counts them.  Do not give what a loader has fetched.  More than there are means all of
                   them.

        Ranks train in step (DDP does), so the state of one rank is the job's.  At the end of an epoch it is that of
        the next epoch."""
        return json.dumps(self._ctl("state", f"--turns={trained}", f"--epoch={epoch}")["state"], separators=(",", ":"))


def _mountpoint(place):
    """Finds the mountpoint above a path."""
    real = os.path.realpath(place)
    here = real
    device = os.stat(here).st_dev
    while here != "/" and os.stat(os.path.dirname(here)).st_dev == device:
        here = os.path.dirname(here)
    return os.path.abspath(place) if here == real else here


def _arguments(program, dataset, place, words):
    options = ",".join(_option(k, v) for k, v in words.items() if v is not None and v is not False)
    return [program, "mount", f"--owner={os.getpid()}", os.fspath(dataset), os.fspath(place), *(["-o", options] if options else [])]


def _state_text(state):
    """Turns a state as Mount.state() gave it, or as json.loads() or a file made of it, into text."""
    if isinstance(state, bytes):
        state = state.decode()
    if isinstance(state, dict):
        state = json.dumps(state) if state else ""
    if not isinstance(state, str):
        raise TypeError(f"state is a {type(state).__name__}: give the text that Mount.state() gave, or None to begin anew")
    if not state.strip():
        raise ValueError("state is empty: give the text that Mount.state() gave, or None to begin anew")
    return state


def _mount(program, dataset, place, words, state):
    if state is None:
        _run(_arguments(program, dataset, place, words))
        return
    text = _state_text(state)
    fd = os.memfd_create("ddpfs state")
    try:
        os.write(fd, text.encode())
        _run(_arguments(program, dataset, place, {**words, "state": f"/proc/self/fd/{fd}"}), pass_fds=[fd])
    finally:
        os.close(fd)


def _unmount(program, place):
    try:
        _run([program, "umount", os.fspath(place)])
    except RuntimeError:
        if _is_mounted(place):  # somebody has a file open: the mount goes when it is closed
            _run([program, "umount", "-l", os.fspath(place)])


@contextmanager
def mounted(dataset, *, rank=None, world=None, mountpoint=None, state=None, program=None, **options):
    """Mounts `dataset` for one rank and gives the directory, a Mount.  Unmounts at the end, whatever happens
    inside.  If the process ends before that (kill -9, a launcher's SIGTERM), the mount's server unmounts.

    rank, world   of the job; leave them out with view="all"
    mountpoint    default: a new directory, removed afterwards
    state         what Mount.state() gave (the text, or what json.loads makes of it), to go on from there; None:
                  from the beginning
    program       the ddpfs program; default: $DDPFS_PROGRAM, or the one in PATH
    options       as `ddpfs mount -o` takes them: order="full", seed=7, memory="4G", allow_other=True, ...
    """
    program = _program(program)
    own = mountpoint is None
    place = Mount(tempfile.mkdtemp(prefix="ddpfs.") if own else os.path.abspath(mountpoint))
    place._ddpfs = program
    pid = os.getpid()
    ours = own  # a mount that somebody else made at `mountpoint` stays
    try:
        _mount(program, dataset, place, {"rank": rank, "world": world, **options}, state)
        ours = True
        yield place
    finally:
        if os.getpid() == pid:  # a child of fork() that leaves its parent's block does not unmount
            if ours and _is_mounted(place):
                _unmount(program, place)
            if own:
                place.rmdir()
