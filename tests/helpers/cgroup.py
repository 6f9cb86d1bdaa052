# SPDX-License-Identifier: Apache-2.0
"""Memory cgroups with a limit, of version 1 or 2."""

import contextlib
import os
import time
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


class Cgroup:
    """A memory cgroup with a limit, below the one this process is in."""

    def __init__(self, limit):
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        v1 = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
        self.before = ROOT / "memory" / v1[0].lstrip("/") if v1 else ROOT / lines[0][2].lstrip("/")
        self.here = self.before / f"ddpfs-test-{os.getpid()}"
        self.limit_file = "memory.limit_in_bytes" if v1 else "memory.max"
        self.events_file = "memory.oom_control" if v1 else "memory.events"
        try:
            if not v1:
                (self.before / "cgroup.subtree_control").write_text("+memory")
            self.here.mkdir()
            (self.here / self.limit_file).write_text(str(limit))
        except OSError as error:
            self.close()
            pytest.skip(f"no memory cgroup can be made here: {error}")

    @contextlib.contextmanager
    def inside(self):
        """What is started meanwhile lives in it."""
        (self.here / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self.before / "cgroup.procs").write_text(str(os.getpid()))

    def events(self):
        return {key: int(value) for key, value in
                (line.split() for line in (self.here / self.events_file).read_text().splitlines())}

    def anon_bytes(self):
        """What its processes need for themselves."""
        stat = dict(line.split() for line in (self.here / "memory.stat").read_text().splitlines())
        return int(stat["total_rss"] if "total_rss" in stat else stat["anon"])

    def close(self):
        while self.here.exists():
            with contextlib.suppress(OSError):  # who has just ended may still be counted
                self.here.rmdir()
                return
            time.sleep(0.05)
