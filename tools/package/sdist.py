# SPDX-License-Identifier: Apache-2.0
"""Packs the sources into an archive that pip can build, and prints its path: python sdist.py OUTPUT

The archive has the files that git knows, with what is changed and new, and two more at its top: pyproject.toml, which
names backend.py to pip, and PKG-INFO.  The same files give the same bytes."""

import gzip
import io
import subprocess
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import pack_wheel  # noqa: E402

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["tools/package"]
"""
MADE = ("PKG-INFO", "pyproject.toml")
MTIME = 315532800  # 1980: of every file, so that the archive does not depend on the checkout's times


def sources(root):
    """Paths below the root: of git, or all if this is an unpacked archive."""
    if (root / ".git").exists():
        said = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                              stdout=subprocess.PIPE, check=True).stdout
        names = said.decode().split("\0")[:-1]
    else:
        names = [str(p.relative_to(root)) for p in root.rglob("*") if "__pycache__" not in p.parts]
    return sorted(name for name in set(names) - set(MADE) if (root / name).is_file())


def pack(root, output):
    """Returns the path of the archive."""
    said = pack_wheel.project(root)
    top = f"{said['name']}-{said['version']}"
    files = [(name, (root / name).read_bytes(), (root / name).stat().st_mode & 0o111) for name in sources(root)]
    files += zip(MADE, (pack_wheel.metadata(root, said, ["LICENSE"]).encode(), PYPROJECT.encode()), (0, 0))
    archive = output / f"{top}.tar.gz"
    unfinished = archive.with_suffix(".unfinished")
    with unfinished.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content, executable in sorted(files):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode = len(content), 0o755 if executable else 0o644
            entry.mtime = MTIME
            tar.addfile(entry, io.BytesIO(content))
    unfinished.replace(archive)
    return archive


if __name__ == "__main__":
    print(pack(Path(__file__).resolve().parents[2], Path(sys.argv[1])))
