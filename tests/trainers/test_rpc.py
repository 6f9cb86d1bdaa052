# SPDX-License-Identifier: Apache-2.0
"""Samples served from a mount by torch.distributed.rpc: the reader's node has the mount, the trainer's has none."""

import hashlib
import json
import socket
import subprocess
import sys

import pytest

from helpers import tools
from trainers import launch

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.trainers


def train(root, report, before=()):
    """`before` stands in front of the reader."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**launch.full_env(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
           "TP_SOCKET_IFNAME": "lo"}
    argv = [sys.executable, launch.HERE / "rpc_train.py", root, report]
    reader = subprocess.Popen([str(a) for a in [*before, *argv]], stdin=subprocess.DEVNULL,
                              env={**env, "RANK": "1"}, preexec_fn=tools.die_with_parent)
    try:
        tools.run(argv, env={**env, "RANK": "0"})
        assert reader.wait(timeout=300) == 0
    finally:
        reader.terminate()
        reader.wait()
    return json.loads(report.read_text())


def test_a_remote_reader(digits, pack, scratch):
    mnt = scratch / "mnt"
    mnt.mkdir()
    plain = train(digits / "val", scratch / "plain.json")
    before = [tools.tool("ddpfs"), "exec", "-o", "view=all", pack(digits), mnt, "--"]
    mounted = train(mnt / "val", scratch / "mounted.json", before)
    assert mounted == plain
    files = sorted(hashlib.sha256(p.read_bytes()).hexdigest() for p in (digits / "val").rglob("*.png"))
    assert sorted(mounted["seen"]) == files
    assert not list(mnt.iterdir()), "the trainer's node has the mount too"
