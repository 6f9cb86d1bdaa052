# SPDX-License-Identifier: Apache-2.0
"""A mount from inside a program that learns its rank late (spawned workers, Ray, notebooks), and its resume state."""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path


def _run(arguments, **kwargs):
    """Returns what it printed; RuntimeError with its own sentence.  An exception on the way (Ctrl-C) ends it: `ddpfs mount`
    then takes back what it has begun."""
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, **kwargs)
    try:
        out, err = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode != 0:
        raise RuntimeError((err or out).strip() or f"{' '.join(arguments)}: exit code {process.returncode}")
    return out


def _program(program=None):
    program = program or os.environ.get("DDPFS_PROGRAM") or shutil.which("ddpfs")
    if program is None:
        raise FileNotFoundError("the ddpfs program is not in PATH: install ddpfs, or name it with program=")
    return os.fspath(program)


def _option(name, value):
    if value is True:  # fill_class=True, allow_other=True
        return name
    text = str(value).replace("\\", "\\\\").replace(",", "\\,")
    return f"{name}={text}"


def _is_mounted(place):
    """By the kernel's list: a mount whose server hangs or died is one too."""
    place = os.fsencode(os.path.realpath(place))
    with open("/proc/self/mountinfo", "rb") as mounts:
        return any(line.split()[4].decode("unicode_escape").encode("latin-1") == place for line in mounts)


class Mount(type(Path())):
    """The directory of a rank's mount: a Path, and the trainer's side of it.  What mounted() gives; under `ddpfs exec`:
    Mount(os.environ["DDPFS_MOUNT"])."""

    _ddpfs = None

    def _ctl(self, *words):
        return json.loads(_run([_program(self._ddpfs), "ctl", "--json", os.fspath(self), *map(str, words)]))

    @property
    def epoch(self):
        """The epoch that listings show: after a resume the one that is to be finished."""
        return self._ctl("epoch")["epoch"]

    def set_epoch(self, epoch):
        """Listings show that epoch from now on; it no longer advances by itself."""
        self._ctl("epoch", epoch)

    def state(self, epoch, trained):
        """What a checkpoint should hold to go on from here with any number of ranks: a str, one line of JSON of at most 4 KB.
        mounted(state=) takes it, and as a file (write_text) `ddpfs exec -o state=FILE`.  Of rank views only: with view="all"
        the trainer's own sampler goes on, and this raises RuntimeError.

        trained    samples that this rank has trained of what the mount showed of `epoch`: batches times their size, as the
                   trainer counts them.  Never what a loader has fetched.  More than there are means all of them.

        Ranks train in step (DDP does): one rank's state is the job's.  At the end of an epoch it is the next one's."""
        return json.dumps(self._ctl("state", f"--turns={trained}", f"--epoch={epoch}")["state"], separators=(",", ":"))


def _arguments(program, dataset, place, words):
    options = ",".join(_option(k, v) for k, v in words.items() if v is not None and v is not False)
    return [program, "mount", f"--owner={os.getpid()}", os.fspath(dataset), os.fspath(place), *(["-o", options] if options else [])]


def _state_text(state):
    """As Mount.state() gave it, or as json.loads() or a file made of that."""
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
        if _is_mounted(place):  # somebody has a file open: it goes when he closes it
            _run([program, "umount", "-l", os.fspath(place)])


@contextmanager
def mounted(dataset, *, rank=None, world=None, mountpoint=None, state=None, program=None, **options):
    """Mounts `dataset` for one rank and gives the directory, a Mount; unmounts at the end, whatever happens inside.  When
    the process ends without a chance to do so (kill -9, a launcher's SIGTERM), the mount's server does it.

    rank, world   of the job; left out with view="all"
    mountpoint    default: a new directory, removed afterwards
    state         what Mount.state() gave (the text, or what json.loads makes of it), to go on from there; None: from the
                  beginning
    program       the ddpfs program; default: $DDPFS_PROGRAM, or the one in PATH
    options       as `ddpfs mount -o` takes them: order="full", seed=7, memory="4G", allow_other=True, ...
    """
    program = _program(program)
    own = mountpoint is None
    place = Mount(tempfile.mkdtemp(prefix="ddpfs.") if own else os.path.abspath(mountpoint))
    place._ddpfs = program
    pid = os.getpid()
    ours = own  # another's mount on a given mountpoint is left alone
    try:
        _mount(program, dataset, place, {"rank": rank, "world": world, **options}, state)
        ours = True
        yield place
    finally:
        if os.getpid() == pid:  # not in a child of fork() that unwinds its parent's block
            if ours and _is_mounted(place):
                _unmount(program, place)
            if own:
                place.rmdir()
