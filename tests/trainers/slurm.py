# SPDX-License-Identifier: Apache-2.0
"""Slurm with two virtual nodes on this host, without systemd: munged, slurmctld and two slurmd of the test's own."""

import os
import shutil
import socket
import subprocess
import time

import pytest

from helpers import tools
from helpers.waiting import wait_until

NEEDED = ["munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo"]
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    def __init__(self, place):
        self.place = place
        self.processes = []
        place.mkdir(mode=0o755)
        for name in "state", "spool.n1", "spool.n2":
            (place / name).mkdir(mode=0o755)
        self.conf = place / "slurm.conf"
        self.conf.write_text(CONF.format(host=socket.gethostname().split(".")[0], place=place, ports=free_ports(3)))
        key = place / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    def start(self, *argv):
        """In front, so that there is a process to end."""
        log = open(self.place / f"{len(self.processes)}.{os.path.basename(argv[0])}.out", "wb")
        with log:
            self.processes.append(subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                   env={**os.environ, "SLURM_CONF": str(self.conf)},
                                                   preexec_fn=tools.die_with_parent))

    def up(self):
        place = self.place
        self.start("munged", "-F", "-f", f"--key-file={place}/munge.key", f"--socket={place}/munge.sock",
                   f"--pid-file={place}/munged.pid", f"--log-file={place}/munged.log", f"--seed-file={place}/munged.seed")
        self.wait(lambda: (place / "munge.sock").exists())
        self.start("slurmctld", "-D", "-f", self.conf)
        for node in "n1", "n2":
            self.start("slurmd", "-D", "-f", self.conf, "-N", node)
        self.wait(lambda: self.run("sinfo", "-h", "-o", "%t %D", check=False).stdout.split() == ["idle", "2"])

    def wait(self, what):
        while not what():
            dead = [p for p in self.processes if p.poll() is not None]
            assert not dead, self.said()
            time.sleep(0.1)

    def said(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
                         for path in sorted(self.place.glob("*.out")) + sorted(self.place.glob("*.log")))

    def run(self, *argv, **kwargs):
        return tools.run(argv, env={"SLURM_CONF": self.conf, **kwargs.pop("env", {})}, **kwargs)

    def down(self):
        """The nodes first: the end of a job is told with munged's and slurmctld's help, and a slurmd waits for it."""
        for process in reversed(self.processes):
            process.terminate()
            process.wait()


@pytest.fixture
def slurm(scratch):
    """slurm.run("srun", ...) on the nodes n1 and n2."""
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurmctld slurmd slurm-client munge)")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of its own needs root")
    scratch.chmod(0o755)
    cluster = Slurm(scratch / "slurm")
    try:
        cluster.up()
        yield cluster
        wait_until(lambda: not cluster.run("squeue", "-h").stdout, "the end of all jobs", 0.1)
    finally:
        cluster.down()
