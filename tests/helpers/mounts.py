# SPDX-License-Identifier: Apache-2.0
"""Mounts for tests: made by `ddpfs mount -f`, undone whatever happens.

A mount that hangs would hang its readers beyond SIGKILL, so the last resort of the cleanup is to abort the FUSE
connection through fusectl, which frees them."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from helpers.tools import die_with_parent, stat_json, tool
from helpers.waiting import PATIENCE_S


def mounts_below(directory):
    """(mountpoint, minor of st_dev, type) of every mount at or below `directory`, innermost last."""
    directory = os.path.realpath(directory)
    found = []
    # Names of other mounts may have any white space but those that the kernel escapes: space, tab and newline.
    for line in Path("/proc/self/mountinfo").read_bytes().decode(errors="surrogateescape").split("\n")[:-1]:
        left, right = line.split(" - ", 1)
        fields = left.split(" ")
        path = fields[4].encode(errors="surrogateescape").decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")
        if path == directory or path.startswith(directory.rstrip("/") + "/"):
            found.append((path, int(fields[2].split(":")[1]), right.split()[0]))
    return found


def is_mounted(mountpoint):
    return any(path == os.path.realpath(mountpoint) for path, _, _ in mounts_below(mountpoint))


def abort_connection(minor):
    """Makes every request of a FUSE connection fail with ENOTCONN, waiting ones included."""
    control = Path("/sys/fs/fuse/connections") / str(minor) / "abort"
    if control.exists():
        control.write_text("1")
        return
    with tempfile.TemporaryDirectory() as place:
        if subprocess.run(["mount", "-t", "fusectl", "fusectl", place], capture_output=True).returncode == 0:
            try:
                (Path(place) / str(minor) / "abort").write_text("1")
            except OSError:
                pass
            finally:
                subprocess.run(["umount", place], capture_output=True)


def unmount(mountpoint, patience_s=60):
    """Plain umount(8), repeated while it is busy.  Returns '' or what umount said last."""
    said, end = "", time.monotonic() + patience_s
    while is_mounted(mountpoint):
        done = subprocess.run(["umount", mountpoint], capture_output=True, text=True)
        said = done.stderr.strip()
        if time.monotonic() > end:
            break
        if done.returncode != 0:
            time.sleep(0.1)
    return said if is_mounted(mountpoint) else ""


def force_unmount(directory):
    """Undoes every mount below `directory`, hanging ones included.  Returns the mountpoints that were there."""
    found = mounts_below(directory)
    for path, minor, kind in reversed(found):
        if subprocess.run(["umount", path], capture_output=True).returncode == 0:
            continue
        if kind.startswith("fuse"):
            abort_connection(minor)
        subprocess.run(["umount", "-l", path], capture_output=True)
    return [path for path, _, _ in found]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop_and_wait(pid):
    """SIGSTOP reaches each thread in its own time: back when all of them stand.  A thread of a server that waits for an
    answer of its own mount ('D') stands as well: those that would answer are stopped, and so is it once it is back."""
    os.kill(pid, signal.SIGSTOP)
    while True:
        states = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                states.add((task / "stat").read_text().rsplit(")", 1)[1].split()[0])
        if "T" in states and states <= {"T", "D"}:
            return
        time.sleep(0.01)


def kill_with_supervisor(supervisor, server):
    """A mount that is dead: both processes killed.  The server stands still first: it might see the end of their channel
    before its signal, and unmount.  Back when the last descriptor of the device is closed."""
    stop_and_wait(server)
    os.kill(supervisor, signal.SIGKILL)
    for pid in (supervisor, server):
        while is_alive(pid):
            time.sleep(0.01)


class Mount:
    """One mounted dataset.  `path` is the mountpoint, `process` the supervisor in front (`-f`)."""

    def __init__(self, path, process, log_path):
        self.path = Path(path)
        self.process = process
        self.log_path = Path(log_path)
        self.may_end_with = {0, -signal.SIGKILL, -signal.SIGTERM}  # exit codes that are no complaint

    def server_pid(self):
        """The process that answers the kernel now."""
        return stat_json(self.path)["server_pid"]

    def log(self):
        return self.log_path.read_text(errors="replace")

    def unmount(self):
        """Unmounts as a user would and expects the server to end with 0."""
        said = unmount(self.path)
        assert not said, f"umount {self.path}: {said}"
        code = self.process.wait(timeout=PATIENCE_S)
        assert code == 0, f"server of {self.path} ended with {code}:\n{self.log()}"

    def destroy(self):
        """Cleanup that always succeeds; returns a complaint when it had to use force."""
        complaint = ""
        if is_mounted(self.path) and unmount(self.path, patience_s=20):
            complaint = f"{self.path} was still busy"
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                complaint = f"the server of {self.path} hung"
            force_unmount(self.path)
        try:
            code = self.process.wait(timeout=PATIENCE_S)
            if code not in self.may_end_with and not complaint:
                complaint = f"the server of {self.path} ended with {code}:\n{self.log()}"
        except subprocess.TimeoutExpired:
            complaint = complaint or f"the server of {self.path} did not end after the unmount:\n{self.log()}"
            self.process.kill()
            self.process.wait()
        return complaint


class Mounter:
    """Makes mounts below one directory and undoes them all in close()."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.mounts = []

    def __call__(self, dataset, options="", mountpoint=None, env=None, program=("mount", "-f"), within=()):
        """Mounts `dataset` with `-o options` and returns once the mount answers and every directory is watched, so that
        no open goes uncounted.  within: words of a command that becomes ddpfs (helpers/network.py).  Raises with the
        server's words."""
        number = len(self.mounts)
        path = Path(mountpoint or self.directory / f"mnt{number}")
        path.mkdir(parents=True, exist_ok=True)
        log_path = self.directory / f"mnt{number}.log"
        argv = [*within, tool("ddpfs"), *program, *(["-o", options] if options else []), str(dataset), str(path)]
        with open(log_path, "wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env={**os.environ, **(env or {})}, preexec_fn=die_with_parent)
        mount = Mount(path, process, log_path)
        self.mounts.append(mount)
        while not is_mounted(path):
            if process.poll() is not None and not is_mounted(path):
                raise AssertionError(f"{' '.join(argv)}\nended with {process.returncode}:\n{mount.log()}")
            time.sleep(0.01)
        hidden = path / ".ddpfs"  # a mount of several ranks has none
        try:
            os.listdir(hidden if hidden.is_dir() else path)  # the first listing waits for the watches
        except OSError as error:
            process.wait(60)
            raise AssertionError(f"{' '.join(argv)}\nended with {process.returncode}:\n{mount.log()}") from error
        return mount

    def close(self):
        complaints = [c for c in (m.destroy() for m in reversed(self.mounts)) if c]
        self.mounts.clear()
        return complaints


class Watchdog:
    """Aborts the mounts below a directory when a test has not ended after `seconds`, so that its readers get an error
    and the test fails instead of hanging the run."""

    def __init__(self, directory, seconds):
        self.timer = threading.Timer(seconds, self._fire, [directory])
        self.timer.daemon = True
        self.fired = False

    def _fire(self, directory):
        for _, minor, kind in mounts_below(directory):
            if kind.startswith("fuse"):
                self.fired = True
                abort_connection(minor)

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
