# SPDX-License-Identifier: Apache-2.0
"""Shell scripts in a mount namespace of their own, where /sbin, /etc/fstab and /dev/fuse can be what a test needs."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from helpers import tools

NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups"


class Private:
    """run(script) -> CompletedProcess of `sh -e`.  mount(8) finds mount.ddpfs, everybody may open /dev/fuse, fstab is what
    was given; mounts below the test's directory are undone before the namespace ends."""

    def __init__(self, directory):
        if os.geteuid() != 0:
            pytest.skip("a mount namespace of its own needs root")
        self.directory = Path(directory)
        self.sbin = self.directory / "sbin"
        self.sbin.mkdir()
        (self.sbin / "mount.ddpfs").symlink_to(tools.tool("mount.ddpfs"))
        self.fstab = self.directory / "fstab"
        self.fstab.write_text("")
        # The test's directory is made for root alone; nobody must get through it and to the programs.
        os.chmod(self.directory, 0o755)

    def run(self, script, check=True):
        device = self.directory / "fuse"
        prologue = f"""
            undo() {{
                grep -o ' {self.directory}/[^ ]* [^ ]* .*- fuse' /proc/self/mountinfo | cut -d' ' -f2 |
                    while read -r path; do umount -l "$path"; done
            }}
            trap undo EXIT
            mknod -m 666 {device} c 10 229
            mount --bind {device} /dev/fuse
            mount --bind {self.fstab} /etc/fstab
            mount --bind {self.sbin} /sbin
            cd {self.directory}
            ddpfs={tools.tool('ddpfs')}
            nobody="{NOBODY}"
            """
        try:
            return tools.run(["unshare", "-m", "sh", "-ec", prologue + script], check=check)
        finally:
            device.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # where nobody's servers put their sockets; it stays while one lives
                os.rmdir("/tmp/ddpfs-65534")

    def directory_of_nobody(self, name):
        path = self.directory / name
        path.mkdir()
        shutil.chown(path, 65534, 65534)
        return path
