# SPDX-License-Identifier: Apache-2.0
"""The files that the lint tests look at: what git tracks or would track, so that build outputs never count."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def files():
    """Paths relative to the root, sorted.  Without git: every file but those in dot and build folders."""
    try:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, text=True, check=True).stdout
        names = [n for n in listed.split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
        names = [n for n in names if n != ".git" and not n.startswith(("build", ".venv/", ".git/")) and "__pycache__" not in n]
    return sorted(n for n in set(names) if (ROOT / n).is_file())


def c_files():
    return [n for n in files() if n.endswith((".c", ".h"))]


def text(name):
    return (ROOT / name).read_text(errors="replace")


def first_line(name):
    with open(ROOT / name, "rb") as f:
        return f.readline(200).decode(errors="replace").strip()


def scripts(interpreter):
    """Executable scripts by the interpreter their first line names."""
    return [n for n in files() if first_line(n).startswith("#!") and interpreter in first_line(n)]
