# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: two network namespaces with a cable between, whose rate is limited.

    with TwoHosts(megabytes_s=10) as hosts:
        hosts.store.within      words in front of a command that runs on that host
        hosts.cable(up=False)   nothing gets through

A namespace belongs to a process that waits for the end of its standard input.  So both, and the cable with them, are gone
when the test ends, however that happens.  Only the network is another one: files, mounts and Unix sockets are shared."""

import json
import os
import subprocess

import pytest

from helpers import tools

DEVICE = "cable"


class Host:
    def __init__(self, address):
        self.address = address
        words = ["unshare", "--net", "sh", "-c", "echo there; exec cat"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "there\n":
            pytest.skip(f"no network namespaces on this machine: {self.process.communicate()[1].strip()}")
        self.within = ("nsenter", f"--net=/proc/{self.process.pid}/ns/net", "--")

    def run(self, *words, **options):
        return tools.run([*self.within, *words], **options)

    def received_bytes(self):
        found, = json.loads(self.run("ip", "-json", "-statistics", "link", "show", DEVICE).stdout)
        return found["stats64"]["rx"]["bytes"]

    def close(self):
        self.process.communicate()


class TwoHosts:
    """`trainer` and `store`; what the store sends arrives at megabytes_s at most."""

    def __init__(self, megabytes_s):
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        for name in ("ip", "tc", "nsenter", "unshare"):
            if tools.run(["sh", "-c", f"command -v {name}"], check=False).returncode != 0:
                pytest.skip(f"{name} is not installed (Debian: iproute2, util-linux)")
        self.hosts = []
        try:
            self.trainer, self.store = (self._host(f"10.77.0.{i}") for i in (1, 2))
            self._connect(megabytes_s)
        except BaseException:
            self.close()
            raise

    def _host(self, address):
        self.hosts.append(Host(address))
        return self.hosts[-1]

    def _connect(self, megabytes_s):
        done = self.trainer.run("ip", "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns",
                                str(self.store.process.pid), check=False)
        if done.returncode != 0:
            pytest.skip(f"no veth on this machine: {done.stderr.strip()}")
        for host in self.hosts:
            host.run("ip", "address", "add", f"{host.address}/24", "dev", DEVICE)
            host.run("ip", "link", "set", DEVICE, "up")
        done = self.store.run("tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", f"{8 * megabytes_s}mbit", "burst",
                              "64kb", "latency", "100ms", check=False)
        if done.returncode != 0:
            pytest.skip(f"no limited rate (sch_tbf) on this machine: {done.stderr.strip()}")

    def cable(self, up):
        self.trainer.run("ip", "link", "set", DEVICE, "up" if up else "down")

    def close(self):
        for host in self.hosts:
            host.close()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()
