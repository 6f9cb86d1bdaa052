# SPDX-License-Identifier: Apache-2.0
"""Announces over the mount itself, by ioctl(2) on its root directory: for who can read the mount but cannot reach its
control socket, as another user or a container (protocol: shard/base/control_client.h).  A request holds 16 KiB, so an
order goes in pieces."""

import contextlib
import errno
import fcntl
import json
import os
import time
from functools import partial

_BYTES = 16376  # BASE_ANNOUNCE_BYTES
_IOCTL = 3 << 30 | _BYTES << 16 | 0xdd << 8 | 1
_TIMEOUT_S = 60
_PAUSE_S = 0.005  # while too many requests wait
_NUMBERS = {"u32": 4, "u64": 8}
_GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EBADF, errno.ENODEV)


def _line(request):
    return json.dumps({"cmd": "follow", **request}).encode() + b"\n"


def _end_of_piece(view, at, room, form):
    """Where a piece that begins at `at` ends: it has whole entries, and fits into `room` bytes."""
    end = min(len(view), at + room)
    if form in _NUMBERS:
        end -= (end - at) % _NUMBERS[form]
    elif end < len(view):
        end = at + bytes(view[at:end]).rfind(b"\0") + 1
    if end <= at:
        raise ValueError("the order has an entry that is too long, or `dir` is")
    return end


class Root:
    """A descriptor of the root of a mount.  Any thread may call; a child of fork() makes its own."""

    def __init__(self, mountpoint):
        self.mountpoint, self._pid, self._gone = mountpoint, os.getpid(), False
        self._fd = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __del__(self):
        if getattr(self, "_fd", -1) >= 0 and self._pid == os.getpid():
            with contextlib.suppress(OSError):  # somebody may have closed all descriptors
                os.close(self._fd)  # not in a child: it may have closed it, and another file may have its number

    def usable(self):
        """Whether it is this process's, and its mount is still there."""
        return not self._gone and self._pid == os.getpid()

    def ask(self, request, data=b""):
        """Sends a request with its entries.  Returns the reply, an ok one or a refusal."""
        until = time.monotonic() + _TIMEOUT_S
        both = _line(request) + data
        while True:
            buffer = bytearray(both)
            buffer.extend(bytes(_BYTES - len(both)))
            try:
                fcntl.ioctl(self._fd, _IOCTL, buffer)
                return json.loads(buffer[:buffer.index(b"\n")])
            except BlockingIOError as e:
                if time.monotonic() > until:
                    raise OSError(errno.ETIMEDOUT, f"'{self.mountpoint}': the server of the mount does not answer") from e
                time.sleep(_PAUSE_S)
            except OSError as e:
                if e.errno in _GONE:
                    self._gone = True  # other threads may be using it: it is closed when nobody has it any more
                if e.errno == errno.ENOTTY:
                    raise OSError(errno.EACCES, f"'{self.mountpoint}': the server of this mount lets only root and the "
                                  "user who mounted announce: it is of an older version") from e
                raise OSError(e.errno, f"'{self.mountpoint}': the server of the mount cannot be reached "
                              f"({e.strerror})") from e

    def announce(self, request, buffers, ask_for):
        """Announces buffers, one after another.  @ask_for: calls a function that asks, and returns the ok reply or
        raises.  Returns the reply, with the sums of all pieces.  After a refusal the pieces before it stay announced."""
        how, entries, skipped, reply = request.get("how", "replace"), 0, 0, None
        room = _BYTES - len(_line({**request, "how": "replace", "bytes": _BYTES, "from": 1 << 62}))
        for buffer in buffers:
            view, at = memoryview(buffer).cast("B"), 0
            if how == "learn":  # the latest ones count
                at = max(0, len(view) - room // 8 * 8)
            while at < len(view):
                end = _end_of_piece(view, at, room, request["form"])
                piece = {**request, "how": how, "bytes": end - at, "from": entries + skipped}
                reply = ask_for(partial(self.ask, piece, view[at:end]))
                entries, skipped = entries + reply.get("entries", 0), skipped + reply.get("skipped", 0)
                how, at = "append" if how == "replace" and entries else how, end
        if reply is None:
            reply = ask_for(lambda: self.ask({**request, "bytes": 0}))
        if how in ("replace", "append") and not entries:
            ask_for(lambda: {"ok": False, "code": "unknown",
                             "error": f"none of the {skipped} entries is a file of the dataset's samples"})
        return {**reply, "entries": entries, "skipped": skipped}
