# SPDX-License-Identifier: Apache-2.0
"""ddpfs umount, ls, stat, ctl: looking after live mounts."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from helpers import mounts, tools
from helpers.waiting import PATIENCE_S


def said_by(*arguments, code=1, **kwargs):
    done = tools.ddpfs(*arguments, check=False, **kwargs)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert not done.stdout
    return done.stderr


def server_of(mountpoint):
    return json.loads(tools.ddpfs("ctl", mountpoint, "info").stdout)["pid"]


def kill_mount(mountpoint):
    stats = tools.stat_json(mountpoint)
    mounts.kill_with_supervisor(stats["pid"], stats["server_pid"])


# umount


def test_umount_waits_for_the_server(dataset, mountpoint, background):
    background(dataset, mountpoint)
    server = server_of(mountpoint)
    done = tools.ddpfs("umount", mountpoint)
    assert done.stdout == done.stderr == ""
    assert not mounts.is_mounted(mountpoint)
    assert not os.path.exists(f"/proc/{server}") or "Z" in open(f"/proc/{server}/stat").read().split(") ")[1][:1]


def test_umount_by_pid(dataset, mountpoint, background):
    background(dataset, mountpoint)
    tools.ddpfs("umount", f"@{server_of(mountpoint)}")
    assert not mounts.is_mounted(mountpoint)


def test_umount_names_who_uses_it(dataset, mountpoint, background):
    background(dataset, mountpoint)
    name = os.listdir(mountpoint)[0]
    with open(mountpoint / name, "rb"):
        said = said_by("umount", mountpoint)
        assert f"process {os.getpid()} (" in said and "--lazy" in said
    assert mounts.is_mounted(mountpoint)
    tools.ddpfs("umount", mountpoint)


def test_umount_does_not_name_itself(dataset, mountpoint, background):
    """It inherits what its caller has open."""
    background(dataset, mountpoint)
    with open(mountpoint / os.listdir(mountpoint)[0], "rb") as file:
        said = said_by("umount", mountpoint, pass_fds=[file.fileno()])
        assert f"process {os.getpid()} (" in said and "(ddpfs)" not in said and "more" not in said
    done = subprocess.run(["sh", "-c", 'exec "$0" umount "$1" 7< "$1"', tools.tool("ddpfs"), mountpoint],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "by this very command" in done.stderr
    tools.ddpfs("umount", mountpoint)


def test_umount_lazy(dataset, mountpoint, background):
    background(dataset, mountpoint)
    name = os.listdir(mountpoint)[0]
    with open(mountpoint / name, "rb"):
        tools.ddpfs("umount", "--lazy", mountpoint)
        assert not mounts.is_mounted(mountpoint)


def test_umount_a_dead_mount(dataset, mountpoint, background):
    background(dataset, mountpoint)
    kill_mount(mountpoint)
    while str(mountpoint) in [m["mountpoint"] for m in json.loads(tools.ddpfs("ls", "--json").stdout)]:
        time.sleep(0.01)
    with pytest.raises(OSError):
        while True:
            os.listdir(mountpoint)
    assert "ddpfs umount" in said_by("mount", "-o", "view=all", dataset, mountpoint)
    tools.ddpfs("umount", mountpoint)
    assert not mounts.is_mounted(mountpoint)
    background(dataset, mountpoint)


def test_a_dead_mount_is_told(dataset, mountpoint, background):
    background(dataset, mountpoint)
    os.stat(mountpoint)  # the kernel remembers the root's attributes now
    kill_mount(mountpoint)
    said = said_by("mount", "-o", "view=all", dataset, mountpoint)
    assert "server has died" in said and f"ddpfs umount {mountpoint}" in said
    for command in (["stat", mountpoint], ["ctl", mountpoint, "info"]):
        said = said_by(*command)
        assert "server is dead" in said and f"ddpfs umount {mountpoint}" in said
    tools.ddpfs("umount", mountpoint)
    assert not mounts.is_mounted(mountpoint)


def test_a_server_that_does_not_answer(dataset, mountpoint, background):
    background(dataset, mountpoint, "rank=0,world=2,watchdog=0")
    server = server_of(mountpoint)
    stopped = json.loads(tools.ddpfs("ctl", mountpoint, "info").stdout)["server_pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        said = said_by("stat", f"@{server}")
        assert f"server {server} does not answer" in said
        os.stat(mountpoint)
        assert re.search(rf"servers? (\d+, )*{server}(, \d+)* do(es)? not answer", said_by("stat", mountpoint))
    finally:
        os.kill(stopped, signal.SIGCONT)


@pytest.fixture
def hung(dataset, scratch, background):
    """(a mount whose server is stopped, the pid of its supervisor, a healthy mount)"""
    for name in "hung", "healthy":
        (scratch / name).mkdir()
        background(dataset, scratch / name, "rank=0,world=2,watchdog=0")
    info = json.loads(tools.ddpfs("ctl", scratch / "hung", "info").stdout)
    os.kill(info["server_pid"], signal.SIGSTOP)
    yield scratch / "hung", info["pid"], scratch / "healthy"
    os.kill(info["server_pid"], signal.SIGCONT)


def test_a_hung_server_is_listed_as_silent(hung):
    _, pid, healthy = hung
    lines = [line.split() for line in tools.ddpfs("ls").stdout.splitlines()]
    assert ["(silent)", "-", str(pid), "-"] in lines
    assert any(line[0] == str(healthy) for line in lines)
    assert {"mountpoint": None, "pid": pid, "silent": True} in [
        {key: m[key] for key in m if key != "socket"} for m in json.loads(tools.ddpfs("ls", "--json").stdout)]


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_hung_servers_hold_up_nobody_else(private, dataset, scratch):
    """Eight of them: they are asked at the same time, and not waited for where another one is wanted."""
    runtime = scratch / "run"
    (runtime / "ddpfs").mkdir(mode=0o700, parents=True)
    silent = []
    for i in range(8):
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].bind(str(runtime / "ddpfs" / f"{(1 << 22) + i}.sock"))
        silent[-1].listen()
    (scratch / "mnt").mkdir()
    done = private.run(f"""
        mount --bind {runtime}/ddpfs /run/ddpfs || {{ mkdir -p /run/ddpfs && mount --bind {runtime}/ddpfs /run/ddpfs; }}
        $ddpfs mount -o view=all {dataset} {scratch}/mnt
        for what in "stat {scratch}/mnt" ls; do
            # LeakSanitizer cannot work under ptrace.
            ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 strace -f -e trace=poll,ppoll -o trace $ddpfs $what >out
            sed -En 's/.*poll\\(.*\\], [0-9]+, ([0-9]+)\\) += 0 \\(Timeout\\).*/\\1/p' trace | paste -sd+ | sed 's/^$/0/' | bc
            grep -c silent out || true
        done
        $ddpfs umount {scratch}/mnt
        """)
    stat_ms, _, ls_ms, listed = map(int, done.stdout.split())
    assert stat_ms == 0, "the mount that was asked for has answered"
    assert ls_ms <= 1000 and listed == 8


def test_a_moved_mount_is_told_where_it_is(private, dataset):
    done = private.run(f"""
        mkdir a b
        mount --make-rprivate /
        $ddpfs mount -o view=all {dataset} a
        mount --move a b
        $ddpfs ls | grep -c "^$PWD/b "
        $ddpfs ls --json | grep -c "mountpoint.*$PWD/b"
        $ddpfs stat --json b | grep -c "mountpoint.*$PWD/b"
        $ddpfs ctl b info | grep -c "mountpoint.*$PWD/b"
        until $ddpfs top -n 1 -d 1 b | grep -c "^$PWD/b "; do :; done
        $ddpfs umount b
        """)
    assert done.stdout.split() == ["1"] * 5, done.stdout


def test_umount_what_is_no_ddpfs_mount(build_dir, mountpoint):
    assert str(mountpoint) in said_by("umount", mountpoint)
    assert "not of ddpfs" in said_by("umount", "/proc")
    assert said_by("umount", "@1")


def test_umount_of_root_ends_the_server(dataset, mountpoint, mount):
    mounted = mount(dataset, "rank=0,world=2", mountpoint=mountpoint)
    subprocess.run(["umount", mountpoint], check=True)
    assert mounted.process.wait(timeout=PATIENCE_S) == 0


# ls


def test_ls(dataset, scratch, background):
    for name in "a", "b c":
        (scratch / name).mkdir()
    background(dataset, scratch / "a", "rank=1,world=3")
    background(dataset, scratch / "b c", "view=all")
    lines = tools.ddpfs("ls").stdout.splitlines()
    mine = [line for line in lines if str(scratch) in line]
    assert lines[0].split() == ["MOUNT", "RANK", "PID", "DATASET"]
    assert len(mine) == 2
    assert "1 of 3" in mine[0] and str(scratch / "a") in mine[0] and str(dataset) in mine[0]
    assert " all " in mine[1] and str(scratch / "b c") in mine[1]
    listed = {m["mountpoint"]: m for m in json.loads(tools.ddpfs("ls", "--json").stdout)}
    assert (listed[str(scratch / "a")]["rank"], listed[str(scratch / "a")]["world"]) == (1, 3)
    assert listed[str(scratch / "b c")]["view"] == "all"
    assert all(os.path.exists(m["socket"]) for m in listed.values())


def test_ls_forgets_what_is_gone(dataset, mountpoint, background):
    background(dataset, mountpoint)
    assert str(mountpoint) in tools.ddpfs("ls").stdout
    tools.ddpfs("umount", mountpoint)
    done = tools.ddpfs("ls")
    assert str(mountpoint) not in done.stdout
    assert isinstance(json.loads(tools.ddpfs("ls", "--json").stdout), list)


def test_the_control_socket_is_the_owners(dataset, mountpoint, background, scratch):
    background(dataset, mountpoint, f"view=all,control={scratch / 'x.sock'}")
    assert (scratch / "x.sock").stat().st_mode & 0o777 == 0o600
    assert json.loads(tools.ddpfs("stat", "--json", scratch / "x.sock").stdout)["mountpoint"] == str(mountpoint)
    tools.ddpfs("umount", scratch / "x.sock")
    assert not mounts.is_mounted(mountpoint)


def test_umount_right_after_its_server_was_killed(dataset, mountpoint, background):
    for _ in range(10):
        background(dataset, mountpoint)
        now = tools.stat_json(mountpoint)
        some = [str(path) for path in mountpoint.iterdir()]
        reader = subprocess.Popen(["cat", *some], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.kill(now["server_pid"], signal.SIGKILL)
        reader.kill()
        reader.wait()
        tools.ddpfs("umount", mountpoint)  # what the dead server has open takes a moment to go
        assert not mounts.is_mounted(mountpoint)


# stat


def test_stat(dataset, mountpoint, background):
    background(dataset, mountpoint)
    for name in os.listdir(mountpoint):
        (mountpoint / name).read_bytes()
    stats = json.loads(tools.ddpfs("stat", "--json", mountpoint).stdout)
    assert stats == {**json.loads((mountpoint / ".ddpfs/stats.json").read_text()), **stats}
    assert stats["rank"] == 0 and stats["errors"] == 0 and stats["opened"] == 50
    text = tools.ddpfs("stat", mountpoint / ".").stdout
    assert all(len(line) <= 120 for line in text.splitlines())
    shown = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
    assert shown["opened"] == "50 samples" and shown["world"] == "2 ranks"
    assert shown["content"].endswith(("KiB", "MiB"))
    assert shown["wait_p99"].split()[1] in ("us", "ms", "s")


def test_stat_is_grouped_and_has_units(dataset, mountpoint, background):
    background(dataset, mountpoint)
    text = tools.ddpfs("stat", mountpoint).stdout
    groups = {group.split(":\n")[0]: group.split(":\n")[1] for group in text.split("\n\n")}
    assert list(groups) == ["mount", "options", "epoch", "trainer", "read-ahead", "errors", "names", "dataset", "budget",
                            "order"]
    assert "\nopens " not in groups["epoch"] and groups["trainer"].startswith("opens ")
    for group, members in (("mount", "restarts uptime"), ("errors", "errors bad_blocks"), ("budget", "memory resident memory_why"),
                           ("order", "recognise_queue announced_opens order_memory recognised"), ("dataset", "samples content"),
                           ("read-ahead", "read idle warm_ups")):
        assert set(members.split()) <= {line.split()[0] for line in groups[group].splitlines()}, group
    assert "memory " not in groups["dataset"] and "recognise" not in groups["read-ahead"]
    values = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
    assert re.fullmatch(r"\d+ s", values["uptime"]) and values["device_rate"].endswith("/s")


def test_stat_says_what_it_counts_and_uses_no_name_twice(dataset, mountpoint, background):
    """Numbers without a unit are those of processes, ranks, epochs and seeds."""
    background(dataset, mountpoint, "view=all,seed_search=1")
    text = tools.ddpfs("stat", mountpoint).stdout
    lines = [line.split(None, 1) for line in text.splitlines() if " " in line.strip()]
    names = [name for name, _ in lines if name not in ("sampler", "problem")]
    assert sorted(names) == sorted(set(names))
    values = dict(lines)
    assert {name for name in values if values[name].isdigit()} == {"pid", "server_pid", "seed", "rank", "epoch"}
    assert values["turns"] == values["samples"] == values["files"].replace("file", "sample") == "100 samples"
    assert values["restarts"] == "0 times" and values["world"] == "1 rank" and values["depth"].endswith(" reads")
    assert (values["following"], values["idle"], values["shared"]) == ("no", "yes", "no")
    assert values["warm_up_read"] == "0 B" and values["warm_up"].startswith("waits")
    exact = tools.stat_json(mountpoint)
    assert (exact["following"], exact["idle"], exact["warm_up_bytes"], exact["turns"]) == (0, 1, 0, 100)


def test_the_help_of_stat_has_names_that_stat_prints(dataset, mountpoint, background):
    background(dataset, mountpoint)
    printed = {line.split()[0] for line in tools.ddpfs("stat", mountpoint).stdout.splitlines() if line and line[-1] != ":"}
    said = tools.ddpfs("stat", "--help").stdout.split("What to look at first:\n")[1].split("Each counter")[0]
    names = {name for line in said.splitlines() for name in re.match(r"  ((?:\w+, )*\w+) ", line)[1].split(", ")}
    sometimes = {"read_ahead_note", "problem", "warm_up"}  # only if there is something to say
    assert sometimes | {"order_source", "order_note", "memory_why"} <= names, names
    assert names - sometimes <= printed, names - printed


def test_stat_of_nothing(build_dir, mountpoint):
    said = said_by("stat", mountpoint)
    assert f"'{mountpoint}' is no mountpoint of your ddpfs mounts" in said and "ddpfs ls" in said
    assert said_by("stat", mountpoint / "missing")
    assert said_by("stat", code=2)
    assert said_by("stat", "a", "b", code=2)


# ctl


def test_ctl_epoch(dataset, mountpoint, background):
    background(dataset, mountpoint)
    assert tools.ddpfs("ctl", mountpoint, "epoch").stdout == "epoch 0: 0 of 50 samples opened, advance=auto\n"
    assert tools.ddpfs("ctl", mountpoint, "epoch", 7).stdout == "epoch 7: 0 of 50 samples opened, advance=off\n"
    assert {name[:4] for name in os.listdir(mountpoint)} == {"0007"}
    assert "advance=auto" in tools.ddpfs("ctl", mountpoint, "advance", "auto").stdout
    assert json.loads(tools.ddpfs("ctl", "--json", mountpoint, "epoch").stdout)["epoch"] == 7


def test_ctl_state(dataset, mountpoint, background, scratch):
    background(dataset, mountpoint, "rank=0,world=2,seed=3,order=full")
    state = json.loads(tools.ddpfs("ctl", mountpoint, "state", 32).stdout)
    assert (state["seed"], state["epoch"], state["start"], state["order"]) == (3, 0, 32, "full")
    assert json.loads((mountpoint / ".ddpfs/state").read_text().rstrip("\0 \n")) == state
    done = tools.ddpfs("ctl", mountpoint, "state", 64, "--epoch", 4, "-O", scratch / "state")
    assert done.stdout == ""
    state = json.loads((scratch / "state").read_text())
    assert (state["epoch"], state["start"]) == (4, 64)
    # All of an epoch trained is the beginning of the next one.
    assert json.loads(tools.ddpfs("ctl", mountpoint, "state", 100).stdout)["start"] == 0
    assert said_by("ctl", mountpoint, "state", 100_000)


def state_of(mountpoint, *words):
    state = json.loads(tools.ddpfs("ctl", mountpoint, "state", *words).stdout)
    return state["epoch"], state["start"]


def test_no_state_where_the_sampler_decides(dataset, mountpoint, background):
    background(dataset, mountpoint, "view=all")
    for words in ["state"], ["state", "32"], ["state", "--turns=4"]:
        assert "own sampler goes on" in said_by("ctl", mountpoint, *words)


def test_ctl_state_of_an_epoch_that_a_loader_is_past(dataset, mountpoint, background):
    """A loader that lists the next epoch early moves the mount on; what was trained of this one is still said."""
    background(dataset, mountpoint)
    tools.ddpfs("ctl", mountpoint, "epoch", 1)
    assert state_of(mountpoint, 40, "--epoch", 0) == (0, 40)
    assert state_of(mountpoint) == (1, 0)


def test_ctl_state_by_what_one_rank_has_trained(dataset, mountpoint, background):
    """100 samples, 40 of them trained before: 60 are left, 20 a rank."""
    background(dataset, mountpoint, "rank=1,world=3,epoch=2,start=40")
    assert state_of(mountpoint, "--turns=0") == (2, 40)
    assert state_of(mountpoint, "--turns=7") == (2, 61)
    assert state_of(mountpoint) == (2, 61)
    assert state_of(mountpoint, "--turns=7", "--epoch=3") == (3, 21)
    # A last batch is short; batches times their size are more than there is.
    assert state_of(mountpoint, "--turns=20", "--epoch=2") == state_of(mountpoint, "--turns=32", "--epoch=2") == (3, 0)
    assert "began this epoch after" in said_by("ctl", mountpoint, "state", "39", "--epoch", "2")


@pytest.mark.parametrize("tail,turns,start", [("pad", 33, 99), ("pad", 34, 0), ("drop", 32, 96), ("drop", 33, 0),
                                              ("short", 33, 99), ("short", 34, 0)])
def test_ctl_state_at_the_tail(dataset, mountpoint, background, tail, turns, start):
    """100 samples, 3 ranks: one sample is left over."""
    background(dataset, mountpoint, f"rank=2,world=3,tail={tail}")
    assert state_of(mountpoint, f"--turns={turns}") == (0 if start else 1, start)


@pytest.mark.parametrize("arguments", [[], ["epoch", "x"], ["epoch", "-1"], ["nonsense"], ["advance"], ["advance", "maybe"],
                                       ["state", "many"], ["state", "--epoch", "1"], ["state", "1", "--turns=1"], ["epoch", "--turns=1"], ["epoch", "1", "--output", "x"],
                                       ["epoch", "1", "2"], ["info", "1"]])
def test_ctl_wrong_usage(build_dir, mountpoint, arguments):
    said = said_by("ctl", mountpoint, *arguments, code=2)
    assert ("-O FILE" in said) == (arguments == ["state", "many"])


@pytest.mark.parametrize("arguments", [["epoch", "-1"], ["state", "-1"], ["state", "--turns", "-1"]])
def test_ctl_tells_a_negative_number_as_one(build_dir, mountpoint, arguments):
    assert "'-1' is negative" in said_by("ctl", mountpoint, *arguments, code=2)


def test_ctl_state_refuses_turns_that_no_order_has(dataset, mountpoint, background):
    background(dataset, mountpoint)
    for turns in 2**63 - 1, 2**63 // 4, 1 << 21, 1_000_000, 201:  # no batch is larger than all 100 samples
        assert "is too large: no rank has" in said_by("ctl", mountpoint, "state", f"--turns={turns}")
    assert state_of(mountpoint, "--turns=0") == (0, 0), "what was refused changed nothing"
    assert state_of(mountpoint, "--turns=200") == (1, 0)


# other users


def test_nobody_elses_mounts(private, dataset, mountpoint, background):
    """A user neither sees nor controls root's mount; root sees and controls the user's."""
    background(dataset, mountpoint)
    private.directory_of_nobody("nb")
    done = private.run(f"""
        $nobody $ddpfs mount -o rank=0,world=2 {dataset} nb
        $nobody $ddpfs ls
        $nobody $ddpfs stat --json nb | grep '"rank"'
        $nobody $ddpfs stat {mountpoint} 2>&1 || echo refused $?
        $nobody $ddpfs umount {mountpoint} 2>&1 || echo refused $?
        echo root
        $ddpfs ls
        $ddpfs ctl $PWD/nb epoch 5
        $nobody $ddpfs umount nb
        """)
    user, root = done.stdout.split("root\n")
    assert "/nb " in user and f"{mountpoint} " not in user.split("refused")[0]
    assert '"rank": 0' in user
    assert user.count("refused 1") == 2
    assert f"'{mountpoint}' is a ddpfs mount of user root: only that user and root may ask its server" in user
    assert "/nb " in root and f"{mountpoint} " in root and "epoch 5" in root
    assert mounts.is_mounted(mountpoint)
