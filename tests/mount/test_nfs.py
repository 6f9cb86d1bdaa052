# SPDX-License-Identifier: Apache-2.0
"""A mount exported by an NFS server that asks for handles (NFS-Ganesha, VFS), read through libnfs."""

import os
import shutil
import signal
import socket
import subprocess

import pytest

from helpers import datasets, tools
from helpers.waiting import wait_until

CONFIG = """
NFS_CORE_PARAM {{ NFS_Port = {port}; Protocols = 4; Bind_addr = 127.0.0.1; Enable_UDP = false; Enable_NLM = false;
                  Enable_RQUOTA = false; }}
NFSV4 {{ Graceless = true; RecoveryRoot = "{place}"; RecoveryBackend = fs; }}
EXPORT {{ Export_Id = 1; Path = "{path}"; Pseudo = "/data"; Access_Type = RO; SecType = sys; Squash = None; Protocols = 4;
          FSAL {{ Name = VFS; }} }}
"""


@pytest.fixture
def export(scratch):
    """export(path) -> function that runs `nfs-PROGRAM` on a path below it."""
    for program in ("ganesha.nfsd", "nfs-cat", "nfs-ls"):
        if not shutil.which(program):
            pytest.skip(f"no {program} on this machine (Debian: nfs-ganesha nfs-ganesha-vfs libnfs-utils)")
    servers = []

    def start(path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = scratch / "ganesha"
        place.mkdir()
        (place / "conf").write_text(CONFIG.format(port=port, place=place, path=path))
        log = place / "log"
        servers.append(subprocess.Popen(["ganesha.nfsd", "-F", "-L", log, "-f", place / "conf", "-p", place / "pid"],
                                        preexec_fn=tools.die_with_parent))
        wait_until(lambda: servers[-1].poll() is not None or (log.exists() and "NFS SERVER INITIALIZED" in log.read_text()),
                   "an NFS server that has begun")
        assert servers[-1].poll() is None, log.read_text()

        def run(program, name):
            return subprocess.run([f"nfs-{program}", f"nfs://127.0.0.1/data/{name}?version=4&nfsport={port}"],
                                  capture_output=True, check=True).stdout
        return run

    yield start
    for server in servers:  # it has the mount open; asked to end, it takes seconds, and has nothing to lose
        server.kill()
        server.wait()


@pytest.mark.parametrize("options", ["view=all,layout=tree", "rank=1,world=2,layout=flat"])
def test_exported_over_nfs(pack, tree, mount, export, options):
    m = mount(pack(tree[0]), options)
    want = datasets.read_tree(m.path)
    assert want
    nfs = export(m.path)
    assert sorted(line.split()[-1].decode() for line in nfs("ls", "").splitlines()) == sorted(os.listdir(m.path))
    for turn, path in enumerate(sorted(want)):
        if turn == len(want) // 2:  # the handles that the NFS server holds are those of the next server, too
            before = m.server_pid()
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: m.server_pid() != before, "another server")
        assert nfs("cat", path) == want[path], path
