"""The index is truncated in place under a live mount: readers get an error, the log has a sentence, nothing hangs."""

import os

import pytest

from helpers.mounts import is_mounted, unmount
from helpers.waiting import PATIENCE_S

GONE = {5, 103, 107}  # EIO, ECONNABORTED, ENOTCONN


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
def test_a_truncated_index_ends_the_mount_with_a_sentence(mount, pack, wide, left):
    dataset = pack(wide)
    index = dataset / "index.ddpfs"
    m = mount(dataset, "view=all,layout=tree")
    m.may_end_with.add(1)
    index.chmod(0o644)
    assert index.stat().st_size > left
    os.truncate(index, left)
    failed, errors = read_all(m)
    assert failed > 0 and errors <= GONE, errors
    code = m.process.wait(timeout=PATIENCE_S)
    assert code != 0
    assert f"{index}' cannot be read any more" in m.log()
    assert f"the server of the mount '{m.path}' ends" in m.log()  # and those that come after it do not begin
    assert "died of signal 7" in m.log() and "5 times within 60 s" in m.log()
    assert is_mounted(m.path)  # what the sentence says: unmounting is the user's
    assert not unmount(m.path)


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
    assert failed > 0 and errors == {5}, errors
    assert m.process.poll() is None
