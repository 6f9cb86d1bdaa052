# SPDX-License-Identifier: Apache-2.0
"""tests/faults/soak, a third of a minute of it: everything that it does is done at least once."""

import sys
from pathlib import Path

import pytest

from helpers import tools
from helpers.tools import run


@pytest.mark.trainers
def test_a_short_soak(scratch, build_dir):
    done = run([sys.executable, Path(__file__).with_name("soak"), "--minutes=0.33", "--files=480"],
               env={"TMPDIR": scratch, "DDPFS_BUILD": tools.build_dir()})
    assert "bytes compared, all equal" in done.stdout
    print(done.stdout)
