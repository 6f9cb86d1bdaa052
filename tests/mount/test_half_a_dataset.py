# SPDX-License-Identifier: Apache-2.0
"""A dataset that was copied by half is noticed when it is mounted, not in the middle of an epoch."""

import os
import shutil
import signal
import subprocess

import pytest

from helpers import tools
from helpers.waiting import wait_until
from mount.control import wait_for_log


@pytest.fixture
def shards(scratch, pack):
    root = scratch / "files"
    root.mkdir()
    for i in range(40):
        (root / f"{i:02}.bin").write_bytes(os.urandom(4096))
    dataset = pack(root, "--shard-size=64K")
    found = sorted(dataset.glob("shard-*"))
    assert len(found) > 2
    return dataset, found


def test_a_whole_dataset_is_mounted_without_a_word(mount, shards):
    m = mount(shards[0], "view=all")
    m.unmount()
    assert "shards looked at" not in m.log()


def test_a_successor_does_not_say_it_again(mount, shards):
    dataset, found = shards
    found[-1].unlink()
    m = mount(dataset, "view=all")
    wait_for_log(m, "shards looked at")
    os.kill(m.server_pid(), signal.SIGKILL)
    wait_for_log(m, "answers again")
    assert m.log().count("shards looked at") == 1


@pytest.mark.parametrize("how", ["missing", "short", "long"])
def test_a_shard_that_is_not_as_the_index_says_is_named(mount, shards, how):
    dataset, found = shards
    if how == "missing":
        found[-1].unlink()
    else:
        os.truncate(found[-1], 1000 if how == "short" else found[-1].stat().st_size + 512)
    m = mount(dataset, "view=all")
    log = wait_for_log(m, "shards looked at")  # the mount answers a moment before it has looked
    assert f"1 of {len(found)} shards looked at are not as the index says" in log
    assert found[-1].name in log


def test_shards_that_may_not_be_read_are_told_for_what_they_are(pack, scratch, shards):
    """By who mounts, and by who reads: no word of damage."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    dataset, found = shards
    for shard in found:
        os.chown(shard, 65534, 65534)
        shard.chmod(0o600)
    place, log = scratch / "mnt", scratch / "log"
    place.mkdir()
    bounded = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    tools.run([*bounded, tools.tool("ddpfs"), "mount", "-o", f"view=all,log={log}", dataset, place])
    try:
        with pytest.raises(OSError):
            (place / "00.bin").read_bytes()
        wait_until(lambda: "readers get EIO" in log.read_text(), "a line about the file")
    finally:
        subprocess.run(["umount", place], check=True)
    said = log.read_text()
    assert "first 'shard-000000.tar': Permission denied" in said
    assert "Permission denied: readers get EIO; whoever mounts must be allowed to read the shards" in said
    assert "quarantine" not in said
