# SPDX-License-Identifier: Apache-2.0
"""`ddpfs doctor` on machines that are broken on purpose: the right finding comes first."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess

import pytest

from helpers import mounts, tools
from helpers.http_store import HttpStore
from helpers.seccomp import IO_URING_ENTER, IO_URING_SETUP, refused
from helpers.terminal import OnTerminal
from helpers.waiting import wait_until

UNSHARE = {"x86_64": 272, "aarch64": 97}  # asm/unistd.h
DELAY = "DDPFS_TEST_READ_DELAY_US"


def findings_of(done):
    """The findings, after a look at what holds for each answer."""
    said = json.loads(done.stdout)["findings"]
    levels = [finding["level"] for finding in said]
    rank = ["failure", "warning", "note", "ok"]
    assert levels == sorted(levels, key=rank.index)
    assert done.returncode == (1 if levels[0] in ("failure", "warning") else 0), done.stderr
    for finding in said:
        assert finding["text"] and ("advice" in finding) == (finding["level"] != "ok"), finding
    return said


def doctor(*words, **options):
    return findings_of(tools.ddpfs("doctor", "--json", *words, check=False, **options))


def expect(finding, level, check, *words):
    assert (finding["level"], finding["check"]) == (level, check), finding
    for word in words:
        assert word in finding["text"] + finding["advice"], finding


def answers(store):
    said = [finding for finding in doctor(store.name) if finding["check"] == "store"]
    return next(finding for finding in said if "answers" in finding["text"])


def in_private(private, script):
    return findings_of(private.run(script, check=False))


def flip_bit_of_index(dataset):
    index = dataset / "index.ddpfs"
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)


def flip_contents(shard):
    """In each block of a tar."""
    data = bytearray(shard.read_bytes())
    for at in range(0, len(data), 512):
        data[at] ^= 0xFF
    shard.write_bytes(data)


@pytest.fixture
def open_dataset(dataset):
    """One that the user nobody may read, too."""
    tools.run(["chmod", "-R", "a+rX", dataset])
    return dataset


# ---- the twelve machines ----


def test_no_fuse_device(private):
    first, *_ = in_private(private, "umount /dev/fuse; mount -t tmpfs none /dev; $ddpfs doctor --json")
    expect(first, "failure", "fuse", "/dev/fuse", "modprobe fuse")


def test_no_fusermount3(private):
    first, *_ = in_private(private, "mkdir bin; $nobody $(command -v env) PATH=$PWD/bin $ddpfs doctor --json")
    expect(first, "failure", "fusermount3", "PATH", "fuse3")


def test_fusermount3_without_the_set_uid_bit(private):
    first, *_ = in_private(private, "mkdir bin; cp $(command -v fusermount3) bin/; chmod 755 bin bin/fusermount3; "
                                   "PATH=$PWD/bin:$PATH $nobody $ddpfs doctor --json")
    expect(first, "failure", "fusermount3", "set-uid", "chmod 4755")


def test_no_new_privs(private):
    first, *_ = in_private(private, "$nobody --no-new-privs $ddpfs doctor --json")
    expect(first, "failure", "fusermount3", "no_new_privs", "allowPrivilegeEscalation")


def test_no_namespaces(build_dir):
    call = UNSHARE.get(os.uname().machine)
    if call is None:
        pytest.skip("the number of unshare(2) is not known for this machine")
    first, *_ = refused(call, errno.EPERM, doctor)
    expect(first, "warning", "namespaces", "ddpfs exec", "ddpfs mount")


@pytest.mark.parametrize("call", [IO_URING_SETUP, IO_URING_ENTER], ids=["setup", "enter"])
def test_io_uring_is_forbidden(build_dir, call):
    first, *_ = refused(call, errno.EPERM, doctor)
    expect(first, "warning", "io_uring", "pread", "seccomp")


def test_memlock_of_64_k(private):
    first, *_ = in_private(private, "prlimit --memlock=65536:65536 $nobody $ddpfs doctor --json")
    expect(first, "warning", "memlock", "64.0 KiB", "ulimit -l")


def test_an_old_kernel(build_dir):
    """A kernel can say that it is 2.6 (personality(2), UNAME26)."""
    if not shutil.which("setarch"):
        pytest.skip("setarch is not installed")
    old = ["setarch", os.uname().machine, "--uname-2.6"]
    done = tools.run([*old, tools.tool("ddpfs"), "doctor", "--json"], check=False)
    first, *_ = findings_of(done)
    expect(first, "failure", "kernel", "Linux 2.6", "newer")


@contextlib.contextmanager
def full_tmpfs(path):
    """A tmpfs without room."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    path.mkdir()
    tools.run(["mount", "-t", "tmpfs", "-o", "size=8M", "none", path])
    try:
        yield lambda: subprocess.run(["dd", "if=/dev/zero", f"of={path}/filler", "bs=64k"], capture_output=True)
    finally:
        mounts.unmount(path)


def test_a_full_disk(dataset, scratch):
    with full_tmpfs(scratch / "full") as fill:
        there = shutil.copytree(dataset, scratch / "full/dataset")
        fill()
        first, *_ = doctor(there)
    expect(first, "warning", "disk", "full", "remove files")


def test_a_full_file_system_of_control_sockets(private):
    first, *_ = in_private(private, "mount -t tmpfs -o nr_inodes=3,size=1M,mode=755 none /run; "
                                   "mkdir -m 700 /run/ddpfs; touch /run/last; $ddpfs doctor --json")
    expect(first, "failure", "control", "/run/ddpfs", "No space left")


def test_a_dataset_of_another_owner(private, dataset):
    dataset.chmod(0o700)
    first, *_ = in_private(private, f"$nobody $ddpfs doctor --json {dataset}")
    expect(first, "failure", "dataset", "ermission denied", "chmod -R a+rX")


def test_a_shard_of_another_owner(private, open_dataset):
    next(open_dataset.glob("*.tar")).chmod(0o600)
    first, *_ = in_private(private, f"$nobody $ddpfs doctor --json {open_dataset}")
    expect(first, "failure", "dataset", "1 of 1 shards", "ermission denied", "chmod -R a+rX")


def test_a_damaged_index(dataset):
    """By one bit, in its middle, which opening it does not read."""
    flip_bit_of_index(dataset)
    first, *_ = doctor(dataset)
    expect(first, "failure", "dataset", "index.ddpfs", "restore index.ddpfs from a copy")


def test_a_slow_disk(mount, dataset, pack, scratch):
    """The dataset lies in a mount whose store answers late."""
    outer = mount(pack(dataset), "layout=tree,view=all", env={DELAY: "1000000"})
    first, *_ = doctor(outer.path / ".ddpfs/all")
    expect(first, "warning", "device", "per second", "faster disk")


def test_a_small_cgroup(cgroup, dataset):
    with cgroup(100 << 20).inside():
        first, *_ = doctor(dataset)
    expect(first, "warning", "memory", "36.0 MiB", "memory limit")


def read_every_second(m):
    for name in sorted(os.listdir(m.path))[1::2]:
        (m.path / name).read_bytes()


def test_double_sharding(mount, pack, scratch):
    """A DistributedSampler over the files that a rank lists."""
    for i in range(3000):
        path = scratch / f"many/class_{i % 20:02d}/item_{i:04d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % i)
    m = mount(pack(scratch / "many"), "view=rank,rank=0,world=2")
    read_every_second(m)
    wait_until(lambda: tools.stat_json(m.path)["recognise_queue"] == 0)
    first, *_ = doctor(m.path)
    expect(first, "failure", "mount", "once more", "view=all")


# ---- beyond the twelve ----


def test_a_machine_that_is_well(dataset):
    """What a busy machine may say of its memory, its kernel or its disk is no part of this."""
    ok = {finding["check"] for finding in doctor(dataset) if finding["level"] == "ok"}
    assert {"fuse", "fusermount3", "control", "dataset", "checksums"} <= ok


def test_a_terminal_shows_what_is_checked(mount, dataset, pack):
    """The dataset lies in a mount that does not answer: neither to whether it has an index, nor to the check of it."""
    outer = mount(pack(dataset), "layout=tree,view=all")
    place = outer.path / ".ddpfs/all"
    os.listdir(place)
    server = outer.server_pid()
    mounts.stop_and_wait(server)
    try:
        with OnTerminal([tools.tool("ddpfs"), "doctor", place], stdout=subprocess.DEVNULL) as ran:
            ran.wait_for("checking dataset, 2 s")
            ran.wait_for("checking dataset: reads an index of up to 64 MiB, 2 s")
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_damaged_shard(dataset):
    shard = next(dataset.glob("*.tar"))
    flip_contents(shard)
    first, *_ = doctor(dataset)
    expect(first, "failure", "checksums", shard.name, "mkshard verify")


def test_a_missing_shard(dataset):
    next(dataset.glob("*.tar")).unlink()
    first, *_ = doctor(dataset)
    expect(first, "failure", "dataset", "No such file", "restore")


def test_no_dataset(scratch):
    (scratch / "empty").mkdir()
    first, *_ = doctor(scratch / "empty")
    expect(first, "failure", "dataset", "index.ddpfs", "mkshard pack")


def test_a_mount_whose_server_is_dead(mount, dataset):
    m = mount(dataset, "rank=0,world=2")
    mounts.kill_with_supervisor(m.process.pid, m.server_pid())
    first, *_ = doctor(m.path)
    expect(first, "failure", "mount", "ddpfs umount")


def test_a_dataset_that_does_not_answer(mount, dataset, pack):
    """It lies in a mount whose server stands still.  Only one check waits for it."""
    outer = mount(pack(dataset), "layout=tree,view=all,watchdog=0")
    place = outer.path / ".ddpfs/all"
    server = outer.server_pid()
    mounts.stop_and_wait(server)
    try:
        first, *others = doctor(place)
    finally:
        os.kill(server, signal.SIGCONT)
    expect(first, "failure", "dataset", "did not end")
    assert not {"checksums", "disk", "device"} & {finding["check"] for finding in others}


def test_a_mount_by_its_process_id(mount, dataset):
    m = mount(dataset, "rank=0,world=2")
    checks = {finding["check"] for finding in doctor(f"@{m.process.pid}")}
    assert {"mount", "dataset", "checksums"} <= checks


def test_text(dataset):
    (dataset / "index.ddpfs").unlink()
    done = tools.ddpfs("doctor", dataset, check=False)
    first, second, *_ = done.stdout.splitlines()
    assert done.returncode == 1 and not done.stderr
    assert first.startswith("failure  dataset ") and second.strip().startswith("what to do: "), done.stdout


# ---- stores ----


@pytest.fixture
def store(dataset, scratch, monkeypatch):
    monkeypatch.setenv("DDPFS_INDEX_DIR", str(scratch / "indexes"))
    with HttpStore(dataset.parent, scratch) as http:
        http.name = f"{http.url}/{dataset.name}"
        yield http


def test_a_store_that_answers(store):
    assert answers(store)["level"] in ("ok", "warning")


def test_a_slow_store(store):
    store.set(latency_ms=700)
    expect(answers(store), "warning", "store", "region")


def test_a_damaged_object_of_a_store(store, dataset):
    flip_contents(next(dataset.glob("*.tar")))
    first, *_ = doctor(store.name)
    expect(first, "failure", "store", ".tar", "checksum", "mkshard verify")


def test_a_damaged_index_in_a_store(store, dataset):
    flip_bit_of_index(dataset)
    first, *_ = doctor(store.name)
    expect(first, "failure", "store", "restore index.ddpfs from a copy")


def test_a_store_that_is_away(store):
    store.set(down=1)
    first, *_ = doctor(store.name)
    expect(first, "failure", "store", "network")


def test_a_store_without_the_dataset(store):
    first, *_ = doctor(store.url + "/nothing")
    expect(first, "failure", "store", "nothing", "mkshard pack")


def test_secrets_are_not_shown(store, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAPUBLICPART")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecretkey")
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    store.set(key="another")
    done = tools.ddpfs("doctor", "--json", "s3://bucket/dataset", check=False)
    assert "verysecretkey" not in done.stdout + done.stderr
    said = findings_of(done)
    expect(said[0], "failure", "store", "credentials")
    assert [f for f in said if f["level"] == "ok" and f["check"] == "store" and "environment" in f["text"]], said
