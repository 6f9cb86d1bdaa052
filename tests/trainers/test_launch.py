# SPDX-License-Identifier: Apache-2.0
"""`ddpfs exec` under the launchers themselves: each rank finds its own part, on every host at the same mountpoint."""

import os
import shutil
import sys

import pytest

from helpers import tools
from trainers.launch import ENV
from trainers.slurm import free_ports, slurm  # noqa: F401

pytestmark = pytest.mark.trainers
LAUNCHERS = [["torch.distributed.run"], ["torch.distributed.launch", "--use-env"]]


@pytest.fixture
def dataset(pack, tree):
    """100 samples."""
    return pack(tree[0])


class Ranks:
    """A command for a launcher: every rank notes what it found, then reads a part of it."""

    def __init__(self, dataset, scratch):
        self.notes = scratch / "notes"
        self.notes.mkdir()
        self.mnt = scratch / "mnt"
        self.mnt.mkdir()
        self.dataset = dataset

    def exec(self, *options):
        return [tools.tool("ddpfs"), "exec", *options, self.dataset, self.mnt, "--"]

    def note(self, rank="$DDPFS_RANK"):
        """Lists the mount, checks that its files can be read, and tells whose place it was."""
        return ["sh", "-ec", f'ls {self.mnt} >{self.notes}/{rank}.part; cat {self.mnt}/* >/dev/null; '
                f'printenv SLURMD_NODENAME >{self.notes}/{rank}.node || true; mv {self.notes}/{rank}.part {self.notes}/{rank}']

    def check(self, world):
        parts = [(self.notes / str(rank)).read_text().split() for rank in range(world)]
        steps = [[int(name.split("-")[1]) for name in part] for part in parts]
        assert steps == [list(range(rank, 100, world)) for rank in range(world)]

    def nodes(self, world):
        return [(self.notes / f"{rank}.node").read_text().strip() for rank in range(world)]


@pytest.fixture
def ranks(dataset, scratch):
    scratch.chmod(0o755)
    return Ranks(dataset, scratch)


@pytest.mark.parametrize("module", LAUNCHERS, ids=["torchrun", "launch"])
def test_torchrun_and_its_predecessor(ranks, module):
    pytest.importorskip("torch", reason="torch is not installed")
    done = tools.run([sys.executable, "-m", *module, "--nproc-per-node=4", "--master-port=0", "--no-python",
                      *ranks.exec("-o", "tail=short"), *ranks.note()], env=ENV)
    ranks.check(4)
    assert done.stderr.count("(RANK, WORLD_SIZE: torchrun)") == 4


@pytest.mark.parametrize("module", LAUNCHERS, ids=["torchrun", "launch"])
def test_around_torchrun_with_view_all(ranks, module):
    pytest.importorskip("torch", reason="torch is not installed")
    tools.run([*ranks.exec("-o", "view=all"), sys.executable, "-m", *module, "--nproc-per-node=2", "--master-port=0",
               "--no-python", "sh", "-ec", f"find {ranks.mnt} -type f >{ranks.notes}/$RANK"], env=ENV)
    found = [sorted((ranks.notes / str(rank)).read_text().split()) for rank in range(2)]
    assert found[0] == found[1] and len(found[0]) == 100


@pytest.mark.parametrize("launcher", ["ompi", None])
def test_mpirun(ranks, launcher):
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    chosen = ["--launcher=ompi"] if launcher else []
    done = tools.run(["mpirun", *root, "--oversubscribe", "-np", 3, *ranks.exec(*chosen, "-o", "tail=short"), *ranks.note()])
    ranks.check(3)
    assert done.stderr.count("OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE: ompi") == 3


def test_a_rank_that_fails_ends_an_mpi_job(ranks):
    """The exit status is the command's, and no server holds the job's output open."""
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    done = tools.run(["mpirun", *root, "--oversubscribe", "-np", 2, *ranks.exec("-q"), "sh", "-c",
                      '[ "$DDPFS_RANK" = 0 ] && exit 7; sleep 1000'], check=False)
    assert done.returncode == 7


def test_srun_on_two_nodes(ranks, slurm):  # noqa: F811
    done = slurm.run("srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", *ranks.exec("-o", "tail=short"), *ranks.note())
    ranks.check(4)
    assert sorted(ranks.nodes(4)) == ["n1", "n1", "n2", "n2"]
    assert done.stderr.count("SLURM_PROCID, SLURM_STEP_NUM_TASKS: slurm") == 4


def test_srun_around_torchrun(ranks, slurm):  # noqa: F811
    """Torchrun's ranks count, not srun's tasks: a task is a node's torchrun."""
    pytest.importorskip("torch", reason="torch is not installed")
    slurm.run("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", sys.executable, "-m", "torch.distributed.run",
              "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_ports(1)[0]}",
              "--rdzv-id=1", "--no-python", *ranks.exec("-o", "tail=short"), *ranks.note(), env=ENV)
    ranks.check(4)
    assert sorted(ranks.nodes(4)) == ["n1", "n1", "n2", "n2"]


def test_outside_a_step_of_srun_no_rank_is_guessed(ranks, slurm):  # noqa: F811
    """A batch script has SLURM_PROCID=0 of SLURM_NTASKS: one process is not all of them."""
    script = ranks.notes / "batch"
    script.write_text("#!/bin/sh\n" + " ".join(map(str, ranks.exec())) + f" true 2>{ranks.notes}/said\n"
                      f"echo $? >{ranks.notes}/code\n")
    slurm.run("sbatch", "--wait", "--nodes=2", "--ntasks=4", "--output=/dev/null", script)
    assert (ranks.notes / "code").read_text() == "2\n"
    assert "srun" in (ranks.notes / "said").read_text()
