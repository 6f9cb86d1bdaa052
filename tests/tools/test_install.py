# SPDX-License-Identifier: Apache-2.0
"""meson install: everything is where its users look for it."""

import os
import re
import shutil
import sys

import pytest

from helpers import tools
from lint import sources

sys.path.insert(0, str(tools.ROOT / "tools/package"))
from static_site import USERS  # noqa: E402


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


def test_the_pages_that_programs_and_manuals_name_are_installed(installed):
    """Who has no clone finds them: share/doc/ddpfs/, with the paths that they have in the repository."""
    named = set()
    for name in sources.files():
        if re.search(r"\.[1-8]$", name) or (name.startswith(("tools/", "fs/", "gpu_stage/")) and name.endswith((".c", ".h"))):
            text = sources.text(name)
            strings = [text] if name[-1].isdigit() else re.findall(r'"(?:[^"\\\n]|\\.)*"', text)
            named |= {path for string in strings for path in re.findall(r"[\w./-]+[A-Z]\.md\b", string)}
    assert len(named) > 3
    [doc] = installed.rglob("share/doc/ddpfs")
    for path in named:
        assert path.startswith("share/doc/ddpfs/"), f"{path}: a user who has installed ddpfs does not find it"
        assert (doc / path.removeprefix("share/doc/ddpfs/")).is_file(), path


def test_the_installed_pages_are_those_for_users(installed):
    [doc] = installed.rglob("share/doc/ddpfs")
    users = {page for part in USERS.values() for page in part} - {"tests/bench/README.md"}  # it needs the benches
    assert {str(path.relative_to(doc)) for path in doc.rglob("*.md")} == users


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
