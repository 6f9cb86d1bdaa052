# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder install: each is built once.

The wheel for users has its compiler and the sources of its libraries from the network, and takes minutes the first time:
`tests/run wheel` builds it.  Without that, $DDPFS_WHEEL=portable, these tests build the same tree with this machine's compiler
and libraries (--native), and skip what only the other wheel has.  What is built stays in build-package/, or in
$DDPFS_PACKAGE_WORK."""

import os
from pathlib import Path

import pytest

from helpers import tools
from helpers.tools import ROOT

WORK = Path(os.environ.get("DDPFS_PACKAGE_WORK", ROOT / "build-package"))
PORTABLE = os.environ.get("DDPFS_WHEEL") == "portable"
BUILD_SECONDS = 3600
OFFLINE = "could not get the source packages", "could not set up the tools", "apt-get update failed", "could not install"


def built(name, *options):
    """Runs a script of tools/package/."""
    done = tools.run([ROOT / "tools/package" / name, *options], check=False, timeout=BUILD_SECONDS)
    if done.returncode != 0 and any(text in done.stderr for text in OFFLINE):
        pytest.skip(f"not built without the network: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def package_work():
    """Where what is built stays."""
    return WORK


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    output = tmp_path_factory.mktemp("wheel")
    built("wheel", *([] if PORTABLE else ["--native"]), "-w", WORK, "-o", output)
    [made] = output.glob("*.whl")
    return made


@pytest.fixture
def portable_wheel(request):
    if not PORTABLE:
        pytest.skip("the wheel for users is built by name: tests/run wheel")
    return request.getfixturevalue("wheel")


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """{name of a Debian package: path}; the script fails when lintian finds an error."""
    output = tmp_path_factory.mktemp("deb")
    built("deb", "-o", output)
    return {path.name.split("_")[0]: path for path in output.glob("*.deb")}
