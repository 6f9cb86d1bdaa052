# SPDX-License-Identifier: Apache-2.0
"""The index is truncated or written in place under a live mount: readers get the right bytes or an error, the log has a sentence,
nothing hangs, and the server lives."""

import os

import pytest

from helpers import tools
from helpers.mounts import is_mounted, kill_with_supervisor, unmount
from helpers.waiting import PATIENCE_S
from mount.control import wait_for_log

REFUSED = {5, 116}  # EIO, ESTALE
GONE = {103, 107}  # ECONNABORTED, ENOTCONN


@pytest.fixture
def wide(scratch):
    """Enough names that the index has many pages which the mount has not touched."""
    root = scratch / "wide"
    for d in range(20):
        (root / f"class{d:02}").mkdir(parents=True)
        for i in range(100):
            (root / f"class{d:02}" / f"item{i:04}.txt").write_bytes(f"{d} {i}".encode())
    return root


def read_all(m):
    """Reads every file by its name.  Returns how many could not be read, and with which errors."""
    failed, errors = 0, set()
    for d in range(20):
        for i in range(100):
            try:
                data = (m.path / f"class{d:02}" / f"item{i:04}.txt").read_bytes()
                assert data == f"{d} {i}".encode()
            except OSError as e:
                failed += 1
                errors.add(e.errno)
    return failed, errors


@pytest.mark.parametrize("left", [0, 4096, 65536])
def test_a_truncated_index_is_refused_with_a_sentence(mount, pack, wide, left):
    """The server lives: what is resident is read on, all else is an error."""
    dataset = pack(wide)
    index = dataset / "index.ddpfs"
    m = mount(dataset, "view=all,layout=tree")
    server = m.server_pid()
    resident = m.path / "class00" / "item0000.txt"
    assert resident.read_bytes() == b"0 0"
    index.chmod(0o644)
    assert index.stat().st_size > left
    os.truncate(index, left)
    failed, errors = read_all(m)
    assert failed > 0 and errors <= REFUSED, errors
    log = wait_for_log(m, f"{index}' ")
    assert "somebody wrote into it" in log and "mkshard verify" in log
    assert m.server_pid() == server
    m.unmount()


def test_an_index_whose_disk_fails_ends_the_mount_with_a_sentence(mount, pack, wide):
    """Nobody wrote into it: another server may be able to read it, and tries."""
    dataset = pack(wide)
    below = mount(pack(dataset, "--container=bare", "--common="), "view=all,layout=tree,watchdog=0")
    m = mount(below.path, "view=all,layout=tree,timeout=2")
    m.may_end_with.add(1)
    with open(below.path / "index.ddpfs", "rb") as f:
        kill_with_supervisor(below.process.pid, below.server_pid())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    failed, errors = read_all(m)
    assert failed > 0 and errors <= REFUSED | GONE, errors
    assert m.process.wait(timeout=PATIENCE_S) != 0
    assert f"{below.path}/index.ddpfs' cannot be read any more: its disk fails" in m.log()
    assert "died of signal 7" in m.log()
    assert is_mounted(m.path)  # what the sentence says: unmounting is the user's
    assert not unmount(m.path)


def test_a_truncated_index_that_is_restored_goes_on_with_a_restart(mount, pack, wide):
    dataset = pack(wide)
    index = dataset / "index.ddpfs"
    m = mount(dataset, "view=all,layout=tree")
    data = index.read_bytes()
    index.chmod(0o644)
    os.truncate(index, 0)
    assert read_all(m)[0] > 0
    index.write_bytes(data)
    assert read_all(m)[0] > 0
    tools.ddpfs("restart", m.path)
    assert read_all(m) == (0, set())


def test_an_index_whose_attributes_change_is_read_on(mount, pack, wide):
    dataset = pack(wide)
    index = dataset / "index.ddpfs"
    m = mount(dataset, "view=all,layout=tree")
    index.chmod(0o600)
    os.link(index, dataset / "beside")
    assert read_all(m) == (0, set())
    (dataset / "beside").unlink()
    os.rename(dataset, dataset.with_name("elsewhere"))
    assert read_all(m) == (0, set())


def test_an_index_replaced_by_rename_does_no_harm(mount, pack, wide):
    dataset = pack(wide)
    m = mount(dataset, "view=all,layout=tree")
    beside = dataset / "index.new"
    beside.write_bytes((dataset / "index.ddpfs").read_bytes())
    os.rename(beside, dataset / "index.ddpfs")
    assert read_all(m) == (0, set())


def test_an_index_overwritten_in_place_is_eio_never_wrong_bytes(mount, pack, wide):
    dataset = pack(wide)
    index = dataset / "index.ddpfs"
    m = mount(dataset, "view=all,layout=tree")
    index.chmod(0o644)
    with open(index, "r+b") as f:
        f.seek(8192)
        f.write(b"\xa5" * (index.stat().st_size - 8192))
    failed, errors = read_all(m)
    assert failed > 0 and errors <= REFUSED, errors
    assert m.process.poll() is None
