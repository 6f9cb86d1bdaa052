# SPDX-License-Identifier: Apache-2.0
"""A client of the control socket in twenty lines: what the protocol in shard/base/control_client.h promises is enough to write one."""

import json
import os
import socket
from pathlib import Path

from helpers.waiting import PATIENCE_S, wait_until


def directory():
    uid = os.geteuid()
    if uid == 0:
        return Path("/run/ddpfs")
    if os.environ.get("XDG_RUNTIME_DIR", "").startswith("/"):
        return Path(os.environ["XDG_RUNTIME_DIR"]) / "ddpfs"
    runtime = Path(f"/run/user/{uid}")
    return runtime / "ddpfs" if runtime.is_dir() else Path(f"/tmp/ddpfs-{uid}")


def connect(mount):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(str(directory() / f"{mount.process.pid}.sock"))
    return sock


def raw(mount, line):
    """Sends bytes, returns the first line that comes back (b'' when the server closes)."""
    with connect(mount) as sock:
        sock.sendall(line)
        with sock.makefile("rb") as reply:
            return reply.readline()


def ask(mount, cmd, **args):
    return json.loads(raw(mount, json.dumps({"cmd": cmd, **args}).encode() + b"\n"))


def stats(mount):
    return ask(mount, "stat")["stats"]


def settled(mount):
    """Waits until the server has nothing to do before somebody opens or reads a file.  Returns the counters."""
    return wait_until(lambda: (now := stats(mount))["idle"] and now, "an idle engine", pause_s=0.002)


def wait_for_log(mount, text):
    """Waits until the server's log has `text`.  Returns the log."""
    return wait_until(lambda: text in (log := mount.log()) and log, f"{text!r} in the log")
