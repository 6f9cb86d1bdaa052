# SPDX-License-Identifier: Apache-2.0
"""The kernel's mounts: /proc/self/mountinfo, and mount(2) and umount2(2).

mount(8) and umount(8) look at what is mounted, so they would hang at a server that hangs.  The system calls do not."""

import ctypes
import os
import re
from dataclasses import dataclass

KIND = "fuse.ddpfs"
MS_BIND = 4096
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_void_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


@dataclass(frozen=True)
class Mount:
    """One line: `device` names the file system, so a server's mount and its bind mounts have the same one.  `root` is
    which directory of the file system is shown."""
    path: str
    device: str
    kind: str
    root: str


def _plain(field):
    """mountinfo writes blanks and backslashes as three octal digits."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), field))


def mounts():
    """All mounts of this mount namespace, in the kernel's order: of two at one path the later covers the other."""
    found = []
    with open("/proc/self/mountinfo", "rb") as f:
        for line in f.read().rstrip(b"\n").split(b"\n"):
            left, right = line.split(b" - ", 1)
            fields = left.split(b" ")
            found.append(Mount(_plain(fields[4]), fields[2].decode(), _plain(right.split(b" ")[0]),
                               _plain(fields[3])))
    return found


def on(path):
    """What is mounted on `path`, the topmost; None if nothing is."""
    return next((m for m in reversed(mounts()) if m.path == path), None)


def canonical(path):
    """`path` as mountinfo has it.  Nothing below its directory is looked at: what is mounted there may hang."""
    directory, name = os.path.split(os.path.normpath(path))
    return os.path.join(os.path.realpath(directory), name)


def _check(result, what, path):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", path)


def bind(source, target):
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND, None), "bind mount", target)


def detach(path):
    """Takes everything away that is mounted on `path`.  Who still has a file open keeps it until the last close."""
    while on(path):
        _check(_libc.umount2(os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW), "unmount", path)
