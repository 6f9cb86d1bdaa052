# SPDX-License-Identifier: Apache-2.0
"""One ddpfs server for all volumes of the node that ask for the same dataset and options, whatever their ranks.

A server is mounted on DIRECTORY/KEY, where KEY is a hash of dataset and options without the rank.  Each volume is a
bind mount of it, or of the directory of its rank.  A rank that no volume shows begins anew with its next volume.
/proc/self/mountinfo is the only state: the bind mounts of a server are its users, and the last that goes takes the
server along.  So a driver that starts anew knows what the one before it knew."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import threading
from collections import defaultdict

from ddpfs_csi import mounts
from ddpfs_csi.failure import Failure

FINE, DEAD, HUNG = "fine", "dead", "hung"
# What the C locale says of ENOTCONN, ECONNABORTED and ECONNREFUSED: no server has the mount any more.
ENDED = "Transport endpoint is not connected", "Software caused connection abort", "Connection refused"
STOP_S = 10  # for `ddpfs mount` to end the server that it has started
TEXT_MAX = 1000  # characters of an error; gRPC carries it in a header
RANKS_MAX = 256  # that one server shows; the volumes of a larger job have a server each


def split_rank(options):
    """(options of the server, the directory that the volume shows)."""
    if "rank" not in options or int(options["world"]) > RANKS_MAX:
        return options, "/"
    return {**options, "rank": "all"}, f"/rank{int(options['rank'])}"


class Servers:
    """Every method may be called by any thread.  Locks, in this order: one a KEY, held while its server is mounted,
    given users or taken away; `_mutex` for the tables in here."""

    def __init__(self, directory, program="ddpfs", options="", log=None, servers_max=64, mount_s=100, patience_s=10):
        """`options` and `log` go to every server; a mount may take mount_s seconds, an answer patience_s."""
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.directory = os.path.realpath(directory)
        self._program, self._options, self._log = program, options, log
        self._servers_max, self._mount_s, self._patience_s = servers_max, mount_s, patience_s
        self._mutex = threading.Lock()
        self._locks = defaultdict(threading.Lock)
        self._busy = set()  # targets that a call works on
        self._starting = set()  # KEYs whose server is being mounted
        self._probes = {}  # path: the process that waits for an answer of a hung server

    # What there is

    def _key(self, dataset, options):
        text = json.dumps([dataset, sorted(options.items()), self._options])
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]

    def _place(self, key):
        return os.path.join(self.directory, key)

    def _keys(self):
        """{device: KEY} of the servers that are mounted."""
        return {m.device: os.path.basename(m.path) for m in mounts.mounts()
                if m.kind == mounts.KIND and os.path.dirname(m.path) == self.directory}

    def _lock(self, key):
        with self._mutex:
            return self._locks[key]

    @contextlib.contextmanager
    def _alone(self, target):
        with self._mutex:
            if target in self._busy:
                raise Failure("ABORTED", f"a call for '{target}' is still at work")
            self._busy.add(target)
        try:
            yield
        finally:
            with self._mutex:
                self._busy.discard(target)

    def probe(self, path):
        """(FINE, statfs numbers), (DEAD, reason) or (HUNG, reason).  A process of its own asks, because nothing can end
        one that waits for a hung server; there is one a path at most."""
        with self._mutex:
            previous = self._probes.get(path)
            if previous and previous.poll() is None:
                return HUNG, "the server still does not answer"
            self._probes.pop(path, None)
        process = subprocess.Popen(["stat", "-f", "-c", "%S %b %f %c %d", "--", path], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   env={**os.environ, "LC_ALL": "C"})
        try:
            said, error = process.communicate(timeout=self._patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with self._mutex:
                self._probes[path] = process
            return HUNG, f"the server has not answered for {self._patience_s:g} s"
        if process.returncode != 0:
            # An error of another kind (no memory, say) tells nothing about the server.
            return DEAD if error.strip().endswith(ENDED) else HUNG, error.strip() or "the server cannot be asked"
        return FINE, [int(word) for word in said.split()]

    # Volumes

    def publish(self, dataset, options, target):
        target = mounts.canonical(target)
        options, shown = split_rank(options)
        key = self._key(dataset, options)
        with self._alone(target), self._lock(key):
            found = mounts.on(target)
            if found and found.kind != mounts.KIND:
                raise Failure("INTERNAL", f"'{target}' is a mount of {found.kind} already")
            other = found and self._keys().get(found.device)
            differs = other and (other != key or found.root != shown)
            # The administrator may have changed options since, by a new container: with the old one its servers ended.
            if differs and self.probe(target)[0] != DEAD:
                raise Failure("ALREADY_EXISTS", f"'{target}' shows another dataset, or the same with other options")
            started = self._ensure(key, dataset, options)
            if found and not differs and self._keys().get(found.device) == key:
                return
            try:
                if not started and shown != "/":
                    self._reset_rank(key, shown)
                mounts.detach(target)  # of a server that has ended
                os.makedirs(target, mode=0o750, exist_ok=True)
                mounts.bind(self._place(key) + shown, target)
            except (OSError, Failure):
                self._take_away_unused(key)
                raise
        if other and other != key:
            self.sweep()

    def unpublish(self, target):
        target = mounts.canonical(target)
        with self._alone(target):
            found = mounts.on(target)
            if found and found.kind != mounts.KIND:
                raise Failure("INTERNAL", f"'{target}' is a mount of {found.kind}, not of this driver")
            key = found and self._keys().get(found.device)
            try:
                with self._lock(key) if key else contextlib.nullcontext():
                    mounts.detach(target)
                    if key and found.root != "/" and self._used(key):
                        # A rank without a pod must not hold back the epoch of the mount.  publish() resets it, too.
                        with contextlib.suppress(Failure):
                            self._reset_rank(key, found.root)
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(target)
            finally:
                self.sweep()  # the server has no user more, also if the directory stays

    def condition(self, target):
        """What probe() says of a volume; None if there is none on `target`."""
        target = mounts.canonical(target)
        found = mounts.on(target)
        return self.probe(target) if found and found.kind == mounts.KIND else None

    # Servers

    def _ensure(self, key, dataset, options):
        """Under the lock of `key`: its server is mounted and answers.  Returns whether it was started now."""
        place = self._place(key)
        if mounts.on(place):
            state, said = self.probe(place)
            if state == FINE:
                return False
            if state == HUNG:
                raise Failure("UNAVAILABLE", f"dataset '{dataset}': {said}")
            mounts.detach(place)
        with self._counted(key):
            os.makedirs(place, mode=0o700, exist_ok=True)
            try:
                self._start(place, dataset, options)
            except Failure:
                self._take_away_unused(key)
                raise
        return True

    def _reset_rank(self, key, shown):
        """Under the lock of `key`: makes a rank that no volume shows what it was at the mount, because its next pod knows
        nothing of the pod before."""
        server = mounts.on(self._place(key))
        if any(m.device == server.device and m.root == shown for m in mounts.mounts()):
            return
        process = subprocess.Popen([self._program, "ctl", self._place(key) + shown, "reset"], text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        try:
            _, said = process.communicate(timeout=self._patience_s)
        except subprocess.TimeoutExpired:
            process.kill()  # which a hung server may delay
            raise Failure("UNAVAILABLE", f"the server has not answered for {self._patience_s:g} s") from None
        if process.returncode != 0:
            raise Failure("INTERNAL", said[-TEXT_MAX:] or f"ddpfs ctl ended with {process.returncode}")

    def _living(self):
        """The KEYs of the servers that are mounted and have not died."""
        return {key for key in self._keys().values() if self.probe(self._place(key))[0] != DEAD}

    @contextlib.contextmanager
    def _counted(self, key):
        """Holds one of the node's servers_max places for `key` until its server is mounted."""
        with self._mutex:
            mounted = set(self._keys().values())
            full = len(mounted | self._starting) >= self._servers_max
            self._starting.add(key)
            starting = set(self._starting)
        try:
            # Dead servers stay mounted as long as a volume shows them, but take nothing from the node.
            if full and len(self._living() | starting) > self._servers_max:
                raise Failure("RESOURCE_EXHAUSTED", f"this node has {self._servers_max} servers of datasets already")
            yield
        finally:
            with self._mutex:
                self._starting.discard(key)

    def _start(self, place, dataset, options):
        words = [f"{name}={value}" for name, value in sorted(options.items())] + ["allow_other"]
        words += [self._options] if self._options else []
        words += [f"log={self._log}"] if self._log else []
        process = subprocess.Popen([self._program, "mount", "-o", ",".join(words), "--", dataset, place], text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        try:
            _, said = process.communicate(timeout=self._mount_s)
        except subprocess.TimeoutExpired:
            self._give_up(process)
            raise Failure("DEADLINE_EXCEEDED", f"dataset '{dataset}' was not mounted in {self._mount_s:g} s") from None
        if process.returncode != 0:
            said = [line for line in said.splitlines() if not line.startswith("Try ")]
            raise Failure("INVALID_ARGUMENT" if process.returncode == 2 else "INTERNAL",
                          "\n".join(said)[-TEXT_MAX:] or f"ddpfs mount ended with {process.returncode}")

    def _give_up(self, process):
        """SIGTERM lets `ddpfs mount` end its server, which lives in a session of its own and would mount later."""
        process.terminate()
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()

    def _used(self, key):
        place = self._place(key)
        server = mounts.on(place)
        return server and any(m.device == server.device and m.path != place for m in mounts.mounts())

    def _take_away_unused(self, key):
        """Under the lock of `key`: unmounts its server if no volume shows it."""
        if self._used(key):
            return
        place = self._place(key)
        mounts.detach(place)
        with contextlib.suppress(OSError):
            os.rmdir(place)

    def sweep(self):
        """Takes away every server without users that no call works on, also those that an earlier driver left."""
        for key in filter(re.compile("[0-9a-f]{32}").fullmatch, os.listdir(self.directory)):
            lock = self._lock(key)
            if lock.acquire(blocking=False):
                try:
                    self._take_away_unused(key)
                finally:
                    lock.release()
