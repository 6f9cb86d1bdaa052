# SPDX-License-Identifier: Apache-2.0
"""Scripts in the root of a Debian system that is thrown away.

The root is an overlay: a system that stays as it is (this machine's "/", or what debootstrap made), and a tmpfs above it that
takes what is written.  A script runs there by chroot(2), in namespaces of its own for mounts and processes.  When the script
ends, however it ends, the kernel kills what it started, and its mounts and files are gone."""

import os
import shlex
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from helpers import tools

# What dpkg, apt and their triggers keep for themselves, whatever was installed and removed.
KEPT = ("/var/lib/dpkg/", "/var/lib/apt/", "/var/log/", "/var/cache/", "/etc/ld.so.cache", "/var/lib/systemd/deb-systemd-helper")
SCRIPTS = "/usr/share/debootstrap/scripts"
MIRROR = "http://deb.debian.org/debian"


def _is_there(suite):
    """False: the mirror says that it has no such suite."""
    try:
        urllib.request.urlopen(urllib.request.Request(f"{MIRROR}/dists/{suite}/Release", method="HEAD"), timeout=30).close()
    except urllib.error.HTTPError as error:
        return error.code != 404
    except OSError:  # debootstrap says what is wrong
        pass
    return True


def debian_system(suite, packages, place, seconds):
    """A bare system with `packages` (names with commas) in the directory `place`, which the first call makes: its path."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("needs root and the package debootstrap")
    if not place.exists():
        if not _is_there(suite):
            pytest.skip(f"{MIRROR} has no suite {suite}")
        # A debootstrap that is older than the suite has no script of that name; all later ones are that of sid.
        script = next(f"{SCRIPTS}/{name}" for name in (suite, "sid") if os.path.exists(f"{SCRIPTS}/{name}"))
        unfinished = place.with_name("root-unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        include = [f"--include={packages}"] if packages else []
        tools.run(["debootstrap", "--variant=minbase", *include, suite, unfinished, MIRROR, script], timeout=seconds)
        unfinished.rename(place)
    return place


class DebianRoot:
    """`lower` is the system; `place` a directory of the test."""

    def __init__(self, lower, place):
        if os.geteuid() != 0:
            pytest.skip("a root of its own needs root")
        if "\toverlay\n" not in Path("/proc/filesystems").read_text():
            pytest.skip("this kernel has no overlayfs")
        self.lower, self.place = Path(lower), Path(place)

    def run(self, script, binds=(), check=True, timeout=600):
        """`sh -e` of a script in the root.  It finds what `binds` names ({name: path}) at /run/host/NAME; /run and /tmp are
        empty.  Returns the CompletedProcess; `left` then has the paths of files and directories that are new."""
        top = self.place / "top"
        top.mkdir(exist_ok=True)
        bound = "\n".join(f"bind {shlex.quote(str(path))} root/run/host/{name}" for name, path in dict(binds).items())
        outer = f"""
            bind() {{
                if [ -d "$1" ]; then mkdir -p "$2"; else mkdir -p "${{2%/*}}"; : >"$2"; fi
                mount --rbind "$1" "$2"
            }}
            mount -t tmpfs -o mode=755 none {top}
            cd {top}
            mkdir upper work root
            mount -t overlay -o lowerdir={self.lower},upperdir=upper,workdir=work none root
            mount -t proc none root/proc
            mount --rbind /sys root/sys
            mount --rbind /dev root/dev
            for name in run tmp; do mount -t tmpfs -o mode=1777 none root/$name; done
            {bound}
            rc=0
            chroot root env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \\
                DEBIAN_FRONTEND=noninteractive sh -ec "$0" || rc=$?
            (cd upper && find . -mindepth 1) | sed 's/^.//' >{self.place}/written
            exit $rc
            """
        return tools.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", outer, script], check=check,
                         timeout=timeout)

    def left(self):
        """What the last script left in the root: new files and directories, without those that packages manage themselves."""
        written = (self.place / "written").read_text().splitlines()
        return [path for path in written
                if not path.startswith(KEPT) and not os.path.lexists(f"{self.lower}{path}")]
