# SPDX-License-Identifier: Apache-2.0
"""mpirun: `ddpfs exec` takes rank and world from its environment, and mpi4py's ranks read each its own part."""

import hashlib
import json
import shutil

import pytest

from helpers import tools
from trainers import heavy, launch

pytestmark = pytest.mark.trainers


def test_ranks_of_mpirun_divide_the_files(tree, pack, scratch):
    heavy.need("mpi4py")
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    source, files = tree
    mnt, report = scratch / "mnt", scratch / "report"
    mnt.mkdir()
    # Ranks that mount at one path need no namespaces to be told apart: `ddpfs exec` gives each its own.
    tools.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 3, tools.tool("ddpfs"), "exec",
               "-o", "layout=flat,tail=short,seed=9", pack(source), mnt, "--", heavy.PYTHON,
               launch.HERE / "mpi_read.py", mnt, report],
              env={**heavy.ENV, "OMPI_MCA_btl_vader_single_copy_mechanism": "none"})
    ranks = json.loads(report.read_text())
    assert len(ranks) == 3 and max(map(len, ranks)) - min(map(len, ranks)) <= 1
    seen = {name.split("-", 2)[2].replace("%2F", "/"): sha for rank in ranks for name, sha in rank.items()}
    assert sum(map(len, ranks)) == len(files)
    assert seen == {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
