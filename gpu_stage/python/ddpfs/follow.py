# SPDX-License-Identifier: Apache-2.0
"""Announces to a mount what will be opened: the client of the control request "follow" (Mount.follow).

An order travels in a memfd whose descriptor goes over the mount's control socket.  The server reads it before it
answers.  Who cannot reach the socket announces over the mount itself (over_mount.py).  Nothing here needs numpy or
torch; where a trainer has imported them, arrays and tensors cost less."""

import errno
import itertools
import json
import os
import socket
import sys
import threading
from array import array

from .over_mount import Root

_PIECE = 1 << 16          # entries of a generator that are announced at once
_NARROW = 1 << 18         # numbers of 8 bytes that are made numbers of 4 bytes at once
_TEXT_BYTES = 4 << 20     # bytes of paths that are announced at once; the server takes 16 MiB
_TIMEOUT_S = 60
_UNREACHABLE = (PermissionError, FileNotFoundError, NotADirectoryError, ConnectionRefusedError)
_ERRNOS = {"space": errno.ENOSPC, "lists": errno.E2BIG, "table": errno.ESTALE, "unknown": errno.ENOENT}


class Files:
    """A numbering of files that Mount.files() made: number i is the i-th path.  paths None: the server has made it."""

    def __init__(self, mount, name, paths, skip_unknown):
        self.mount, self.name, self.paths, self.skip_unknown = mount, name, paths, skip_unknown

    def __len__(self):
        return len(self.paths)


class Connection:
    """One connection to the control socket of a mount, made when it is needed; or the root of the mount, if the socket
    cannot be reached.  Any thread may call; a child of fork() makes its own."""

    def __init__(self, mountpoint, find_socket):
        self.mountpoint = os.path.realpath(mountpoint)
        self.prefixes = tuple(dict.fromkeys(
            os.fsencode(p).rstrip(b"/") + b"/" for p in (os.path.abspath(mountpoint), self.mountpoint)))
        self._find_socket = find_socket
        self._path = None
        self._socket = None
        self._root = None  # a Root: announcements go there
        self._pid = 0
        self._lock = threading.Lock()

    def _connect(self):
        self._pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.connect(self._path)
        here = os.stat(self.mountpoint).st_dev
        if self._talk(b'{"cmd":"info"}\n').get("dev", here) != here:  # older servers do not say it
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the socket of this name is another mount's")  # in a container

    def _close(self):
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def __del__(self):
        if getattr(self, "_socket", None) is not None:
            self._close()

    def _exchange(self, line, fds):
        if self._socket is None or self._pid != os.getpid():
            self._close()  # of a child of fork(): its descriptor only
            self._connect()
        return self._talk(line, fds)

    def _talk(self, line, fds=()):
        sent = socket.send_fds(self._socket, [line], fds) if fds else self._socket.send(line)
        self._socket.sendall(line[sent:])
        reply = b""
        while not reply.endswith(b"\n"):
            got = self._socket.recv(65536)
            if not got:
                raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
            reply += got
        return json.loads(reply)

    def _root_instead(self):
        """Returns the Root if the socket cannot be reached, else None."""
        with self._lock:
            if self._root is not None and self._root.usable():
                return self._root
            self._root = None
            if self._socket is not None and self._pid == os.getpid():
                return None
            known = (self._path,) if self._path else ()
            for path in (*known, None):  # a known one may be that of a mount that is no more
                self._close()
                self._path = path or self._find_socket()
                try:
                    self._connect()
                    return None
                except _UNREACHABLE:
                    pass
                except OSError:
                    break  # ask() says what is wrong
            else:
                self._root = Root(self.mountpoint)
            self._close()
            return self._root

    def ask(self, request, fds=()):
        """Sends a request and returns the reply, an ok one or a refusal.  It tries a second time if the server has
        closed the connection, because that closes idle ones and may have been replaced."""
        root = self._root_instead()
        if root is not None:
            return root.ask(request)
        line = json.dumps({"cmd": "follow", **request}).encode() + b"\n"
        with self._lock:
            for attempt in range(3):
                if self._path is None:
                    self._path = self._find_socket()
                try:
                    return self._exchange(line, list(fds))
                except socket.timeout as e:
                    self._close()
                    raise OSError(errno.ETIMEDOUT, f"'{self.mountpoint}': the server of the mount does not answer") from e
                except OSError as e:
                    self._close()
                    if attempt == 2:
                        raise OSError(e.errno or errno.EIO, f"'{self.mountpoint}': the server of the mount cannot be "
                                      f"reached ({e.strerror or e})") from e
                    if attempt == 1:
                        self._path = None  # perhaps it was mounted anew

    def announce(self, request, data, renew=None):
        """Announces the bytes of `data` (a buffer, or a Narrowed).  @renew: announces the table of the request again;
        called if the server has lost it.  Returns the reply; refusals are exceptions."""
        def ask_for(ask):
            reply = ask()
            if renew and reply.get("code") == "table":
                renew()
                reply = ask()  # nothing of it was taken
            return check(reply)

        parts = data.parts() if isinstance(data, Narrowed) else (data,)
        root = self._root_instead()
        if root is not None:
            return root.announce(request, parts, ask_for)
        fd, size = os.memfd_create("ddpfs order"), 0
        try:
            for part in parts:
                view, at = memoryview(part).cast("B"), 0
                while at < len(view):
                    at += os.write(fd, view[at:at + (1 << 30)])
                size += at
            return ask_for(lambda: self.ask({**request, "bytes": size}, [fd]))
        finally:
            os.close(fd)

    def relative(self, path):
        """Turns a path into what the server takes: bytes below the mount's root."""
        raw = os.fsencode(path)
        if b"/.." in raw or raw.startswith(b".."):  # behind a link, `..` is the directory above the link's target
            above, name = os.path.split(os.path.join(os.fsencode(self.mountpoint), raw))
            raw = os.path.join(os.path.realpath(above), name)
        if raw.startswith(b"/"):
            for prefix in self.prefixes:
                if raw.startswith(prefix):
                    return raw[len(prefix):]
            raise ValueError(f"'{os.fsdecode(raw)}' is not in the mount '{self.mountpoint}': give paths below it")
        return raw


class Narrowed:
    """Indices of 8 bytes that are announced as 4 bytes each: half the memory, and two thirds of the time."""

    def __init__(self, numbers):
        self._numbers = numbers

    @classmethod
    def of(cls, view):
        """Returns None if one of them needs 8 bytes, or without numpy."""
        numpy = sys.modules.get("numpy")
        numbers = numpy and numpy.frombuffer(view, numpy.uint64)  # what is negative is large here
        return cls(numbers) if numpy and numbers.max() < 1 << 32 else None

    def parts(self):
        for at in range(0, len(self._numbers), _NARROW):
            yield self._numbers[at:at + _NARROW].astype("uint32")


class Refused(ValueError):
    """The server refused an order because of what is in it."""


def check(reply):
    """Returns an ok reply; raises what a refusal means."""
    if reply.get("ok"):
        return reply
    code, text = reply.get("code"), reply.get("error", "the server refused without a reason")
    if code is None and "unknown command" in text:
        raise OSError(errno.EOPNOTSUPP, "the server of this mount knows no announced orders: it is of an older version")
    if code in ("space", "lists", "table"):
        raise OSError(_ERRNOS[code], text)
    raise Refused(text)


def _integers(order):
    """Returns `order` as a buffer of 4 or 8 byte numbers and the form, or None if it is no such buffer."""
    try:
        view = memoryview(order)
    except TypeError:
        return None
    if isinstance(order, (bytes, bytearray, str)) or view.format in ("B", "c") or view.format[-1] in "wsO":
        return None  # w, s, O: numpy's arrays of str, bytes and objects, as paths are kept
    if view.format.lstrip("@=<") not in ("i", "I", "l", "L", "q", "Q", "n", "N") or view.itemsize not in (4, 8):
        raise TypeError(f"an order of '{view.format}' items: give integers of 4 or 8 bytes (int32, uint32, int64)")
    if view.ndim != 1:
        raise ValueError(f"an order has one dimension, and not {view.ndim}: flatten batches, as order.reshape(-1) does")
    return (view if view.c_contiguous else memoryview(view.tobytes()).cast(view.format.lstrip("@=<"))), \
        "u32" if view.itemsize == 4 else "u64"


def _pieces_of_numbers(order):
    """Yields (buffer, form) of an iterable of ints."""
    iterator = iter(order)
    while True:
        try:
            piece = array("q", itertools.islice(iterator, _PIECE))
        except OverflowError as e:
            raise ValueError("an index is out of range: indices are below 2^63") from e
        if not piece:
            return
        yield piece, "u64"


def _pieces_of_paths(order, relative):
    """Yields (text, "text") of an iterable of paths."""
    text, size = [], 0
    for path in order:
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise TypeError(f"an order of paths holds a {type(path).__name__}: give paths only, or indices only")
        raw = relative(path)
        if b"\0" in raw or not raw:
            raise ValueError(f"{raw!r} is no path of a file")
        text.append(raw)
        size += len(raw) + 1
        if size >= _TEXT_BYTES:
            yield b"\0".join(text) + b"\0", "text"
            text, size = [], 0
    if text:
        yield b"\0".join(text) + b"\0", "text"


def pieces(order, relative):
    """Yields (data, form) for an order of any kind that Mount.follow takes."""
    if isinstance(order, (str, bytes, bytearray)):
        raise TypeError("an order is a list of paths or indices, not one path")
    torch = sys.modules.get("torch")
    if torch and isinstance(order, torch.Tensor):  # which is no buffer
        order = order.detach().cpu().numpy()
    buffer = _integers(order)
    if buffer is not None:
        narrowed = Narrowed.of(buffer[0]) if buffer[1] == "u64" and len(buffer[0]) else None
        if narrowed:
            yield narrowed, "u32"
        elif len(buffer[0]):
            yield buffer
        return
    if hasattr(order, "tolist"):  # arrays of paths, and what else is no buffer
        order = order.tolist()
    if not hasattr(order, "__iter__"):
        raise TypeError(f"an order is a list of paths or indices, and not a {type(order).__name__}: give what will be "
                        "opened")
    iterator = iter(order)
    try:
        first = next(iterator)
    except StopIteration:
        return
    if isinstance(first, (list, tuple)) or getattr(first, "ndim", 0) > 0:
        raise TypeError(f"an order holds a {type(first).__name__}: flatten batches, as [i for batch in order for i in "
                        "batch] does")
    both = itertools.chain([first], iterator)
    if isinstance(first, (str, bytes, os.PathLike)):
        yield from _pieces_of_paths(both, relative)
    else:
        yield from _pieces_of_numbers(both)
