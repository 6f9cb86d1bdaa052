# SPDX-License-Identifier: Apache-2.0
"""README's commands for one's own directory and for a bucket, as a newcomer runs them, and interrupted."""

import os
import re
import shutil
import signal
import subprocess
import sys
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


def test_installed_programs_need_no_build(tree, scratch, build_dir):
    source, files = tree
    path = f"{build_dir}/tools:{os.environ['PATH']}"
    done = tools.run([QUICKSTART, "--installed", source, scratch / "dataset"], env={"TMPDIR": scratch, "PATH": path})
    assert f"programs of {build_dir}/tools\n" in done.stdout and "building" not in done.stdout
    assert f"compared     {len(files)} files with the originals: equal" in done.stdout


def test_programs_that_are_not_installed_are_missed(tree, scratch):
    done = tools.run([QUICKSTART, "--installed", tree[0], scratch / "dataset"], check=False,
                     env={"TMPDIR": scratch, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    if shutil.which("ddpfs", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        pytest.skip("ddpfs is installed here")
    assert done.returncode == 1 and "mkshard and ddpfs are not in PATH: tools/INSTALL.md says" in done.stderr


def test_the_page_for_users_says_what_works(digits, scratch, build_dir):
    """Every command of tools/QUICK_START.md, in its order, with other places."""
    page = (tools.ROOT / "tools/QUICK_START.md").read_text()
    script = "set -e\n" + "".join(re.findall(r"```sh\n(.*?)```", page, re.S))
    images = scratch / "images"
    images.symlink_to(digits)
    script = script.replace("/data/images", str(images)).replace("/mnt/ddpfs", str(scratch / "mnt"))
    script = script.replace("train.py", f"{tools.ROOT}/tests/trainers/digits_train.py --epochs 1")
    done = tools.run(["sh", "-c", script], cwd=scratch,
                     env={"PATH": f"{build_dir}/tools:{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "TMPDIR": scratch,
                          "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    assert "\ntrain\nval\n" in done.stdout and re.search(r"^ *hits +\d", done.stdout, re.M)
    assert (scratch / "report.html").read_text().count("<svg") == 6
    assert not mounts.mounts_below(scratch)


def test_common_and_padded_files_are_told_apart(scratch, build_dir):
    """7 samples and a file of all ranks: nothing of the output adds up to more files than there are, unsaid."""
    for number in range(7):
        (scratch / f"source/train/{number % 2}").mkdir(parents=True, exist_ok=True)
        (scratch / f"source/train/{number % 2}/{number}").write_text(str(number))
    (scratch / "source/labels.txt").write_text("two classes")
    said = tools.run([QUICKSTART, scratch / "source", scratch / "dataset"], env={"TMPDIR": scratch}).stdout
    for rank in (0, 1):
        assert f"rank {rank} of 2  5 files: 4 of its part, 1 common, on every rank" in said
    assert "together     the parts have each of 7 files once, but 1 of them on both ranks" in said


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


def elsewhere(scratch):
    """An environment whose settings and credentials lead to no store."""
    return {**os.environ, "TMPDIR": str(scratch), "AWS_PROFILE": "nobody", "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "AWS_SESSION_TOKEN": "secret", "DDPFS_S3_PROFILE": "nobody", "http_proxy": "http://127.0.0.1:9"}


def store_process(out):
    """The store that `out` names."""
    return int(re.search(r"store +moto at http://127\.0\.0\.1:\d+, process (\d+)", out)[1])


def ends(pid):
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    return not os.path.exists(f"/proc/{pid}")


def test_s3_trains_from_a_store_of_its_own(scratch, build_dir):
    for package in ("torch", "moto", "boto3", "sklearn"):
        pytest.importorskip(package)
    done = tools.run([QUICKSTART, "s3"], env=elsewhere(scratch))
    assert "s3://quickstart/digits: 1797 files" in done.stdout
    assert "together all 1442 training files once, in each of 2 epochs" in done.stdout
    assert re.search(r"accuracy +0\.\d{4}\n", done.stdout)
    assert int(re.search(r"store +(\d+) requests", done.stdout)[1]) > 0
    assert re.search(r"tier +\d+ blocks came from the disk that both ranks share", done.stdout)
    assert ends(store_process(done.stdout))
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("start", ["run_child", "start_beside name"])
def test_a_signal_while_a_child_is_started_ends_that_child_too(scratch, start):
    """The signal comes when the child runs, and before tools/setup has noted its number.  If the child has not reset
    its traps yet, it misses the first signal, and is killed 15 s later."""
    script = f"""
        . {tools.ROOT}/tools/setup
        setup_begin {tools.ROOT}
        set -T
        trap "[[ \\$BASH_COMMAND != *'=\\$!' ]] || kill -TERM \\$\\$" DEBUG
        {start} sleep 120
        """
    done = subprocess.run(["bash", "-c", script], env={**os.environ, "TMPDIR": str(scratch)}, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=60)  # until the child has closed its output
    assert done.returncode == 143 and os.listdir(scratch) == []


def test_an_interrupt_ends_the_store(scratch, build_dir):
    for package in ("torch", "moto", "boto3", "sklearn"):
        pytest.importorskip(package)
    process = subprocess.Popen([QUICKSTART, "s3"], env=elsewhere(scratch), text=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        for told in process.stdout:
            if " moto at " in told:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait() == 130
    finally:
        process.kill()
        process.wait()
    assert ends(store_process(told))
    assert os.listdir(scratch) == []
