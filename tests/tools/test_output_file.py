# SPDX-License-Identifier: Apache-2.0
"""FILE of `--output` and `--svg`: written where a shell's `> FILE` would write it, and a regular file in one step."""

import os
import stat
import subprocess
import threading

import pytest

from helpers import tools
from tools.test_report import write_log

COMMANDS = ["report", "state", "svg"]


@pytest.fixture
def write(request, scratch):
    """write(file, **kwargs): one of the three commands writes to that file."""
    if request.param == "report":
        log = write_log(scratch / "0.log")
        return lambda file, **kwargs: tools.ddpfs("report", "-o", file, log, **kwargs)
    tree, pack = request.getfixturevalue("tree"), request.getfixturevalue("pack")
    dataset = pack(tree[0])
    if request.param == "svg":
        return lambda file, **kwargs: tools.mkshard("stats", "--epochs=1", "--svg", file, dataset, **kwargs)
    mounted = request.getfixturevalue("mount")(dataset, "rank=0,world=2")
    return lambda file, **kwargs: tools.ddpfs("ctl", mounted.path, "state", "-O", file, **kwargs)


every_command = pytest.mark.parametrize("write", COMMANDS, indirect=True)


def is_whole(text):
    return text.endswith(("</html>\n", "</svg>\n", "}\n"))


@every_command
def test_links_are_followed(write, scratch):
    (scratch / "place").mkdir()
    link = scratch / "link"
    link.symlink_to("place/file")
    for _ in range(2):  # the file is not there yet; it is there
        write(link)
        assert link.is_symlink() and is_whole((scratch / "place/file").read_text())
        assert os.listdir(scratch / "place") == ["file"], "and nothing beside it"


@every_command
def test_a_device_stays_one(write, scratch):
    if os.geteuid() != 0:
        pytest.skip("mknod needs root")
    null = scratch / "null"
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    write(null)
    assert stat.S_ISCHR(null.lstat().st_mode) and null.read_bytes() == b""
    full = scratch / "full"
    os.mknod(full, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    done = write(full, check=False)
    assert done.returncode == 1 and f"'{full}': No space left" in done.stderr


@every_command
def test_a_fifo_gets_the_bytes(write, scratch):
    fifo = scratch / "fifo"
    os.mkfifo(fifo)
    got = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
    reader.start()
    write(fifo)
    reader.join()
    assert is_whole(got[0]) and stat.S_ISFIFO(fifo.lstat().st_mode)


@every_command
def test_a_file_keeps_its_mode_and_the_earlier_one_stays_until_the_end(write, scratch):
    file = scratch / "file"
    file.write_text("earlier")
    file.chmod(0o600)
    with open(file) as earlier:
        write(file)
        assert earlier.read() == "earlier", "not written over in place"
    assert is_whole(file.read_text()) and stat.S_IMODE(file.stat().st_mode) == 0o600


@every_command
def test_what_cannot_be_written_is_told(write, scratch):
    (scratch / "loop").symlink_to("loop")
    for file, said in ((scratch, "directory"), (scratch / "none/file", "No such file"), (scratch / "loop", "symbolic links")):
        done = write(file, check=False)
        assert done.returncode == 1 and f"'{file}': " in done.stderr and said in done.stderr


def test_standard_output_that_is_a_file_by_another_name(scratch):
    log = write_log(scratch / "0.log")
    with open(scratch / "out", "w") as out:
        subprocess.run([tools.tool("ddpfs"), "report", "-o", "/dev/stdout", log], stdout=out, check=True)
    assert is_whole((scratch / "out").read_text())
    with open(scratch / "gone", "w+") as out:
        (scratch / "gone").unlink()
        subprocess.run([tools.tool("ddpfs"), "report", "-o", "/dev/stdout", log], stdout=out, check=True)
        out.seek(0)
        assert is_whole(out.read()) and not list(scratch.glob("gone*"))
