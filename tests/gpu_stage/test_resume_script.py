# SPDX-License-Identifier: Apache-2.0
"""The ten lines of tools/RESUME.md, killed again and again, train what a run trains that nobody kills."""

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import tools  # noqa: E402

SCRIPT = re.search(r"```python\n(.*?)```", (tools.ROOT / "tools" / "RESUME.md").read_text(), re.S).group(1)
# Runs the script (argv[0]) and kills it at its n-th checkpoint, before or after the rename.
KILLED = """
import os, signal, sys
moment, left, rename = sys.argv[1], int(sys.argv[2]), os.replace
def replace(a, b):
    global left
    left -= 1
    if left == 0 and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(a, b)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
os.replace, script, sys.argv = replace, sys.argv[3], sys.argv[3:]
exec(compile(open(script).read(), script, "exec"))
"""


@pytest.fixture
def script(scratch):
    (scratch / "resume.py").write_text(SCRIPT)
    return scratch / "resume.py"


def run(build_dir, *words):
    env = {**os.environ, "DDPFS_STAGE_LIB": str(build_dir / "gpu_stage" / "libddpfs_stage.so"),
           "PYTHONPATH": str(tools.ROOT / "gpu_stage" / "python")}
    return subprocess.run([sys.executable, *map(str, words)], env=env, capture_output=True, text=True, timeout=120)


def test_it_has_ten_lines():
    assert len([line for line in SCRIPT.splitlines() if line.strip()]) == 10


def test_it_goes_on_where_it_was_killed(build_dir, script, scratch, pack, tree):
    root, files = tree
    dataset, whole, parts = pack(root), scratch / "whole.json", scratch / "parts.json"
    done = run(build_dir, script, dataset, whole)
    assert done.returncode == 0, done.stderr
    trained = json.loads(whole.read_text())["model"]
    assert len(trained) == 3 * len(files)
    assert all(sorted(trained[e * len(files):(e + 1) * len(files)]) == sorted(files) for e in range(3))
    # 13 batches an epoch: at the very first, within an epoch, at its last batch, across two.
    for moment, batches in (("before", 1), ("after", 5), ("before", 4), ("after", 5), ("after", 7), ("before", 9)):
        killed = run(build_dir, "-c", KILLED, moment, batches, script, dataset, parts)
        assert killed.returncode == -9, killed.stderr
    done = run(build_dir, script, dataset, parts)
    assert done.returncode == 0, done.stderr
    assert json.loads(parts.read_text())["model"] == trained
    again = run(build_dir, script, dataset, parts)  # everything is trained: nothing is done twice
    assert again.returncode == 0 and json.loads(parts.read_text())["model"] == trained
