# SPDX-License-Identifier: Apache-2.0
"""Datasets on nginx, which was not made for ddpfs: its ETags, ranges and slow connections."""

import os
import socket
import subprocess

import pytest

from helpers import datasets, tools
from helpers.nginx_server import NginxServer, program
from mount import control


@pytest.fixture
def nginx(scratch):
    """Makes servers of `scratch/objects`."""
    if not program():
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    (scratch / "objects").mkdir()
    servers = []

    def start(**options):
        servers.append(NginxServer(scratch / "objects", scratch / f"nginx{len(servers)}", **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def files(build_dir, scratch, nginx):
    """The files of a packed dataset at `URL/train`."""
    del build_dir
    written = datasets.write_tree(scratch / "source", classes=3, per_class=100, sizes=(0, 1, 20_000, 31_111, 65_536))
    tools.mkshard("pack", "--shard-size=2M", scratch / "source", scratch / "objects/train")
    return written


def contents(path):
    return {name: data for name, data in datasets.read_tree(path).items() if not name.startswith(".ddpfs")}


@pytest.mark.parametrize("rate", [0, 200_000])
def test_files_are_those_that_were_packed(rate, nginx, files, mount):
    """Also if each connection gets little, as far as it stays open."""
    m = mount(f"{nginx(rate=rate).url}/train", "view=all,layout=tree,memory=64M")
    assert contents(m.path) == files
    assert control.stats(m)["errors"] == 0


def test_an_epoch_in_the_own_order(nginx, files, mount):
    m = mount(f"{nginx().url}/train", "rank=0,world=1,order=chunk,memory=64M")
    names = [name for name in os.listdir(m.path) if not name.startswith(".")]
    assert sorted((m.path / name).read_bytes() for name in names) == sorted(files.values())


def test_a_link_that_is_slow_is_said(nginx, files, mount):
    """nginx sends 20,000 bytes a second; a file has three times as many."""
    m = mount(f"{nginx(rate=20_000).url}/train", "view=all,layout=tree,memory=8M")
    names = [name for name in files if len(files[name]) == 65_536]
    for name in names:
        (m.path / name).read_bytes()
        if tools.stat_json(m.path).get("limited_by", "").startswith("link:"):
            return
    pytest.fail("no slow link is said")


def test_a_replaced_shard_gives_no_other_bytes(nginx, files, mount, scratch):
    m = mount(f"{nginx().url}/train", "view=all,layout=tree,memory=64M")
    for shard in (scratch / "objects/train").glob("shard-*"):
        other = scratch / "other"
        other.write_bytes(os.urandom(shard.stat().st_size))
        os.replace(other, shard)
    errors = 0
    for name, data in files.items():
        try:
            assert (m.path / name).read_bytes() == data
        except OSError:
            errors += 1
    assert errors


def test_a_server_that_comes_back(nginx, files, mount):
    """nginx ends under a mount, and is started again on its port."""
    server = nginx()
    m = mount(f"{server.url}/train", "view=all,layout=tree,memory=64M")
    server.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=5)
    names = sorted(files)
    reader = subprocess.Popen(["cat", *(m.path / name for name in names)], stdout=subprocess.PIPE)
    again = subprocess.Popen([program(), "-c", server.place / "conf"], stderr=subprocess.DEVNULL)
    try:
        assert reader.communicate(timeout=120)[0] == b"".join(files[name] for name in names)
    finally:
        again.terminate()
        again.wait()
