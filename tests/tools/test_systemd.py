# SPDX-License-Identifier: Apache-2.0
"""tools/systemd: the example is a unit that systemd takes, and a mount that mount.ddpfs takes."""

import configparser
import os
import shutil
import sys
from pathlib import Path

import pytest

from helpers import datasets, mounts, tools

UNIT = tools.ROOT / "tools/systemd/mnt-imagenet.mount"
AUTOMOUNT = UNIT.with_suffix(".automount")


def section(unit, name):
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes="#")
    parser.optionxform = str
    parser.read(unit)
    return parser[name]


def mount_section():
    return section(UNIT, "Mount")


def complaints(unit, *others):
    """What systemd-analyze says of a unit; it finds the others that the unit names beside it."""
    done = tools.run(["systemd-analyze", "verify", unit, *others], check=False, env={"XDG_RUNTIME_DIR": unit.parent})
    return done.stdout + done.stderr


@pytest.mark.parametrize("unit, wrong", [(UNIT, "MemoryHigh="), (AUTOMOUNT, "TimeoutIdleSec=")], ids=["mount", "automount"])
def test_systemd_takes_the_unit(scratch, unit, wrong):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    for path in UNIT, AUTOMOUNT:
        shutil.copy(path, scratch)
    copy = scratch / unit.name
    said = [line for line in complaints(copy, scratch / UNIT.name).splitlines() if unit.name in line]
    assert not said, "\n".join(said)
    copy.write_text(unit.read_text().replace(wrong, f"X{wrong[1:]}"))
    said = complaints(copy, scratch / UNIT.name)
    if f"X{wrong[1:-1]}" not in said:
        pytest.skip(f"systemd-analyze looks at no units here: {said.strip()[-300:]}")


def test_the_automount_unit_is_for_the_mount_unit():
    assert section(AUTOMOUNT, "Automount")["Where"] == mount_section()["Where"]
    assert section(AUTOMOUNT, "Install") == section(UNIT, "Install")


def test_mount_ddpfs_takes_its_options_and_the_line_of_fstab(pack, tree, scratch):
    dataset = pack(tree[0])
    (scratch / "mnt").mkdir()
    line = next(line for line in UNIT.read_text().splitlines() if line.startswith("#   /data/imagenet"))
    for options in (mount_section()["Options"], line.split()[4]):
        tools.run([tools.tool("mount.ddpfs"), dataset, scratch / "mnt", "-f", "-o", options])
    wrong = tools.run([tools.tool("mount.ddpfs"), dataset, scratch / "mnt", "-f", "-o", "veiw=all"], check=False)
    assert wrong.returncode != 0
    assert mount_section()["Type"] == "ddpfs" and line.split()[1:4] == [mount_section()["What"], mount_section()["Where"], "ddpfs"]


def test_the_capabilities_of_the_unit_are_enough(pack, tree, scratch):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    kept = [name.removeprefix("CAP_").lower() for name in mount_section()["CapabilityBoundingSet"].split()]
    bounded = ["setpriv", "--bounding-set=" + ",".join(["-all", *(f"+{name}" for name in kept)])]
    (scratch / "mnt").mkdir()
    source, files = tree
    dataset = pack(source)
    dataset.chmod(0o700)
    os.chown(dataset, 65534, 65534)
    tools.run([*bounded, tools.tool("mount.ddpfs"), dataset, scratch / "mnt", "-o", "view=all,memory=64M"])
    try:
        assert datasets.read_tree(scratch / "mnt") == files
        assert kept_by(tools.stat_json(scratch / "mnt")["server_pid"]) <= set(kept)
    finally:
        assert not mounts.unmount(scratch / "mnt")


def kept_by(pid):
    names = {1: "dac_override", 2: "dac_read_search", 14: "ipc_lock", 21: "sys_admin"}
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("CapPrm"))
    bits = int(line.split()[1], 16)
    return {names.get(bit, str(bit)) for bit in range(64) if bits >> bit & 1}


def test_an_automount_unit_mounts(pack, tree, scratch):
    """Who looks into the mountpoint waits until mount.ddpfs has mounted, and then sees the dataset."""
    source, files = tree
    dataset = pack(source)
    (scratch / "mnt").mkdir()
    done = tools.run([sys.executable, Path(__file__).parent / "automounter.py", scratch / "mnt", tools.tool("mount.ddpfs"),
                      dataset, scratch / "mnt", "-o", "view=all,memory=64M"], check=False)
    if done.returncode == 77:
        pytest.skip("no autofs here, or no right to mount it")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted({path.split("/")[0] for path in files})
