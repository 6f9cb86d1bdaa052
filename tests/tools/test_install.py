# SPDX-License-Identifier: Apache-2.0
"""meson install: everything is where its users look for it."""

import os
import shutil
import sys

import pytest

from helpers import tools


@pytest.fixture
def installed(build_dir, scratch):
    meson = shutil.which("meson")
    if not meson:
        pytest.skip("meson is not in PATH")
    tools.run([meson, "install", "-C", build_dir, "--no-rebuild", "--destdir", scratch / "root"])
    return scratch / "root"


def find(root, name):
    found = [p for p in root.rglob(name)]
    assert len(found) == 1, (name, found)
    return found[0]


def test_files(installed):
    for name in "ddpfs.1", "mkshard.1", "mount.ddpfs.8", "libddpfs_interpose.so":
        assert find(installed, name).is_file()
    assert len([p for p in installed.rglob("completions/*")]) == 2


def test_mount_finds_its_helper(installed):
    helper = installed / "sbin/mount.ddpfs"
    assert helper.is_symlink()
    target = installed / str(helper.readlink()).lstrip("/")
    assert target.name == "ddpfs" and target.is_file()


def test_exec_finds_the_interposer(installed, dataset, mountpoint):
    ddpfs = next(p for p in installed.rglob("bin/ddpfs"))
    done = tools.run([ddpfs, "exec", "-q", "-o", "view=all", dataset, mountpoint, "--", "sh", "-c", "echo $LD_PRELOAD"],
                     env={"LD_PRELOAD": ""})
    assert done.stderr == ""
    assert find(installed, "libddpfs_interpose.so").samefile(done.stdout.strip())


def test_exec_finds_the_python_hook(installed, dataset, mountpoint):
    ddpfs = next(p for p in installed.rglob("bin/ddpfs"))
    script = ("import sys, sitecustomize; print(sitecustomize.__file__); sitecustomize.watch(sys); "
              "print(sys.modules['_ddpfs_exec.sampler_copy'].__file__)")
    done = tools.run([ddpfs, "exec", "-q", "-o", "view=all", dataset, mountpoint, "--", sys.executable, "-c", script],
                     env={"PYTHONPATH": ""})
    hook, module = done.stdout.split()
    assert find(installed, "sitecustomize.py").samefile(hook) and find(installed, "sampler_copy.py").samefile(module)


def test_nothing_stays_after_the_documented_removal(build_dir, installed):
    """ninja uninstall, then ldconfig: no file, no name in the linker's cache (tools/INSTALL.md)."""
    assert "uninstall && ldconfig" in (tools.ROOT / "tools/INSTALL.md").read_text()
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:" + os.environ.get("PATH", ""))
    if os.geteuid() or not ldconfig:
        pytest.skip("ldconfig -r needs root")
    library = find(installed, "libddpfs_stage.so.0")
    (installed / "etc").mkdir(exist_ok=True)
    (installed / "etc/ld.so.conf").write_text("/" + str(library.parent.relative_to(installed)) + "\n")

    def cached():
        tools.run([ldconfig, "-r", installed])
        return "libddpfs_stage" in tools.run([ldconfig, "-r", installed, "-p"]).stdout

    assert cached()
    tools.run(["ninja", "-C", build_dir, "uninstall"])
    assert [p for p in installed.rglob("*") if not p.is_dir() and p.parts[-2] not in ("etc", "ldconfig")] == []
    assert not cached()
