# SPDX-License-Identifier: Apache-2.0
"""clang-format, clang-tidy, shellcheck and the Python compiler have nothing to say."""

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from lint import sources


def need(program):
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    return program


def test_clang_format():
    done = subprocess.run([need("clang-format"), "--dry-run", "-Werror", *sources.c_files()], cwd=sources.ROOT,
                          capture_output=True, text=True)
    wrong = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "error:" in line})
    assert done.returncode == 0, "run clang-format -i on: " + " ".join(wrong)


def compiled(build_dir):
    """C files of this tree that the build compiles, once each."""
    seen = set()
    for command in json.loads((build_dir / "compile_commands.json").read_text()):
        path = os.path.relpath(os.path.realpath(os.path.join(command["directory"], command["file"])), sources.ROOT)
        if path in sources.files():
            seen.add(path)
    return sorted(seen)


def test_clang_tidy(build_dir, scratch):
    """With DDPFS_TIDY=all also the analyzer of paths, which takes 4 s of processor time a file: a quarter of an hour."""
    need("clang-tidy")
    checks = [] if os.environ.get("DDPFS_TIDY") == "all" else ["--checks=-clang-analyzer-*"]
    # The build is gcc's; clang does not know all of its warning names.
    commands = (build_dir / "compile_commands.json").read_text()
    (scratch / "compile_commands.json").write_text(re.sub(r"-W[a-z][\w=-]*", "", commands))

    def check(name):
        done = subprocess.run(["clang-tidy", "--quiet", *checks, "-p", scratch, sources.ROOT / name], cwd=sources.ROOT,
                              capture_output=True, text=True)
        return done.stdout.strip() if done.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [text for text in pool.map(check, compiled(build_dir)) if text]
    assert not said, "\n".join(said)


def test_shellcheck():
    names = sources.scripts("bash") + sources.scripts("/bin/sh")
    assert names, "no shell scripts found: the lint looks at nothing"
    done = subprocess.run([need("shellcheck"), "-x", *names], cwd=sources.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_python_compiles():
    scripts = sources.scripts("python")
    for name in sources.files():
        if name.endswith(".py") or name in scripts:
            compile(sources.text(name), name, "exec")


def test_no_leftovers():
    """Unfinished work is finished or not there; text files end with a newline and have no trailing blanks."""
    word = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
    wrong = []
    for name in sources.files():
        if not name.endswith((".c", ".h", ".py", ".md", ".build", ".txt", ".1", ".5", ".8")) and not first_is_script(name):
            continue
        text = sources.text(name)
        if text and not text.endswith("\n"):
            wrong.append(f"{name}: no newline at its end")
        for number, line in enumerate(text.splitlines(), 1):
            if word.search(line):
                wrong.append(f"{name}:{number}: {line.strip()}")
            if line != line.rstrip():
                wrong.append(f"{name}:{number}: blanks at the end of the line")
    assert not wrong, "\n".join(wrong)


def first_is_script(name):
    return sources.first_line(name).startswith("#!")


def test_every_file_says_its_licence():
    kinds = (".c", ".h", ".py", ".build", ".cu", ".map", ".ini", ".toml", ".yaml", ".bash-completion", ".1", ".3", ".8",
             ".mount", ".clang-format", ".clang-tidy", ".gitignore", ".txt", ".ptx", ".install",
             ".manpages", "debian/control")
    asked = [n for n in sources.files() if "corpus/" not in n and (n.endswith(kinds) or sources.first_line(n).startswith("#!"))]
    without = [n for n in asked if "SPDX-License-Identifier: Apache-2.0" not in sources.text(n)[:300]]
    assert asked and not without, f"no SPDX line at the top of {without}"


def test_lines_fit_120_columns():
    """Comments too, which clang-format leaves alone; rows of tables and addresses may be longer."""
    wrong = []
    for name in sources.files():
        if not name.endswith((".c", ".h", ".md")):
            continue
        for number, line in enumerate(sources.text(name).split("\n"), 1):
            table = name.endswith(".md") and (line.startswith("|") or "://" in line)
            if len(line.expandtabs(8)) > 120 and not table:
                wrong.append(f"{name}:{number}")
    assert not wrong, "longer than 120 columns: " + ", ".join(wrong)
