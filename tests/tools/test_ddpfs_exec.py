# SPDX-License-Identifier: Apache-2.0
"""ddpfs exec: a command with a rank's view mounted just for it."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from helpers import mounts, tools
from helpers.debian_root import DebianRoot
from helpers.waiting import PATIENCE_S, wait_until
from mount import control

LAUNCHER_VARIABLES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "HOROVOD_RANK",
                      "HOROVOD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
                      "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHER_VARIABLES + ["LD_PRELOAD"]:
        monkeypatch.delenv(name, raising=False)


def run(dataset, mountpoint, *command, options=(), env=None, check=True, **kwargs):
    return tools.ddpfs("exec", *options, dataset, mountpoint, "--", *command, env=env, check=check, **kwargs)


def start(dataset, mountpoint, script, **kwargs):
    """Starts a Python script under exec; returns the process once it said `ready`."""
    process = subprocess.Popen(
        [tools.tool("ddpfs"), "exec", "-q", "-o", "rank=0,world=2", dataset, mountpoint, "--",
         sys.executable, "-uc", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, **kwargs)
    assert process.stdout.readline() == "ready\n"
    return process


def server_of(mountpoint):
    """The pid of the one server that has this mountpoint.  `ddpfs ls` knows no mountpoint of one that is silent for a second,
    as any may be on a busy machine."""
    def heard():
        found = [m["pid"] for m in json.loads(tools.ddpfs("ls", "--json").stdout) if m["mountpoint"] == str(mountpoint)]
        assert len(found) <= 1
        return found

    return wait_until(heard, "an answer of the server")[0]


def wait_gone(pid):
    """A test that waits for ever fails by the watchdog of its directory."""
    while mounts.is_alive(pid):
        time.sleep(0.01)


@pytest.mark.parametrize("env,said", [
    ({"RANK": 1, "WORLD_SIZE": 2}, "RANK, WORLD_SIZE: torchrun"),
    ({"SLURM_STEP_ID": 0, "SLURM_PROCID": 1, "SLURM_NTASKS": 2}, "SLURM_PROCID, SLURM_NTASKS: slurm"),
    ({"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2}, "OMPI_COMM_WORLD_RANK"),
    ({"PMI_RANK": 1, "PMI_SIZE": 2}, "PMI_RANK"),
    ({"HOROVOD_RANK": 1, "HOROVOD_SIZE": 2}, "HOROVOD_RANK"),
    ({"TORCHELASTIC_RUN_ID": "x", "RANK": 1, "WORLD_SIZE": 2, "SLURM_STEP_ID": 0, "SLURM_PROCID": 0,
      "SLURM_NTASKS": 1}, "passed over"),
])
def test_rank_from_the_launcher(dataset, mountpoint, env, said):
    done = run(dataset, mountpoint, "ls", mountpoint, env=env)
    names = done.stdout.split()
    assert len(names) == 50
    assert all(int(name.split("-")[1]) % 2 == 1 for name in names)
    assert "rank 1 of 2" in done.stderr and said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_explicit_rank_wins(dataset, mountpoint):
    done = run(dataset, mountpoint, "ls", mountpoint, options=["-o", "rank=0,world=4"],
               env={"RANK": 1, "WORLD_SIZE": 2})
    assert len(done.stdout.split()) == 25
    assert "rank 0 of 4 (-o rank, world)" in done.stderr and "warning" not in done.stderr


def test_one_explicit_rank_for_all_is_warned_about(dataset, mountpoint):
    for rank, warned in (("0", False), ("1", True)):
        done = run(dataset, mountpoint, "true", options=["-o", "rank=0,world=2"], env={"RANK": rank, "WORLD_SIZE": "2"})
        assert ("warning: -o rank=0, but RANK=1" in done.stderr) == warned


def test_a_restart_goes_on_by_the_same_command_line(dataset, mountpoint, scratch):
    """state=-FILE: no file on the first start, the checkpoint's on the next."""
    state = scratch / "state.json"
    def begin(**kwargs):
        done = run(dataset, mountpoint, "sh", "-c", f"ls $DDPFS_MOUNT; {tools.tool('ddpfs')} ctl $DDPFS_MOUNT state "
                   f"--turns=5 -O {state}", options=["-o", f"rank=0,world=2,state=-{state}"], **kwargs)
        return done.stderr, [int(name.split("-")[1]) for name in done.stdout.split()]
    said, steps = begin()
    assert f"there is no '{state}' yet: epoch 0 from step 0\n" in said and steps == list(range(0, 100, 2))
    said, steps = begin()
    assert f"'{state}': epoch 0 from step 10\n" in said and steps == list(range(10, 100, 2))
    assert json.loads(state.read_text())["start"] == 20


@pytest.mark.parametrize("order,said", [("sort -R", 1), ("sort", 0)])
def test_a_trainer_whose_order_nobody_knew_is_told_at_its_end(pack, mountpoint, scratch, order, said):
    for i in range(1200):
        path = scratch / "many" / f"d{i % 10}" / f"{i}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(20000))
    # Each file once, so that nothing is found in memory; in a directory whose files are not near in storage.
    script = f"cd {mountpoint}; find . -type f | {order} > {scratch}/order; while read f; do cat $f; done < {scratch}/order >{scratch}/out"
    done = run(pack(scratch / "many"), mountpoint, "sh", "-c", script, options=["-q", "-o", "view=all,memory=16M"])
    lines = [line for line in done.stderr.splitlines() if "% missed: " in line]
    assert len(lines) == said == len(done.stderr.splitlines()), done.stderr
    assert all(f"'{mountpoint}': nothing recognised after " in line and "ddpfs.torch.follow(loader" in line for line in lines)


def test_quiet(dataset, mountpoint):
    assert run(dataset, mountpoint, "true", options=["-q"], env={"RANK": 1, "WORLD_SIZE": 2}).stderr == ""


@pytest.mark.parametrize("env,words", [
    ({}, ["torchrun", "-o rank=R,world=W", "view=all"]),
    ({"SLURM_PROCID": 0, "SLURM_NTASKS": 4}, ["srun", "view=all"]),  # a batch script
    ({"RANK": 0, "WORLD_SIZE": 1, "PMI_RANK": 1, "PMI_SIZE": 2}, ["RANK=0", "PMI_RANK=1", "--launcher"]),
    ({"RANK": 2, "WORLD_SIZE": 2}, ["RANK=2", "WORLD_SIZE=2"]),
    ({"RANK": 1}, ["WORLD_SIZE"]),
])
def test_no_clear_rank(dataset, mountpoint, env, words):
    done = run(dataset, mountpoint, "echo", "ran", env=env, check=False)
    assert done.returncode == 2 and "ran" not in done.stdout
    for word in words:
        assert word in done.stderr


def test_choose_a_launcher(dataset, mountpoint):
    env = {"RANK": 0, "WORLD_SIZE": 1, "PMI_RANK": 1, "PMI_SIZE": 2}
    assert "rank 1 of 2" in run(dataset, mountpoint, "true", options=["--launcher=pmi"], env=env).stderr
    done = run(dataset, mountpoint, "true", options=["--launcher=slurm"], env=env, check=False)
    assert done.returncode == 2 and "slurm" in done.stderr


def test_around_a_launcher_with_view_all(dataset, mountpoint):
    done = run(dataset, mountpoint, "find", mountpoint, "-type", "f", options=["-o", "view=all"])
    assert len(done.stdout.split()) == 100
    assert "view=all" in done.stderr


def test_with_view_all_the_launchers_ranks_of_the_host_share_its_memory(cgroup, dataset, mountpoint):
    """Each mounts for itself, in a mount namespace that the others do not see.  A directory of sockets of its own keeps other
    mounts of this machine out of the count."""
    env = {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 14, "OMPI_COMM_WORLD_LOCAL_SIZE": 7}
    alone = ["unshare", "--mount", "--propagation", "slave", "sh", "-ec",
             'mkdir -p /run/ddpfs; mount -t tmpfs -o mode=700 tmpfs /run/ddpfs; exec "$@"', "sh"]
    with cgroup(1 << 30).inside():
        done = tools.run([*alone, tools.tool("ddpfs"), "exec", "-o", "view=all", dataset, mountpoint, "--",
                          tools.tool("ddpfs"), "stat", "--json", mountpoint], env=env)
    assert json.loads(done.stdout)["memory_why"].endswith("for 7 mounts in use"), done.stdout


def test_the_commands_environment(dataset, mountpoint):
    done = run(dataset, mountpoint, sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))",
               options=["-o", "rank=1,world=2"], env={"LD_PRELOAD": "libm.so.6", "PYTHONPATH": "", **tools.sanitizers("verify_asan_link_order=0")})
    env = json.loads(done.stdout)
    assert env["DDPFS_MOUNT"] == str(mountpoint.resolve())
    assert env["DDPFS_DATASET"] == str(dataset.resolve())
    assert (env["DDPFS_RANK"], env["DDPFS_WORLD"], env["DDPFS_VIEW"]) == ("1", "2", "rank")
    assert env["LD_PRELOAD"] == f"{tools.build_dir()}/tools/libddpfs_interpose.so:libm.so.6"
    assert env["PYTHONPATH"] == ""  # a rank's view has an order of its own
    assert "RANK" not in env and "LOCAL_WORLD_SIZE" not in env
    done = run(dataset, mountpoint, sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))",
               options=["-o", "view=all", "--no-interpose"], env={"DDPFS_RANK": "7", "PYTHONPATH": "/a"})
    env = json.loads(done.stdout)
    assert env["DDPFS_VIEW"] == "all" and "DDPFS_RANK" not in env and "LD_PRELOAD" not in env
    assert env["PYTHONPATH"] == "/a"


@pytest.mark.parametrize("code", [0, 1, 2, 42, 255])
def test_exit_code(dataset, mountpoint, code):
    assert run(dataset, mountpoint, "sh", "-c", f"exit {code}", options=["-o", "view=all"], check=False).returncode == code


def test_death_by_signal(dataset, mountpoint):
    done = run(dataset, mountpoint, "sh", "-c", "kill -KILL $$", options=["-o", "view=all"], check=False)
    assert done.returncode == -signal.SIGKILL
    done = tools.run(["sh", "-c", f"{tools.tool('ddpfs')} exec -q -o view=all {dataset} {mountpoint} -- "
                      "sh -c 'kill -TERM $$'; echo $?"])
    assert done.stdout.strip() == str(128 + signal.SIGTERM)


def test_command_that_is_not_there(dataset, mountpoint):
    done = run(dataset, mountpoint, "no-such-command", options=["-q", "-o", "view=all"], check=False)
    assert done.returncode == 127 and "no-such-command" in done.stderr
    done = run(dataset, mountpoint, "/etc/passwd", options=["-q", "-o", "view=all"], check=False)
    assert done.returncode == 126 and "/etc/passwd" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
                                    signal.SIGQUIT, signal.SIGCONT])
@pytest.mark.parametrize("group", [False, True])
def test_a_signal_arrives_once(dataset, mountpoint, number, group):
    """Whether it is sent to the process that the launcher knows or to its whole group."""
    process = start(dataset, mountpoint, f"""
        import os, signal, sys, time
        got = []
        signal.signal({int(number)}, lambda *_: got.append(1))
        print("ready")
        while not got:
            time.sleep(0.01)
        time.sleep(0.2)
        # The files are still there for whoever saves a checkpoint now.
        total = sum(len(open(os.path.join({str(mountpoint)!r}, name), "rb").read()) for name in os.listdir({str(mountpoint)!r}))
        print(len(got), total > 0)
        sys.exit(9)
        """, start_new_session=True)
    server = server_of(mountpoint)
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert said == "1 True\n" and process.returncode == 9
    wait_gone(server)


def test_the_server_heeds_no_signal_of_its_own(dataset, mountpoint):
    """A launcher that signals every process of a job's cgroup reaches the server too."""
    process = start(dataset, mountpoint, f"""
        import os, sys
        print("ready")
        sys.stdin.readline()
        print(len(os.listdir({str(mountpoint)!r})))
        """, stdin=subprocess.PIPE)
    server = server_of(mountpoint)
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT:
        os.kill(server, number)
    said, _ = process.communicate("go\n", timeout=PATIENCE_S)
    assert said == "50\n" and process.returncode == 0
    wait_gone(server)


def test_kill_9_leaves_nothing(dataset, mountpoint):
    process = start(dataset, mountpoint, "print('ready'); import time; time.sleep(1000)")
    server = server_of(mountpoint)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_gone(server)
    assert str(mountpoint) not in [m["mountpoint"] for m in json.loads(tools.ddpfs("ls", "--json").stdout)]
    assert not mounts.is_mounted(mountpoint)


def test_the_command_has_no_child_it_does_not_know(dataset, mountpoint):
    script = "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('none')"
    assert run(dataset, mountpoint, sys.executable, "-c", script, options=["-o", "view=all"]).stdout == "none\n"


def test_the_process_is_the_command(dataset, mountpoint):
    process = start(dataset, mountpoint, "import os; print('ready'); print(os.getpid())")
    with process:
        assert int(process.stdout.read()) == process.pid


def test_a_launcher_that_ignores_its_children(dataset, mountpoint):
    """The command gets SIGCHLD as it was; ddpfs itself manages without."""
    script = "import signal; print(signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN)"
    done = subprocess.run([tools.tool("ddpfs"), "exec", "-q", "-o", "view=all", dataset, mountpoint, "--",
                           sys.executable, "-c", script], capture_output=True, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.stdout == "True\n", done.stderr


def test_standard_streams_and_directory(dataset, mountpoint, scratch):
    done = run(dataset, mountpoint, "sh", "-c", "cat; pwd; echo err >&2", options=["-q", "-o", "view=all"],
               input="in\n", cwd=scratch)
    assert done.stdout == f"in\n{scratch}\n" and done.stderr == "err\n"


def test_a_caller_below_the_mountpoint_is_in_the_mount(dataset, mountpoint):
    """Not in the empty directory that the mount covers."""
    (mountpoint / "class_00").mkdir()
    (mountpoint / "own").mkdir()
    for cwd, target, listed in [(mountpoint, ".", 5), (mountpoint, mountpoint, 5), (mountpoint / "class_00", "..", 20)]:
        done = run(dataset, target, "sh", "-c", "pwd; ls", options=["-q", "-o", "view=all"], cwd=cwd)
        assert done.stderr == "" and done.stdout.split()[0] == str(cwd) and len(done.stdout.split()) == 1 + listed
    done = run(dataset, mountpoint, "ls", options=["-q", "-o", "view=all"], cwd=mountpoint / "own")
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1 and f"{mountpoint}/own" in done.stderr


def test_nobody_outside_sees_the_mount(dataset, mountpoint):
    process = start(dataset, mountpoint, "print('ready'); input()", stdin=subprocess.PIPE)
    assert not mounts.is_mounted(mountpoint) and os.listdir(mountpoint) == []
    process.communicate("\n", timeout=PATIENCE_S)


def test_two_ranks_share_one_path(dataset, mountpoint):
    script = f"import os; print('ready'); input(); print(*sorted(os.listdir({str(mountpoint)!r})))"
    both = [subprocess.Popen([tools.tool("ddpfs"), "exec", "-q", "-o", "order=full", dataset, mountpoint, "--",
                              sys.executable, "-uc", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    listed = [m for m in json.loads(tools.ddpfs("ls", "--json").stdout) if m["mountpoint"] == str(mountpoint)]
    assert sorted(m["rank"] for m in listed) == [0, 1]
    assert len({m["view_identity"] for m in listed}) == 1
    # One path, two servers: each is named by its pid.
    done = tools.ddpfs("stat", mountpoint, check=False)
    assert done.returncode == 1 and all(f"@{m['pid']}" in done.stderr for m in listed)
    for m in listed:
        assert json.loads(tools.ddpfs("stat", "--json", f"@{m['pid']}").stdout)["rank"] == m["rank"]
    names = [process.communicate("\n", timeout=PATIENCE_S)[0].split() for process in both]
    samples = [{name.split("-", 2)[2] for name in part} for part in names]
    assert len(samples[0]) == len(samples[1]) == 50 and not samples[0] & samples[1]


def test_a_missing_mountpoint_is_made_and_said(dataset, scratch):
    done = run(dataset, scratch / "new", "ls", scratch / "new", options=["-o", "rank=0,world=2"])
    assert len(done.stdout.split()) == 50
    assert "made the directory" in done.stderr and os.listdir(scratch / "new") == []
    done = run(dataset, scratch / "a/b", "true", options=["-o", "rank=0,world=2"], check=False)
    assert done.returncode == 1 and "mkdir -p" in done.stderr


def test_failures_are_told_and_the_command_does_not_run(dataset, mountpoint, scratch):
    for options, words, code in [(["-o", "rank=0,world=2,subdir=none"], "none", 1), (["-o", "sed=1"], "seed", 2),
                                 (["-o", "rank=0,world=2,start=1000"], "start", 1)]:
        done = run(dataset, mountpoint, "echo", "ran", options=options, check=False)
        assert done.returncode == code and words in done.stderr and not done.stdout
    done = run(scratch / "no", mountpoint, "echo", "ran", options=["-o", "view=all"], check=False)
    assert done.returncode == 1 and "mkshard pack" in done.stderr and not done.stdout


@pytest.mark.parametrize("arguments", [[], ["a"], ["a", "b"], ["a", "b", "--"], ["a", "b", "c"], ["a", "b", "c", "--", "d"]])
def test_wrong_usage(build_dir, arguments):
    done = tools.ddpfs("exec", *arguments, check=False)
    assert done.returncode == 2 and done.stderr


def test_a_mount_on_the_host_is_not_covered(dataset, mountpoint, background):
    background(dataset, mountpoint)
    done = run(dataset, mountpoint, "true", options=["-o", "view=all"], check=False)
    assert done.returncode == 1 and "already" in done.stderr


def test_a_silent_neighbour_does_not_hold_up_the_end(private, dataset):
    """A server that hangs takes connections and says nothing.  Kept from ending, this one would be killed, with a warning."""
    private.directory_of_nobody("mnt")
    done = private.run(f"""
        mkdir -p /run/ddpfs
        mount -t tmpfs -o mode=700 tmpfs /run/ddpfs
        mkfifo ready
        {sys.executable} -c 'import socket, time
silent = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for i, s in enumerate(silent):
    s.bind("/run/ddpfs/%d.sock" % (1 << 22 | i))
    s.listen()
print(flush=True)
time.sleep(60)' >ready 2>/dev/null &
        read -r _ <ready
        listener=$!
        $ddpfs exec -q -o view=all {dataset} mnt -- echo ran 2>&1 | cat  # which ends when the server has
        kill $listener
        umount -l /run/ddpfs
        """)
    assert done.stdout == "ran\n"


def test_inotify_sees_the_commands_opens(dataset, mountpoint):
    """The server's own watch works inside the namespace: epochs advance by themselves."""
    script = f"""
import os
for epoch in range(3):
    names = os.listdir({str(mountpoint)!r})
    assert {{int(name[:4]) for name in names}} == {{epoch}}, names[:3]
    for name in names:
        open(os.path.join({str(mountpoint)!r}, name), "rb").read()
print("advanced")
"""
    assert run(dataset, mountpoint, sys.executable, "-c", script, options=["-o", "rank=0,world=2"]).stdout == "advanced\n"


# Unprivileged


def test_unprivileged(private, dataset):
    private.directory_of_nobody("mnt")
    done = private.run(f"""
        RANK=1 WORLD_SIZE=2 $nobody $ddpfs exec --no-interpose {dataset} mnt -- \\
            sh -c 'id -u; ls mnt | wc -l; cat mnt/* | wc -c; stat -c %u mnt; grep CapEff /proc/self/status; exit 7' ||
            echo "code $?"
        """)
    lines = done.stdout.splitlines()
    assert lines[0] == "65534" and lines[1] == "50" and int(lines[2]) > 0 and lines[3] == "65534"
    assert lines[4].split()[1] == "0" * 16  # the namespace gives the command no capabilities
    assert lines[5] == "code 7"


def test_another_ranks_mount_is_not_taken_for_ones_own(dataset, mountpoint):
    """Two ranks on one path: the one whose server cannot be reached learns that, and not the other one's state."""
    mine = start(dataset, mountpoint, """
        import os, subprocess
        print('ready')
        input()
        mnt, program = os.environ['DDPFS_MOUNT'], os.environ['DDPFS_PROGRAM']
        print(subprocess.run([program, 'ctl', mnt, 'state'], capture_output=True, text=True))
        """, stdin=subprocess.PIPE, env={**os.environ, "DDPFS_PROGRAM": tools.tool("ddpfs")})
    server = server_of(mountpoint)
    other = start(dataset, mountpoint, "print('ready'); input()", stdin=subprocess.PIPE)
    try:
        control.directory().joinpath(f"{server}.sock").unlink()
        said = mine.communicate("go\n")[0]
        assert "returncode=1" in said and "stdout=''" in said
    finally:
        other.communicate("go\n")


def test_a_clear_error_where_namespaces_are_not_allowed(dataset, mountpoint):
    """Root without capabilities in a user namespace that may not be nested: what a container looks like."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    limit = Path("/proc/sys/user/max_user_namespaces")
    script = (f"echo 0 > {limit} && exec setpriv --bounding-set=-all --inh-caps=-all "
              f"{tools.tool('ddpfs')} exec -o view=all {dataset} {mountpoint} -- echo ran")
    # In a user namespace of its own the limit is that namespace's, not the machine's.
    done = tools.run(["unshare", "-U", "-r", "-m", "sh", "-c", script], check=False)
    if "max_user_namespaces" in done.stderr and "ddpfs:" not in done.stderr:
        pytest.skip(f"no user namespaces on this machine: {done.stderr.strip()}")
    assert done.returncode == 1 and not done.stdout
    assert "ddpfs: " in done.stderr and "ddpfs mount" in done.stderr


@pytest.mark.parametrize("who", ["", "setpriv --reuid=65534 --regid=65534 --clear-groups"])
def test_a_chroot_is_not_called_a_container(private, dataset, who):
    build = tools.build_dir()
    done = private.run(f"""
        mkdir root
        for dir in /bin /dev /etc /lib /lib64 /proc /sys /usr; do
            if [ -L $dir ]; then cp -a $dir root$dir
            elif [ -d $dir ]; then mkdir root$dir && mount --rbind $dir root$dir; fi
        done
        for dir in {build} {dataset}; do mkdir -p root$dir && mount --bind $dir root$dir; done
        mkdir root/mnt root/run
        unshare --root=root {who} $ddpfs exec -q -o view=all {dataset} /mnt -- echo ran 2>&1 || echo "code $?"
        mount --rbind root root
        unshare --root=root $ddpfs exec -q -o view=all {dataset} /mnt -- echo ran
        """)
    said, code, ran = done.stdout.splitlines()
    assert "chroot" in said and "mount --bind DIR DIR" in said and "ddpfs mount" in said and "container" not in said
    assert (code, ran) == ("code 1", "ran"), "what it advises works"


def test_the_interposer_and_the_hook_are_found_in_a_chroot(dataset, scratch, build_dir):
    """There, /proc/self/exe gives a path from outside once `ddpfs exec` has a mount namespace of its own."""
    done = DebianRoot("/", scratch).run(
        "mkdir /tmp/mnt; /run/host/build/tools/ddpfs exec -q -o view=all /run/host/dataset /tmp/mnt -- "
        "sh -c 'echo $LD_PRELOAD; echo $PYTHONPATH'", {"dataset": dataset, "build": build_dir})
    assert done.stdout.split() == ["/run/host/build/tools/libddpfs_interpose.so", "/run/host/build/tools/python/exec"]
    assert done.stderr == ""


# The interposer


def interposed(script, stdin=subprocess.DEVNULL):
    return tools.run([sys.executable, "-c", script], stdin=stdin,
                     env={"LD_PRELOAD": tools.build_dir() / "tools/libddpfs_interpose.so"}).stdout.split()


def test_isatty_answers_as_libc_does(build_dir, tmp_path):
    (tmp_path / "file").write_text("x")
    script = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for fd in 0, os.open({str(tmp_path / 'file')!r}, os.O_RDONLY), os.open("/dev/null", os.O_RDONLY), os.pipe()[0], 999:
    print(libc.isatty(fd), errno.errorcode.get(ctypes.get_errno()) if not libc.isatty(fd) else "-")
"""
    leader, follower = pty.openpty()
    with_it = interposed(script, stdin=follower)
    without = tools.run([sys.executable, "-c", script], stdin=follower).stdout.split()
    os.close(leader)
    os.close(follower)
    assert with_it == without == ["1", "-", "0", "ENOTTY", "0", "ENOTTY", "0", "ENOTTY", "0", "EBADF"]


def test_open_asks_the_kernel_for_no_terminal(build_dir, tmp_path):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    (tmp_path / "file").write_text("x")
    script = f"for _ in range(10): open({str(tmp_path / 'file')!r}, 'rb').read()"
    def asked(env):
        log = tmp_path / "log"
        tools.run(["strace", "-f", "-e", "trace=ioctl,openat", "-o", log, sys.executable, "-c", script], env=env)
        lines = log.read_text().splitlines()
        first = next(i for i, line in enumerate(lines) if str(tmp_path / "file") in line)
        return sum("TCGETS" in line for line in lines[first:])
    assert asked({"LD_PRELOAD": ""}) >= 10
    assert asked({"LD_PRELOAD": build_dir / "tools/libddpfs_interpose.so"}) == 0
