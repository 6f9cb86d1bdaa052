"""A mount from inside a program that learns its rank late (spawned workers, Ray, notebooks)."""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path


def _run(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr or done.stdout).strip() or f"{' '.join(arguments)}: exit code {done.returncode}")


def _option(name, value):
    text = str(value).replace("\\", "\\\\").replace(",", "\\,")
    return f"{name}={text}"


@contextmanager
def mounted(dataset, *, rank, world, mountpoint=None, program=None, **options):
    """Mounts `dataset` for one rank and yields the directory; unmounts at the end, whatever happens inside.

    mountpoint    default: a new directory, removed afterwards
    program       the ddpfs program; default: $DDPFS_PROGRAM, or the one in PATH
    options       as `ddpfs mount -o` takes them: order="full", seed=7, memory="4G", ...
    """
    program = program or os.environ.get("DDPFS_PROGRAM") or shutil.which("ddpfs")
    if program is None:
        raise FileNotFoundError("the ddpfs program is not in PATH: install ddpfs, or name it with program=")
    own = mountpoint is None
    place = Path(tempfile.mkdtemp(prefix="ddpfs.") if own else mountpoint)
    words = ",".join(_option(k, v) for k, v in {"rank": rank, "world": world, **options}.items())
    try:
        _run([program, "mount", os.fspath(dataset), os.fspath(place), "-o", words])
        try:
            yield place
        finally:
            try:
                _run([program, "umount", os.fspath(place)])
            except RuntimeError:  # somebody has a file open: it goes when he closes it
                _run([program, "umount", "-l", os.fspath(place)])
    finally:
        if own:
            place.rmdir()
