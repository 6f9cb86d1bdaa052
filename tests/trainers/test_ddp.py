# SPDX-License-Identifier: Apache-2.0
"""Other ways of starting DDP: torch.distributed.launch, and two "nodes", each a torchrun of its own on the loopback."""

import socket
import subprocess
import sys

import pytest

from helpers import tools
from trainers import launch

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.trainers


def arguments(root, stem):
    return [launch.TRAINER, "--train", root / "train", "--val", root / "val", "--epochs", 2, "--report", stem]


def test_torch_distributed_launch(digits, pack, mount, scratch):
    plain = launch.train_on_files(digits, scratch / "plain")
    root = mount(pack(digits), "view=all").path
    tools.run([sys.executable, "-W", "ignore", "-m", "torch.distributed.launch", "--nproc-per-node=2", "--use-env",
               f"--master-port={free_port()}", *arguments(root, scratch / "mounted")], env=launch.ENV)
    assert launch.reports(scratch / "mounted", 2) == plain


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("view", ["all", "rank"])
def test_two_nodes(digits, pack, scratch, view):
    """A torchrun and mounts for each node; both nodes mount at the same path, each in a namespace of its own."""
    plain = launch.train_on_files(digits, scratch / "plain", world=4)
    dataset, mnt, ddpfs = pack(digits), scratch / "mnt", tools.tool("ddpfs")
    mnt.mkdir()
    around, inside = [], [sys.executable, *arguments(mnt, scratch / "mounted")]
    if view == "all":
        around = [ddpfs, "exec", "-o", "view=all", dataset, mnt, "--"]
    else:
        inside = [ddpfs, "exec", "-o", "order=torch,subdir=train,seed=0", dataset, mnt, "--", sys.executable,
                  launch.TRAINER, "--train", mnt, "--val", mnt / ".ddpfs/all/val", "--sampler", "none", "--epochs", 2,
                  "--report", scratch / "mounted"]
    port, nodes = free_port(), []
    try:
        for node in range(2):
            argv = [*around, sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2",
                    f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}", "--no-python", *inside]
            log = open(scratch / f"node{node}.log", "w")
            nodes.append(subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          env=launch.full_env(), preexec_fn=tools.die_with_parent))
        codes = [node.wait(timeout=600) for node in nodes]
    finally:
        for node in nodes:  # torchrun ends its ranks when it is asked to end
            node.terminate()
            node.wait()
    logs = "".join((scratch / f"node{node}.log").read_text() for node in range(2))
    assert codes == [0, 0], logs
    assert launch.reports(scratch / "mounted", 4) == plain
