# SPDX-License-Identifier: Apache-2.0
"""The control socket: its protocol, who may use it, and garbage."""

import json
import os
import random
import signal
import stat
import subprocess
import sys

import pytest

from helpers import tools
from helpers.mounts import is_mounted, kill_with_supervisor
from helpers.waiting import PATIENCE_S, wait_until
from mount import control
from mount.control import ask, connect, raw


def test_info_and_stat(mount, pack, tree):
    dataset = pack(tree[0])
    m = mount(dataset, "rank=1,world=2,seed=7")
    info = ask(m, "info")
    assert info["ok"] and info["pid"] == m.process.pid
    assert info["mountpoint"] == os.path.realpath(m.path) and info["dataset"] == os.path.realpath(dataset)
    assert (info["rank"], info["world"], info["seed"], info["layout"], info["view"]) == (1, 2, 7, "flat", "rank")
    assert info["dev"] == os.stat(m.path).st_dev
    assert info["view_identity"] == os.getxattr(m.path, "user.ddpfs.view").decode()
    assert ask(m, "stat")["stats"]["epoch"] == 0


def test_the_socket_is_the_owners(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    path = control.directory() / f"{m.process.pid}.sock"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) & 0o077 == 0
    m.unmount()
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_another_user_is_refused(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    path = control.directory() / f"{m.process.pid}.sock"
    path.parent.chmod(0o755)
    path.chmod(0o666)  # even when the file's mode is opened up, the peer's uid is looked at
    code = (f"import os, socket; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
            f"s.connect({str(path)!r}); s.sendall(b'{{\"cmd\":\"info\"}}\\n'); print(s.recv(100))")
    try:
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    finally:
        path.parent.chmod(0o700)
        path.chmod(0o600)
    assert "pid" not in out.stdout
    assert ask(m, "info")["ok"]


@pytest.mark.parametrize("line", [
    b"", b"{", b"[]", b"null", b'{"cmd":1}', b'{"cmd":"nothing"}', b'{"cmd":"info","x":1}', b'{"cmd":"epoch","set":-1}',
    b'{"cmd":"epoch","set":1.5}', b'{"cmd":"epoch","set":4294967296}', b'{"cmd":"epoch","set":"1"}',
    b'{"cmd":"epoch","advance":"x"}', b'{"cmd":"state","steps":-1}', b'{"cmd":"state","epoch":1}',
    b'{"cmd":"state","steps":1e3}', b'{"cmd":"state","steps":1,"turns":1}', b'{"cmd":"state","turns":"1"}',
    b'{"cmd":"info","cmd":"info"}', b"\xff\xfe", b'{"cmd":"info"', b"[" * 5000,
    b'{"cmd":"in\x00fo"}'])
def test_garbage_is_refused_with_a_reason(mount, pack, tree, line):
    m = mount(pack(tree[0]), "rank=0,world=2")
    reply = json.loads(raw(m, line + b"\n"))
    assert reply["ok"] is False and reply["error"]
    assert ask(m, "info")["ok"]


def test_what_is_refused_changes_nothing(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    before = ask(m, "epoch")
    assert not ask(m, "epoch", set=5, advance="x")["ok"]
    assert not ask(m, "epoch", set=-1, advance="off")["ok"]
    assert ask(m, "epoch") == before
    both = ask(m, "epoch", set=5, advance="off")
    assert (both["ok"], both["epoch"], both["advance"]) == (True, 5, "off")


def test_no_command_but_unmount_unmounts(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    for command in ("info", "stat", "epoch", "state", "consumed", "neighbour", "restart"):
        reply = ask(m, command)
        assert reply["ok"] == (command in ("info", "stat", "epoch", "state")), (command, reply)
        assert is_mounted(m.path) and len(os.listdir(m.path)) > 0, command


def test_a_line_without_end_is_bounded(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    with connect(m) as sock:
        try:
            for _ in range(100):
                sock.sendall(b"x" * 4096)
        except OSError:
            pass
    assert ask(m, "info")["ok"]


def test_many_requests_on_one_connection(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    with connect(m) as sock:
        sock.sendall(b'{"cmd":"info"}\n' * 50)
        lines = sock.makefile("rb")
        assert all(json.loads(lines.readline())["ok"] for _ in range(50))


def test_requests_in_pieces_and_random_bytes(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    with connect(m) as sock:
        for byte in b'{"cmd":"epoch"}\n':
            sock.sendall(bytes([byte]))
        assert json.loads(sock.makefile("rb").readline())["epoch"] == 0
    rng = random.Random(1)
    for _ in range(200):
        with connect(m) as sock:
            sock.sendall(rng.randbytes(rng.randrange(300)))
    assert ask(m, "info")["ok"]


def test_clients_that_hang_do_not_block_others(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    idle = [connect(m) for _ in range(15)]
    try:
        assert ask(m, "info")["ok"]
    finally:
        for sock in idle:
            sock.close()


def test_a_client_that_never_reads(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    with connect(m) as sock:
        sock.setblocking(False)
        try:
            for _ in range(2000):
                sock.send(b'{"cmd":"stat"}\n')
        except BlockingIOError:
            pass
        assert ask(m, "info")["ok"]


def test_unmount_ends_the_server(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    assert ask(m, "unmount") == {"ok": True}
    assert m.process.wait(timeout=PATIENCE_S) == 0
    assert not os.path.ismount(m.path)


def test_unmount_of_a_busy_mount_is_refused_unless_lazy(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    name = next(n for n in os.listdir(m.path) if os.stat(m.path / n).st_size)
    with open(m.path / name, "rb") as f:
        reply = ask(m, "unmount")
        assert not reply["ok"] and "busy" in reply["error"]
        assert os.path.ismount(m.path) and ask(m, "info")["ok"]
        assert ask(m, "unmount", lazy=True)["ok"]
        assert not os.path.ismount(m.path)
        assert f.read() in tree[1].values(), "who has a file open goes on reading"
        assert m.process.poll() is None
    assert m.process.wait(timeout=PATIENCE_S) == 0


def test_a_dead_mount_in_use_names_umount_f(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    with next(p for p in sorted(m.path.iterdir()) if p.is_file()).open("rb"):
        assert "umount -f" not in tools.ddpfs("umount", m.path, check=False).stderr, "its server lives"
        kill_with_supervisor(m.process.pid, m.server_pid())
        m.process.wait()
        said = tools.ddpfs("umount", m.path, check=False)
        assert said.returncode == 1 and "is in use" in said.stderr and "'umount -f'" in said.stderr
    tools.ddpfs("umount", m.path)
    assert not os.path.ismount(m.path)


def test_a_dead_servers_socket_is_removed(mount, pack, tree):
    dataset = pack(tree[0])
    m = mount(dataset, "rank=0,world=2")
    path = control.directory() / f"{m.process.pid}.sock"
    kill_with_supervisor(m.process.pid, m.server_pid())
    m.process.wait()
    assert path.exists()
    subprocess.run(["umount", "-l", m.path], check=True)
    again = mount(dataset, "rank=0,world=2", mountpoint=m.path)
    assert ask(again, "info")["ok"]
    wait_until(lambda: not path.exists(), "its removal by the greeter of who comes next")
