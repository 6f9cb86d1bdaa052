# SPDX-License-Identifier: Apache-2.0
"""What the processes of a mount have given up by the time that it answers."""

import contextlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from helpers import mounts, tools
from helpers.private import Private
from helpers.waiting import wait_until
from mount.control import ask, directory, stats

SYS_ADMIN, DAC_READ_SEARCH, IPC_LOCK, DAC_OVERRIDE = 1 << 21, 1 << 2, 1 << 14, 1 << 1
SERVER = SYS_ADMIN | DAC_READ_SEARCH | IPC_LOCK


def status(pid, task=None):
    text = Path(f"/proc/{pid}/task/{task or pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def capabilities(fields):
    return {int(fields[name], 16) for name in ("CapPrm", "CapEff")}


@pytest.fixture(scope="module")
def filters(build_dir):
    """Builds with a sanitizer have none, whose runtime does more than a server."""
    ninja = (build_dir / "build.ninja").read_text()
    return "DDPFS_SECCOMP" in ninja and "-fsanitize=" not in ninja


def threads(pid):
    """The status of every thread that is there; one that ends meanwhile is none."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(status(pid, task))
    return found


def test_every_thread_of_a_server_is_confined(mount, pack, tree, filters, build_dir):
    if "-fsanitize=thread" in (build_dir / "build.ninja").read_text():
        pytest.skip("ThreadSanitizer has a thread of its own from before")
    m = mount(pack(tree[0]), "rank=0,world=2")
    before = capabilities(status("self", os.getpid()))
    first = m.server_pid()
    for pid in (first, None):  # the second one is a successor
        pid = pid or m.server_pid()
        # A thread names itself once it runs, which can be later than the first answer.
        wait_until(lambda pid=pid: {"ddpfs-server", "engine", "deliver", "fuse-0"} <= {f["Name"] for f in threads(pid)})
        for fields in threads(pid):
            assert capabilities(fields) <= {c & SERVER for c in before}, fields["Name"]
            assert fields["CapInh"] == fields["CapAmb"] == "0" * 16
            if filters:
                assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1"), fields["Name"]
        assert status(pid)["NoNewPrivs"] == "1"
        if pid == first:
            os.kill(pid, 9)
            wait_until(lambda: m.server_pid() != first)
    assert all((m.path / ".ddpfs/all" / path).read_bytes() == data for path, data in tree[1].items())


def sockets_of(pid):
    """[(type, path)] of the unix sockets that a process has; None where one of its sockets is none or came and went."""
    places = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            places.append(os.readlink(fd))
    # Num RefCount Protocol Flags Type St Inode [Path]; types: 1 stream, 5 packets
    table = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    known = {f"socket:[{fields[6]}]": (fields[4], "".join(fields[7:])) for fields in table}
    sockets = [known.get(place) for place in places if place.startswith("socket:")]
    return None if None in sockets else sockets


def test_a_server_has_no_socket_but_those_to_its_supervisor_and_its_users(mount, pack, tree):
    """... and a confined one can make no other (tests/fs/test_confine.c)."""
    m = mount(pack(tree[0]), "rank=0,world=2")
    first = m.server_pid()
    os.kill(first, 9)
    second = wait_until(lambda: (now := m.server_pid()) != first and now)
    at = str(directory() / f"{m.process.pid}.sock")
    sockets = wait_until(lambda: sockets_of(second), "a look at all of them between two clients")
    assert sockets.count(("0005", "")) == 1 and len(sockets) >= 2
    # bound under another name first (fs/control_server.c); the socket of who is being answered has that, too
    assert all(kind == "0001" and path.startswith(at) for kind, path in sockets if kind != "0005"), sockets


def test_the_filter_can_be_switched_off(mount, pack, tree, monkeypatch):
    monkeypatch.setenv("DDPFS_SECCOMP", "off")
    m = mount(pack(tree[0]), "rank=0,world=2")
    fields = status(m.server_pid())
    assert (fields["Seccomp"], fields["NoNewPrivs"]) == (status("self", os.getpid())["Seccomp"], "1")


def test_the_supervisor_keeps_what_unmounting_takes(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    before = capabilities(status("self", os.getpid()))
    fields = status(m.process.pid)
    assert capabilities(fields) == {c & (SERVER | DAC_OVERRIDE) for c in before}
    m.unmount()


def test_unmounting_by_request(mount, pack, tree):
    """The server asks the supervisor, whose answer is the client's."""
    m = mount(pack(tree[0]), "view=all,layout=tree")
    fd = os.open(m.path / "class_00", os.O_RDONLY)
    try:
        for _ in range(3):
            reply = ask(m, "unmount")
            assert not reply["ok"] and "busy" in reply["error"]
        assert os.listdir(fd)
        assert ask(m, "unmount", lazy=True) == {"ok": True}
        assert not mounts.is_mounted(m.path) and len(os.listdir(fd)) == 20
    finally:
        os.close(fd)
    assert m.process.wait() == 0
    m = mount(pack(tree[0]), "view=all,layout=tree")
    assert ask(m, "unmount") == {"ok": True}
    assert m.process.wait() == 0


def refused(m, program):
    reply = ask(m, "restart", program=str(program))
    assert not reply["ok"]
    return reply["error"]


def test_a_supervisor_runs_no_program_that_others_can_replace(mount, pack, tree, scratch):
    shutil.copy(tools.tool("ddpfs"), tree[0] / "class_00/ddpfs")
    m = mount(pack(tree[0]), "view=all,layout=tree")
    first = m.server_pid()
    place = scratch / "place"
    place.mkdir()
    program = place / "ddpfs"
    shutil.copy(tools.tool("ddpfs"), program)
    program.chmod(0o757)
    said = refused(m, program)
    if "cannot hand requests over" in said:
        pytest.skip(said)
    assert f"mode of '{program}'" in said
    program.chmod(0o755)
    place.chmod(0o777)
    assert f"mode of '{place}'" in refused(m, program)
    (scratch / "link").symlink_to(program)
    assert f"mode of '{place}'" in refused(m, scratch / "link")
    place.chmod(0o755)
    if os.geteuid() == 0 and os.stat(tools.tool("ddpfs")).st_uid != 65534:
        os.chown(program, 65534, 65534)
        assert f"owner or mode of '{program}'" in refused(m, program)
        os.chown(program, 0, 0)
    assert "in the mount itself" in refused(m, m.path / "class_00/ddpfs")
    assert m.server_pid() == first
    tools.run([scratch / "link", "restart", m.path])
    assert m.server_pid() != first


def test_nothing_is_left_for_others_to_read(mount, pack, tree, scratch):
    """Whatever the mask of who mounts: no socket, log or other file that everybody may read or write."""
    mask = os.umask(0)
    try:
        log = scratch / "log"
        m = mount(pack(tree[0]), f"rank=0,world=2,log={log},control={scratch}/ctl")
        other = mount(pack(tree[0]), "rank=0,world=2")
    finally:
        os.umask(mask)
    assert stats(other)["opens"] == 0
    assert stat.S_IMODE(os.stat(scratch / "ctl").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(log).st_mode) & 0o007 == 0
    assert stat.S_IMODE(os.stat(directory()).st_mode) & 0o022 == 0 and os.stat(directory()).st_uid == os.geteuid()
    for mounted in (m, other):
        for pid in (mounted.process.pid, *map(int, subprocess.run(
                ["pgrep", "-x", "-P", str(mounted.process.pid), "ddpfs-server"],
                capture_output=True, text=True, check=True).stdout.split())):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                place = os.readlink(fd)
                if place.startswith(("/dev/", "socket:", "anon_inode:", "pipe:")) or str(scratch / "mnt") in place:
                    continue
                st = os.stat(fd)
                flags = Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().split("flags:\t")[1].split()[0]
                writable = int(flags, 8) & os.O_ACCMODE
                assert not writable or "memfd:" in place or stat.S_IMODE(st.st_mode) & 0o007 == 0, place


def test_owners_that_another_users_file_system_makes_up_are_not_believed(build_dir, pack, tree, scratch):
    """A program that looks like root's, on a mount of nobody's that anybody may read."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    private = Private(scratch)
    evil = private.directory_of_nobody("evil")
    shutil.copy(tools.tool("ddpfs"), tree[0] / "class_00/ddpfs")
    dataset = pack(tree[0])
    (scratch / "fuse.conf").write_text("user_allow_other\n")
    (scratch / "mnt").mkdir()
    said = private.run(f"""
        mount --bind {scratch}/fuse.conf /etc/fuse.conf
        $nobody $ddpfs mount -o view=all,layout=tree,allow_other,uid=0,gid=0 {dataset} {evil}
        stat -c %u {evil} {evil}/class_00/ddpfs
        $ddpfs mount -o view=all,layout=tree {dataset} mnt
        ! {evil}/class_00/ddpfs restart mnt 2>&1
        $ddpfs umount mnt
        $nobody $ddpfs umount {evil}
        """).stdout
    if "cannot hand requests over" in said:
        pytest.skip(said)
    assert said.startswith("0\n0\n")
    assert f"others can replace it, by the owner or mode of '{evil}' or by who mounted" in said
