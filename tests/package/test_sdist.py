# SPDX-License-Identifier: Apache-2.0
"""The source archive that tools/package/sdist.py packs: pip builds it with meson, or says what is missing."""

import os
import shutil
import subprocess
import sys
import tarfile

import pytest

from helpers import tools
from helpers.tools import ROOT

BUILD_SECONDS = 1800


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    said = tools.run([sys.executable, ROOT / "tools/package/sdist.py", tmp_path_factory.mktemp("sdist")]).stdout
    return said.strip()


@pytest.fixture
def pip(tmp_path):
    """pip(word...) -> CompletedProcess, in a fresh environment below tmp_path."""
    tools.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    tools.run([tmp_path / "venv/bin/python", "-m", "ensurepip", "--default-pip"])

    def run(*words, **environment):
        # The network is not needed: meson and ninja are Debian's, and numpy is left out.
        return tools.run([tmp_path / "venv/bin/python", "-m", "pip", *words], check=False, timeout=BUILD_SECONDS,
                         env={"TMPDIR": tmp_path, **environment})

    return run


def install(pip, archive, **environment):
    return pip("install", "--no-index", "--no-deps", "--no-build-isolation", archive, **environment)


def test_pip_builds_it(pip, archive, tmp_path):
    if not shutil.which("meson") or not shutil.which("ninja"):
        pytest.skip("meson and ninja are not installed")
    done = install(pip, archive)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in "mkshard", "ddpfs", "mount.ddpfs":
        assert tools.run([tmp_path / "venv/bin" / name, "--version"]).stdout.startswith(f"{name} ")
    [module] = tmp_path.glob("venv/lib/python*/site-packages/ddpfs/_lib.py")  # by itself: `import ddpfs` needs numpy
    code = f"import runpy; print(runpy.run_path({str(module)!r})['load']()._name)"
    assert "/ddpfs/native/lib/" in tools.run([tmp_path / "venv/bin/python", "-c", code]).stdout
    assert not list(tmp_path.glob("ddpfs-build.*"))


def test_what_is_missing_is_said_at_once_with_the_packages(pip, archive, tmp_path):
    (tmp_path / "nothing").mkdir()
    done = install(pip, archive, PKG_CONFIG_LIBDIR=tmp_path / "nothing", PKG_CONFIG_PATH="", CC="no-such-compiler")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "ddpfs: this machine cannot build it: missing: a C compiler, libxxhash >= 0.8.0, liburing" in said
    [packages] = [line for line in said.splitlines() if "apt-get install" in line]
    named = set(packages.split("apt-get install ")[1].split())
    assert {"gcc", "libc6-dev", "libxxhash-dev", "liburing-dev", "libfuse3-dev", "libarchive-dev", "libjansson-dev",
            "libcurl4-openssl-dev", "libssl-dev"} <= named
    assert "Traceback" not in said


def test_it_has_what_git_has_and_no_more(archive):
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames()}
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    known = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"],
                           capture_output=True, text=True, check=True).stdout.split()
    assert names == {name for name in known if (ROOT / name).is_file()} | {"PKG-INFO", "pyproject.toml"}


def test_the_same_sources_give_the_same_bytes(archive, tmp_path):
    """Also from the unpacked archive, where git knows nothing."""
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [top] = [tmp_path / name for name in os.listdir(tmp_path)]
    said = tools.run([sys.executable, "-B", top / "tools/package/sdist.py", tmp_path]).stdout.strip()
    with open(said, "rb") as second, open(archive, "rb") as first:
        assert second.read() == first.read()
