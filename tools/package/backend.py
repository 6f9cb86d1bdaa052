# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel for this machine, by its compiler and with its libraries.

pip calls build_wheel() for the source archive (PEP 517), in the unpacked archive.  `tools/package/wheel --native` runs

    python backend.py ROOT WORK OUTPUT

ROOT is the checkout; what is compiled stays in WORK for the next run.  Needs Python 3.9, meson, ninja and what
meson.build looks for.  If something is missing, the build ends with one message that names all of it."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # a front end may have read this file by its path
import pack_wheel  # noqa: E402
import sdist  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# In meson.build: what is looked for, and the Debian packages that the message names if it is not there.
DEPENDENCY = re.compile(r"^\w+ = dependency\('(\S+)', version: '(.*?)', required: false\)\n"
                        r"if not \w+\.found\(\)\n  error\('.*?: apt-get install (.*)'\)$", re.M)


def found(*command):
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def compiler():
    return os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")


def missing(root):
    """(what is missing for a build, the Debian packages that have it)."""
    for program, package in ("meson", "meson"), ("ninja", "ninja-build"), ("pkg-config", "pkg-config"):
        if not shutil.which(program):
            yield program, package
    if not found(*compiler().split(), "--version"):
        yield "a C compiler", "gcc libc6-dev"
    for name, version, packages in DEPENDENCY.findall((root / "meson.build").read_text()):
        if not found("pkg-config", f"{name} {version}"):
            yield f"{name} {version}", packages


def check(root):
    lacks = list(missing(root))
    if lacks:
        packages = dict.fromkeys(name for _, names in lacks for name in names.split())
        sys.exit(f"ddpfs: this machine cannot build it: missing: {', '.join(what for what, _ in lacks)}.\n"
                 f"On Debian: apt-get install {' '.join(packages)}\n"
                 "Or install the wheel of ddpfs, which needs no compiler (tools/INSTALL.md).")


def build_tree(root, work):
    """Compiles in a folder; returns the tree that `ninja install` would place, below it."""
    build, tree = work / "native", work / "tree-native"
    if not (build / "build.ninja").exists():
        subprocess.run(["meson", "setup", build, root, "--prefix=/", "--libdir=lib", "-Dtests=disabled",
                        "-Dmount_helper_dir=", "-Dbuildtype=release"], check=True)
    shutil.rmtree(tree, ignore_errors=True)
    jobs = ["-j", os.environ["JOBS"]] if os.environ.get("JOBS") else []
    subprocess.run(["ninja", "-C", build, *jobs], check=True)
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--strip"], check=True,
                   env={**os.environ, "DESTDIR": str(tree)})
    return tree


def native_wheel(root, work, output):
    """Returns the path of the wheel."""
    check(root)
    licenses = work / "licenses-native"
    licenses.mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "LICENSE", licenses)
    return pack_wheel.pack(root, build_tree(root, work), licenses, f"linux_{platform.machine()}", output)


# ---- what pip calls (PEP 517) ----


def get_requires_for_build_wheel(config_settings=None):
    """PyPI has meson and ninja, too; of the C libraries and the compiler it has none."""
    needed = [] if shutil.which("meson") else ["meson>=1.0"]
    needed += [] if shutil.which("ninja") else ["ninja"]
    return needed + ([] if sys.version_info >= (3, 11) else ["tomli"])


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory(prefix="ddpfs-build.") as work:
        return native_wheel(ROOT, Path(work), Path(wheel_directory)).name


def build_sdist(sdist_directory, config_settings=None):
    return sdist.pack(ROOT, Path(sdist_directory)).name


if __name__ == "__main__":
    try:
        print(native_wheel(*map(Path, sys.argv[1:])))
    except subprocess.CalledProcessError as error:
        sys.exit(f"ddpfs: {error}")
