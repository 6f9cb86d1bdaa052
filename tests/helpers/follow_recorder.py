# SPDX-License-Identifier: Apache-2.0
"""Notes what the copies of a trainer announce, in place of a server."""

import contextlib
import json
import socket
import threading


class Recorder:
    """Takes what stand-ins of Mount in other processes are told: `told` holds [list, append, paths], or [list, None,
    None] for an end."""

    def __init__(self, place):
        self.told, self.path = [], str(place)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection = self._socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection):
        try:
            with connection, connection.makefile() as lines:
                for line in lines:
                    self.told.append(json.loads(line))
                    connection.sendall(b".")
        except OSError:
            pass  # the child was ended

    def names(self):
        return [name for _, _, names in self.told if names for name in names]

    def latest(self):
        """What was told since a list began."""
        begun = max((k for k, (_, append, names) in enumerate(self.told) if names and not append), default=0)
        return [name for _, _, names in self.told[begun:] if names for name in names]

    def lists(self):
        return {name for name, _, names in self.told if names}

    def ended(self):
        return [name for name, _, names in self.told if names is None]

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextlib.contextmanager
def recording(place, monkeypatch, sampler_copy):
    """A Recorder that takes what ddpfs.sampler_copy tells Mount; its socket is at `place`."""
    recorder = Recorder(place)

    class StandIn:
        def __init__(self, root):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(recorder.path)

        def _tell(self, *what):
            self._socket.sendall(json.dumps(what).encode() + b"\n")
            self._socket.recv(1)

        def follow(self, names, *, list, append, skip_unknown):  # noqa: A002
            self._tell(list, append, names)

        def unfollow(self, *, list):  # noqa: A002
            self._tell(list, None, None)

    monkeypatch.setattr(sampler_copy, "Mount", StandIn)
    yield recorder
    recorder.close()
