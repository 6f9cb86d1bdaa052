# SPDX-License-Identifier: Apache-2.0
"""OpenStack Swift with its S3 interface: one device in a directory, four servers on 127.0.0.1.

Debian's package python3-swift suffices, or Swift from PyPI.  Swift runs as whoever runs the tests."""

import getpass
import socket
import subprocess
import sys
import time
from pathlib import Path

REGION = "eu-west-1"
ACCESS_KEY, SECRET_KEY = "test:trainer", "a-secret-of-the-test"
STORAGE = ("account", "container", "object")

RINGS = """
import sys
from swift.common.ring import RingBuilder
place, devices = sys.argv[1], dict(word.split("=") for word in sys.argv[2:])
for name, port in devices.items():
    builder = RingBuilder(2, 1, 1)  # 4 parts, 1 replica
    builder.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "replication_ip": "127.0.0.1",
                     "replication_port": int(port), "device": "disk", "weight": 1, "meta": ""})
    builder.rebalance()
    builder.get_ring().save(f"{place}/{name}.ring.gz")
"""
SERVE = """
import sys
place, server = sys.argv[1:]
from swift.common import utils
utils.SWIFT_CONF_FILE = place + "/swift.conf"  # not /etc/swift
from swift.common.wsgi import run_wsgi
sys.exit(run_wsgi(f"{place}/{server}.conf", f"{server}-server"))
"""

DEFAULT = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {place}
devices = {place}/devices
mount_check = false
fallocate_reserve = 0
"""
PROXY = """[pipeline:main]
pipeline = catch_errors cache s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
location = {region}
[filter:tempauth]
use = egg:swift#tempauth
user_{account}_{name} = {secret} .admin
[filter:slo]
use = egg:swift#slo
"""


def python_with_swift():
    """The interpreter that has Swift, or None."""
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        done = subprocess.run([python, "-c", "import swift.proxy.server, swift.common.middleware.s3api.s3api"],
                              capture_output=True)
        if done.returncode == 0:
            return python
    return None


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class SwiftServer:
    """`url`, `client()`: a boto3 client of a user, `environment()`."""

    secret_key = SECRET_KEY

    def __init__(self, python, place):
        self.place = Path(place)
        self.processes = []
        ports = dict(zip(("proxy", *STORAGE), free_ports(1 + len(STORAGE))))
        self.url = f"http://127.0.0.1:{ports['proxy']}"
        (self.place / "devices/disk").mkdir(parents=True)
        (self.place / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n")
        account, name = ACCESS_KEY.split(":")
        for server, port in ports.items():
            conf = DEFAULT.format(port=port, user=getpass.getuser(), place=self.place)
            conf += (PROXY.format(region=REGION, account=account, name=name, secret=SECRET_KEY) if server == "proxy" else
                     f"[pipeline:main]\npipeline = {server}-server\n[app:{server}-server]\nuse = egg:swift#{server}\n")
            (self.place / f"{server}.conf").write_text(conf)
        subprocess.run([python, "-c", RINGS, self.place, *(f"{server}={ports[server]}" for server in STORAGE)],
                       check=True, capture_output=True)
        for server in ports:
            with open(self.place / f"{server}.log", "w") as log:
                self.processes.append(subprocess.Popen([python, "-c", SERVE, self.place, server], stdout=log,
                                                       stderr=log))
        try:
            self._wait(ports)
        except BaseException:
            self.close()
            raise

    def _wait(self, ports):
        deadline = time.monotonic() + 120
        for (server, port), process in zip(ports.items(), self.processes):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=5).close()
                    break
                except OSError:
                    log = (self.place / f"{server}.log").read_text()
                    assert process.poll() is None and time.monotonic() < deadline, f"{server}: {log}"
                    time.sleep(0.1)

    def client(self):
        import boto3

        return boto3.client("s3", endpoint_url=self.url, region_name=REGION, aws_access_key_id=ACCESS_KEY,
                            aws_secret_access_key=SECRET_KEY)

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_ENDPOINT_URL_S3": self.url, "AWS_REGION": REGION}

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()
