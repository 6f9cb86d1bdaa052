# SPDX-License-Identifier: Apache-2.0
"""README's command for one's own directory, as a newcomer runs it, and interrupted."""

import os
import re
import signal
import subprocess
import time

import pytest

from helpers import mounts, tools

QUICKSTART = tools.ROOT / "tools" / "quickstart"


def test_own_directory(tree, scratch, build_dir):
    source, files = tree
    done = tools.run([QUICKSTART, source, scratch / "dataset"], env={"TMPDIR": scratch})
    assert "rank 0 of 2" in done.stdout and "rank 1 of 2" in done.stdout
    assert f"compared     {len(files)} files with the originals: equal" in done.stdout
    assert " MB/s, " in done.stdout
    assert not mounts.mounts_below(scratch)
    assert sorted(os.listdir(scratch)) == ["dataset", "tree"], "scratch files were left"
    assert tools.mkshard("verify", scratch / "dataset").returncode == 0


def test_what_cannot_be_packed_is_left_out_and_told(tree, scratch, build_dir):
    """The first try of a newcomer does not end at one file: its name and its reason, the number in the result."""
    source, files = tree
    (source / "dangling").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    done = tools.run([QUICKSTART, source, scratch / "dataset"], env={"TMPDIR": scratch})
    for name in ("dangling", "pipe"):
        assert re.search(f"left out '.*{name}': ", done.stderr)
    assert "left out     2 files that cannot be packed, named above" in done.stdout
    assert f"compared     {len(files)} files with the originals: equal" in done.stdout


def test_an_empty_directory_is_said(scratch, build_dir):
    (scratch / "empty/below").mkdir(parents=True)
    done = tools.run([QUICKSTART, scratch / "empty", scratch / "dataset"], env={"TMPDIR": scratch}, check=False)
    assert done.returncode == 1 and f"'{scratch}/empty' holds no files" in done.stderr
    assert done.stderr.count("\n") == 1 and "keep-going" not in done.stderr
    assert sorted(os.listdir(scratch)) == ["empty"]


def test_missing_directory_is_said(build_dir):
    done = tools.run([QUICKSTART, "/no/such/directory"], check=False)
    assert done.returncode == 1
    assert "'/no/such/directory' is no directory" in done.stderr


def test_what_is_there_already_stays(tree, scratch, build_dir):
    (scratch / "there").mkdir()
    (scratch / "there/file").write_text("x")
    done = tools.run([QUICKSTART, tree[0], scratch / "there"], check=False)
    assert done.returncode == 1 and "exists already: name another place, or remove it" in done.stderr
    assert (scratch / "there/file").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_mount(tree, scratch, build_dir, signum):
    source, _ = tree
    process = subprocess.Popen([QUICKSTART, source, scratch / "dataset"], env={**os.environ, "TMPDIR": str(scratch)},
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        while process.poll() is None and not mounts.mounts_below(scratch):
            time.sleep(0.005)
        process.send_signal(signum)
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    assert code in (0, 128 + signum), code
    assert not mounts.mounts_below(scratch)
    assert "ddpfs." not in " ".join(os.listdir(scratch))
