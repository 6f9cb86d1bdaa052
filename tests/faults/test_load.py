# SPDX-License-Identifier: Apache-2.0
"""tests/faults/load, a hundredth of it: 16 mounts and 64 readers all the same."""

import sys
from pathlib import Path

import pytest

from helpers import tools


@pytest.mark.parametrize("part", ["mounts", "readers", "opens", "names"])
def test_a_little_load(scratch, build_dir, part):
    done = tools.run([sys.executable, Path(__file__).with_name("load"), part, "--scale=0.01"],
                     env={**tools.MEASURED, "TMPDIR": scratch, "DDPFS_BUILD": build_dir})
    assert done.stdout.startswith(part)
