# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that tools/package/deb builds: what is in each, that lintian finds no error, and a life of them:
installed, used, installed anew under a mount, removed."""

import re
import subprocess
from pathlib import Path

import pytest

from helpers.debian_root import DebianRoot
from helpers.tools import ROOT
from package.life import DEB_GONE, DEB_USED, USE


def content(path):
    """The paths of a package's files and links."""
    said = subprocess.run(["dpkg-deb", "-c", path], capture_output=True, text=True, check=True).stdout
    return {line.split()[5].lstrip(".") for line in said.splitlines() if not line.startswith("d")}


def field(path, name):
    return subprocess.run(["dpkg-deb", "-f", path, name], capture_output=True, text=True, check=True).stdout.strip()


def holds(path, *patterns):
    files = content(path)
    return [p for p in patterns if not any(re.fullmatch(p, f) for f in files)]


def test_lintian_finds_no_error(packages):
    said = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *packages.values()], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_programs_have_their_manuals_their_completion_and_the_unit(packages):
    assert holds(packages["ddpfs"], "/usr/bin/ddpfs", "/usr/bin/mkshard", "/usr/sbin/mount.ddpfs",
                 "/usr/lib/.*/ddpfs/libddpfs_interpose.so", "/usr/lib/.*/ddpfs/python/exec/sitecustomize.py",
                 "/usr/share/man/man1/ddpfs.1.gz", "/usr/share/man/man1/mkshard.1.gz", "/usr/share/man/man8/mount.ddpfs.8.gz",
                 "/usr/share/bash-completion/completions/ddpfs", "/usr/share/bash-completion/completions/mkshard",
                 "/usr/share/doc/ddpfs/tools/systemd/mnt-imagenet.mount", "/usr/share/doc/ddpfs/tools/MESSAGES.md",
                 "/usr/share/doc/ddpfs/copyright") == []


def test_the_library_is_apart_from_what_compiles_against_it(packages):
    library, dev = packages["libddpfs-stage0"], packages["libddpfs-stage-dev"]
    assert holds(library, r"/usr/lib/.*/libddpfs_stage\.so\.0", r"/usr/lib/.*/libddpfs_stage\.so\.0\.1\.0") == []
    assert not [f for f in content(library) if f.endswith((".h", ".a", ".pc"))]
    assert holds(dev, "/usr/include/ddpfs/stage.h", r"/usr/lib/.*/libddpfs_stage\.(a|so)", "/usr/lib/.*/pkgconfig/ddpfs_stage.pc",
                 "/usr/share/man/man3/libddpfs_stage.3.gz") == []
    assert "libddpfs-stage0 (=" in field(dev, "Depends")


def test_the_module_is_where_the_systems_python_finds_it(packages):
    module = packages["python3-ddpfs"]
    names = [p.name for p in sorted((ROOT / "gpu_stage/python/ddpfs").glob("*.py"))]
    assert holds(module, *(f"/usr/lib/python3/dist-packages/ddpfs/{n}" for n in names)) == []
    assert "libddpfs-stage0" in field(module, "Depends")
    assert field(module, "Architecture") == "all"


def test_installed_in_a_root_of_its_own_the_programs_run(packages, tmp_path):
    for path in packages.values():
        subprocess.run(["dpkg-deb", "-x", path, tmp_path], check=True)
    [library] = tmp_path.glob("usr/lib/*/libddpfs_stage.so.0")
    for name in "ddpfs", "mkshard":
        said = subprocess.run([tmp_path / "usr/bin" / name, "--version"], capture_output=True, text=True, check=True).stdout
        assert field(packages["ddpfs"], "Version") in said
    # By itself: `import ddpfs` needs numpy.
    code = "import runpy; print(runpy.run_path({!r})['load']().ddpfs_stage_version().decode())".format(
        f"{tmp_path}/usr/lib/python3/dist-packages/ddpfs/_lib.py")
    said = subprocess.run(["python3", "-c", code], capture_output=True, text=True, check=True,
                          env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(library.parent)})
    assert said.stdout.strip() == field(packages["ddpfs"], "Version")


# The system's Python may lack numpy, which python3-ddpfs depends on: test_roots.py has it from apt.
INSTALL = r"""
export PYTHONPATH=/run/host/site
rm -f /var/lib/man-db/auto-update # the index of all manuals takes minutes, and is none of ours
cd /run/host/deb
dpkg -i ddpfs_*.deb libddpfs-stage0_*.deb libddpfs-stage-dev_*.deb
dpkg -i --force-depends python3-ddpfs_*.deb
upgrade() { dpkg -i ddpfs_*.deb; }
"""
PURGE = "dpkg --purge python3-ddpfs libddpfs-stage-dev libddpfs-stage0 ddpfs\n"


def test_installed_used_upgraded_and_purged_nothing_is_left(packages, scratch):
    """In this machine's own root with a layer above it, which takes what is written."""
    if not Path("/dev/fuse").exists():
        pytest.skip("no /dev/fuse on this machine")
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("this is no Debian system")
    root = DebianRoot("/", scratch)
    site = Path(__import__("numpy").__file__).parents[1]
    said = root.run(INSTALL + USE + DEB_USED + PURGE + DEB_GONE, {"deb": packages["ddpfs"].parent, "site": site}).stdout
    assert "samples of the module: 8\n" in said
    assert "module: /usr/lib/python3/dist-packages/ddpfs/" in said
    assert root.left() == []


def test_such_a_root_tells_what_is_left(scratch):
    """The check of the test above."""
    root = DebianRoot("/", scratch)
    root.run("mkdir /opt/ddpfs-left; touch /opt/ddpfs-left/file /usr/ddpfs-left")
    assert sorted(root.left()) == ["/opt/ddpfs-left", "/opt/ddpfs-left/file", "/usr/ddpfs-left"]
    assert not Path("/usr/ddpfs-left").exists()
