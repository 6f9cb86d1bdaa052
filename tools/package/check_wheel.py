# SPDX-License-Identifier: Apache-2.0
"""Checks a wheel that tools/package/wheel built: python check_wheel.py WHEEL GLIBC

Every program and library needs no newer glibc than GLIBC, finds what it needs in glibc or beside itself, and comes with
its licence; the wheel is small.  Prints one line a fault, and exits with 1 if there is one."""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SIZE_MAX = 8 << 20
# What every system with this glibc has.
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def number(version):
    return tuple(int(n) for n in version.split("."))


def glibc_versions(path):
    """The versions of glibc whose symbols a program or library needs."""
    return {v for v in re.findall(r"GLIBC_([0-9.]+)", said("objdump", "-T", str(path)))}


def elf_files(tree):
    for path in sorted(tree.rglob("*")):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            yield path


def faults_of(path, beside, newest):
    for version in glibc_versions(path):
        if number(version) > number(newest):
            yield f"{path.name} needs glibc {version}"
    header = said("objdump", "-p", str(path))
    needed = set(re.findall(r"NEEDED +(\S+)", header))
    for name in sorted(needed - GLIBC - beside):
        yield f"{path.name} needs {name}, which is not in the wheel"
    places = re.findall(r"(?:RUNPATH|RPATH) +(\S+)", header)
    if needed & beside and not all(place.startswith("$ORIGIN") for p in places for place in p.split(":")):
        yield f"{path.name} looks for libraries in {places}"
    if needed & beside and not places:
        yield f"{path.name} does not look for libraries beside itself"


def faults(wheel, newest, tree):
    size = wheel.stat().st_size
    if size > SIZE_MAX:
        yield f"{size} bytes: more than {SIZE_MAX}"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tree)
    files = list(elf_files(tree))
    beside = {p.name for p in files if p.parent.name == "lib"}
    for path in files:
        yield from faults_of(path, beside, newest)
    licenses = {p.parent.name for p in tree.glob("*.dist-info/licenses/*/copyright")}
    sources = sorted(p.parent.name for p in tree.glob("*.dist-info/licenses/*/SOURCE"))
    yield from (f"no licence of {name}" for name in sources if name not in licenses)
    if not list(tree.glob("*.dist-info/licenses/LICENSE")):
        yield "no licence of ddpfs"
    if len(beside) < 2:
        yield "no libraries"


def main(wheel, newest):
    with tempfile.TemporaryDirectory() as tree:
        found = list(faults(Path(wheel), newest, Path(tree)))
    for fault in found:
        print(f"{Path(wheel).name}: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
