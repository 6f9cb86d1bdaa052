# SPDX-License-Identifier: Apache-2.0
"""faults/test_overwrite.py for libddpfs_stage: a dataset is overwritten in place under a trainer that reads it by the library."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faults.test_overwrite import made, needs, overwrite, steps  # noqa: F401
from helpers import tools


@pytest.mark.parametrize("first", [0, 40, 98])
@pytest.mark.parametrize("size,way", [("equal", "rsync"), ("longer", "rsync"), ("shorter", "cp")])
def test_another_dataset_is_copied_over_it(build_dir, made, scratch, size, way, first):
    """libddpfs_stage in a trainer: no other byte, and a sentence.  A file that is cut under it may end the process (cp)."""
    needs(way)
    pytest.importorskip("numpy", reason="numpy is not installed")
    victim = scratch / "victim"
    shutil.copytree(made[1], victim)
    reader = subprocess.Popen([sys.executable, Path(__file__).with_name("stage_reader.py"), victim, str(first)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent,
                              env={**os.environ, **tools.CRASHING, "DDPFS_STAGE_LIB": str(build_dir / "gpu_stage/libddpfs_stage.so")})
    try:
        assert reader.stdout.readline() == "so far\n"
        overwrite(steps(victim, made[2][size], "shards first", way))
        said, _ = reader.communicate("go on\n")
    finally:
        reader.kill()
        reader.wait()
    if way == "cp" and reader.returncode == -signal.SIGBUS:
        return
    assert reader.returncode == 0
    result = json.loads(said)
    wrong = [path for path, digest in result["samples"] if hashlib.sha256(made[0][path]).hexdigest() != digest]
    assert wrong == []
    assert result["error"] == errno.ESTALE
    assert f"{victim}/index.ddpfs'" in result["text"] and "mkshard verify" in result["text"]
