# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that tools/package/deb builds: what is in each, and that lintian finds no error."""

import re
import subprocess

import pytest

from helpers import tools
from helpers.tools import ROOT

BUILD_SECONDS = 3600
OFFLINE = "apt-get update failed", "could not install"


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """{name of a package: path}; the script fails when lintian finds an error."""
    output = tmp_path_factory.mktemp("deb")
    done = tools.run([ROOT / "tools/package/deb", "-o", output], check=False, timeout=BUILD_SECONDS)
    if done.returncode != 0 and any(text in done.stderr for text in OFFLINE):
        pytest.skip(f"no packages without the tools to build them: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name.split("_")[0]: path for path in output.glob("*.deb")}


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
                 "/usr/share/doc/ddpfs/examples/mnt-imagenet.mount", "/usr/share/doc/ddpfs/copyright") == []


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
