# SPDX-License-Identifier: Apache-2.0
"""ddpfs mount: returns when the mount answers, or with the reason and the exit code."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from helpers import mounts, tools
from helpers.terminal import OnTerminal
from helpers.waiting import PATIENCE_S


def one_line(done, code):
    """The one line of a refusal."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith(("ddpfs: ", "ddpfs mount: ")), done.stderr
    # Wrong usage may add a pointer to --help.
    assert len(lines) == 1 or (code == 2 and len(lines) == 2 and "--help" in lines[1]), done.stderr
    return lines[0]


def test_returns_when_the_mount_answers(dataset, mountpoint, background):
    done = background(dataset, mountpoint)
    assert mounts.is_mounted(mountpoint)
    assert len(os.listdir(mountpoint)) == 50
    assert done.stdout == done.stderr == ""


def mounted_on_a_terminal(dataset, mountpoint, options, *more):
    """What `ddpfs mount` writes to a terminal that is its standard error; nothing goes to its standard output."""
    with OnTerminal([tools.tool("ddpfs"), "mount", "-o", options, *more, dataset, mountpoint],
                    stdout=subprocess.PIPE, text=True) as ran:
        assert ran.wait() == 0, ran.text
        assert ran.process.stdout.read() == ""
    tools.ddpfs("umount", mountpoint)
    # A mount that takes longer than 2 s shows on the terminal that it does: a line that is drawn over and wiped.
    lines = [line.rsplit("\r", 1)[-1].removeprefix("\x1b[K") for line in ran.text.split("\r\n")]
    return [line for line in lines if line.startswith("ddpfs: ")]


@pytest.mark.parametrize(("command", "says"), [
    (["stat"], "waiting for the server of the mount, 2 s"),
    (["ctl", "follow"], "announcing the list, 2 s"),
    (["report", "-o", "/dev/null"], "reading the history, 2 s"),
])
def test_a_command_says_on_a_terminal_that_the_server_does_not_answer(dataset, mount, scratch, command, says):
    m = mount(dataset, "view=all")
    (scratch / "list").write_text("".join(f"{name}\n" for name in sorted(os.listdir(m.path))[:1]))
    argv = ["ctl", m.path, "follow", scratch / "list"] if command[0] == "ctl" else [*command, m.path]
    server = m.server_pid()
    mounts.stop_and_wait(server)
    try:
        with OnTerminal([tools.tool("ddpfs"), *argv]) as ran:
            ran.wait_for(says)
    finally:
        os.kill(server, signal.SIGCONT)


def test_three_lines_introduce_a_mount_on_a_terminal(dataset, mountpoint):
    shown, does, following = mounted_on_a_terminal(dataset, mountpoint, "rank=0,world=2")
    assert shown == f"ddpfs: '{mountpoint}' shows the part of rank 0 of 2: 50 of 100 samples in epoch 0"
    assert "reads ahead in the order of the epoch" in does
    assert f"'ddpfs stat {mountpoint}'" in following and f"'ddpfs umount {mountpoint}'" in following
    shown, _, _ = mounted_on_a_terminal(dataset, mountpoint, "rank=all,world=8")  # tail=pad repeats four of them
    assert shown == (f"ddpfs: '{mountpoint}' shows ranks 0 to 7 of 8, each in a directory: 100 of 100 samples in "
                     "epoch 0")
    shown, does, following = mounted_on_a_terminal(dataset, mountpoint, "view=all")
    assert shown.startswith(f"ddpfs: '{mountpoint}' shows all 100 files of the dataset (")
    assert "recognises the trainer's sampler" in does
    shown, does, following = mounted_on_a_terminal(dataset, mountpoint, "view=all,layout=flat")
    assert shown == f"ddpfs: '{mountpoint}' shows all 100 samples, named in the order of epoch 0"
    assert "reads ahead in the order of the epoch" in does and "sampler" not in does


def test_quiet_mount_is_not_introduced(dataset, mountpoint):
    assert mounted_on_a_terminal(dataset, mountpoint, "view=all", "--quiet") == []


def test_relative_paths(dataset, mountpoint, background, scratch):
    background(dataset.name, mountpoint, cwd=scratch)
    tools.ddpfs("umount", mountpoint.name, cwd=scratch)
    background(dataset, os.path.relpath(mountpoint))
    assert len(os.listdir(mountpoint)) == 50


def test_the_server_keeps_no_descriptor_of_its_caller(dataset, mountpoint, background):
    read_end, write_end = os.pipe()
    background(dataset, mountpoint, pass_fds=[write_end])
    os.close(write_end)
    assert os.read(read_end, 1) == b""  # would wait for ever while the server holds the other end
    os.close(read_end)


def test_closed_standard_streams(dataset, mountpoint):
    subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", tools.tool("ddpfs"), "mount", "-o", "view=all", dataset, mountpoint],
                   check=True)
    try:
        assert len(os.listdir(mountpoint)) == 5
    finally:
        tools.ddpfs("umount", mountpoint)


def test_a_launcher_that_ignores_its_children(dataset, mountpoint):
    done = subprocess.run([tools.tool("ddpfs"), "mount", "-o", "view=all,subdir=none", dataset, mountpoint],
                          capture_output=True, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert "none" in one_line(done, 1)


def test_in_front(dataset, mount):
    mounted = mount(dataset, "rank=1,world=2")
    assert len(os.listdir(mounted.path)) == 50
    mounted.unmount()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts(dataset, mount, number):
    mounted = mount(dataset, "rank=0,world=2")
    mounted.process.send_signal(number)
    assert mounted.process.wait(timeout=PATIENCE_S) == 0
    assert not mounts.is_mounted(mounted.path)


def test_options_add_up_and_later_ones_win(dataset, mountpoint, background):
    background(dataset, mountpoint, "rank=0,world=1,seed=1", "-o", "world=4,seed=2")
    info = json.loads(tools.ddpfs("ctl", mountpoint, "info").stdout)
    assert (info["rank"], info["world"], info["seed"]) == (0, 4, 2)


def test_the_help_of_the_options_says_the_defaults(dataset, mountpoint, background):
    background(dataset, mountpoint, "view=all")
    info = json.loads(tools.ddpfs("ctl", mountpoint, "info").stdout)
    assert (info["layout"], info["view"], info["tail"], info["seed"], info["advance"]) == ("tree", "all", "pad", 0, "auto")


@pytest.mark.parametrize("options,words", [
    ([], ["rank=R,world=W", "view=all"]),
    (["-o", "rank=0"], ["world=W"]),
    (["-o", "world=2"], ["rank=R"]),
    (["-o", "rank=2,world=2"], ["rank=2", "world=2", "0 to 1"]),
    (["-o", "rank=0,world=2,wrold=3"], ["wrold", "did you mean world?"]),
    (["-o", "rank=0,world=2,order=random"], ["order", "random", "full"]),
    (["-o", "rank=0,world=2,memory=1M"], ["memory", "8M"]),
    (["-o", "rank=0,world=2,on_bad=ignore"], ["on_bad", "eio"]),
    (["-o", "rank=0,world=2,threads=65"], ["threads", "65", "at most 64"]),
])
def test_wrong_options(dataset, mountpoint, options, words):
    line = one_line(tools.ddpfs("mount", *options, dataset, mountpoint, check=False), 2)
    for word in words:
        assert word in line
    assert not mounts.is_mounted(mountpoint)


@pytest.mark.parametrize("arguments", [[], ["a"], ["a", "b", "c"], ["--nonsense", "a", "b"], ["-o"]])
def test_wrong_usage(build_dir, arguments):
    done = tools.ddpfs("mount", *arguments, check=False)
    assert done.returncode == 2
    assert "--help" in done.stderr and not done.stdout


def refusal(dataset, mountpoint, options="rank=0,world=2"):
    return one_line(tools.ddpfs("mount", "-o", options, dataset, mountpoint, check=False), 1)


def test_missing_dataset(scratch, mountpoint):
    line = refusal(scratch / "nothing", mountpoint)
    assert "nothing" in line and "mkshard pack" in line


@pytest.mark.parametrize("name", ["gs://bucket/images", "s3:/bucket/images", "file:///data/images", "az+x.y-1:/b"])
def test_a_url_of_another_kind_is_told_which_there_are(mountpoint, name):
    verified = tools.mkshard("verify", name, check=False)
    assert verified.returncode == 1
    for said in (refusal(name, mountpoint), verified.stderr):
        assert f"'{name}'" in said and "write s3://BUCKET/PREFIX, https://HOST/PATH" in said, said
        assert ("did you mean 's3://bucket/images'?" in said) == (name == "s3:/bucket/images"), said


def test_a_directory_may_be_named_like_a_url(dataset, mountpoint, background, scratch):
    (scratch / "gs:").mkdir()
    (scratch / "gs:/images").symlink_to(dataset)
    background("gs://images", mountpoint, cwd=scratch)
    assert len(os.listdir(mountpoint)) == 50


@pytest.mark.parametrize("name", ["1:/b", ":/b", "data:b", "b"])
def test_another_missing_path_is_not_taken_for_a_url(mountpoint, name):
    assert "does not exist: give the directory" in refusal(name, mountpoint)


def test_dataset_without_an_index(scratch, mountpoint):
    (scratch / "empty").mkdir()
    assert "index.ddpfs" in refusal(scratch / "empty", mountpoint)


def test_dataset_that_is_a_file(scratch, mountpoint):
    (scratch / "file").write_text("x")
    assert "not a directory" in refusal(scratch / "file", mountpoint)


@pytest.mark.parametrize("damage", ["magic", "version", "cut", "empty"])
def test_damaged_index(dataset, mountpoint, damage):
    index = dataset / "index.ddpfs"
    data = bytearray(index.read_bytes())
    if damage == "magic":
        data[0] ^= 1
    elif damage == "version":
        data[8] ^= 0x40
    elif damage == "cut":
        data = data[: len(data) // 2]
    else:
        data = b""
    index.chmod(0o644)
    index.write_bytes(data)
    assert "index.ddpfs" in refusal(dataset, mountpoint)
    assert not mounts.is_mounted(mountpoint)


def test_missing_mountpoint(dataset, scratch):
    line = refusal(dataset, scratch / "nowhere")
    assert "nowhere" in line and "mkdir" in line


def test_mountpoint_that_is_a_file(dataset, scratch):
    (scratch / "file").write_text("x")
    assert "not a directory" in refusal(dataset, scratch / "file")


def test_mountpoint_over_the_dataset(dataset, scratch):
    assert "cover the dataset" in refusal(dataset, dataset)
    assert "cover the dataset" in refusal(dataset, scratch)


def test_mountpoint_in_use(dataset, mountpoint, background):
    background(dataset, mountpoint)
    line = refusal(dataset, mountpoint)
    assert "already" in line and "ddpfs umount" in line
    assert len(os.listdir(mountpoint)) == 50


def test_missing_subdir(dataset, mountpoint):
    assert "no_such" in refusal(dataset, mountpoint, "rank=0,world=2,subdir=no_such")


def test_start_beyond_the_end(dataset, mountpoint):
    assert "start" in refusal(dataset, mountpoint, "rank=0,world=2,start=101")


def test_resume_from_a_state_file(dataset, mountpoint, background, scratch):
    background(dataset, mountpoint, "rank=0,world=2,seed=5,order=full")
    before = sorted(os.listdir(mountpoint))
    state = scratch / "state.json"
    tools.ddpfs("ctl", mountpoint, "state", "40", "--output", state)
    tools.ddpfs("umount", mountpoint)
    background(dataset, mountpoint, f"rank=0,world=2,state={state}")
    assert sorted(os.listdir(mountpoint)) == before[20:]
    tools.ddpfs("umount", mountpoint)
    line = refusal(dataset, mountpoint, f"rank=0,world=2,state={state},seed=6")
    assert "seed" in line and "5" in line and "6" in line


def test_state_of_another_dataset(dataset, mountpoint, background, scratch, pack):
    (scratch / "other").mkdir()
    (scratch / "other/x").write_text("x")
    state = scratch / "state.json"
    background(pack(scratch / "other"), mountpoint)
    tools.ddpfs("ctl", mountpoint, "state", "--output", state)
    tools.ddpfs("umount", mountpoint)
    assert "state.json" in refusal(dataset, mountpoint, f"rank=0,world=2,state={state}")


@pytest.mark.parametrize("text", ["", "{}", "no json", "[]", '{"version":99}', "x" * 100_000])
def test_bad_state_file(dataset, mountpoint, scratch, text):
    (scratch / "state.json").write_text(text)
    assert "state.json" in refusal(dataset, mountpoint, f"rank=0,world=2,state={scratch / 'state.json'}")


def test_missing_state_file(dataset, mountpoint):
    assert "nostate" in refusal(dataset, mountpoint, "rank=0,world=2,state=nostate")


def test_an_empty_state_file_has_a_next_step(dataset, mountpoint, scratch):
    for text in ["", "\n", "{}\n"]:
        (scratch / "state.json").write_text(text)
        for optional in ["", "-"]:
            line = refusal(dataset, mountpoint, f"rank=0,world=2,state={optional}{scratch / 'state.json'}")
            assert "holds no state" in line and "state=-FILE" in line


def test_a_first_start_whose_folder_is_missing_is_warned_of(dataset, mountpoint, background, scratch):
    assert background(dataset, mountpoint, f"rank=0,world=2,state=-{scratch / 'state.json'}").stderr == ""
    tools.ddpfs("umount", mountpoint)
    said = background(dataset, mountpoint, f"rank=0,world=2,epoch=3,state=-{scratch / 'nodir/state.json'}").stderr
    assert len(said.splitlines()) == 1 and f"'{scratch / 'nodir'}'" in said and "epoch 3, step 0" in said


def test_more_ranks_than_samples_are_warned_of(dataset, mountpoint, background):
    """With tail=pad each rank gets something, of others."""
    assert background(dataset, mountpoint, "rank=0,world=100").stderr == ""
    tools.ddpfs("umount", mountpoint)
    said = background(dataset, mountpoint, "rank=0,world=101").stderr
    assert len(said.splitlines()) == 1 and "world=101" in said and "at most 100 ranks" in said


def test_too_much_memory_is_told_in_a_readable_unit(dataset, mountpoint, background):
    said = background(dataset, mountpoint, "rank=0,world=2,memory=100T").stderr
    assert "memory: 100.0 TiB is more than this host" in said and "iB are used" in said


def test_arguments_the_other_way_round(dataset, mountpoint):
    line = one_line(tools.ddpfs("mount", "-o", "view=all", mountpoint, dataset, check=False), 1)
    assert "the other way round" in line and line.index(str(mountpoint)) < line.index(str(dataset))
    assert not mounts.is_mounted(mountpoint)


@pytest.mark.parametrize("typed,meant", [("unmount", "umount"), ("stats", "stat"), ("Mount", "mount"), ("tkaeover", None)])
def test_an_unknown_command_gets_the_nearest(build_dir, typed, meant):
    done = tools.ddpfs(typed, check=False)
    assert done.returncode == 2 and f"unknown command '{typed}'" in done.stderr
    assert (f"did you mean {meant}?" in done.stderr) if meant else ("did you mean" not in done.stderr)


def test_other_words_for_help_and_version(build_dir):
    assert tools.ddpfs("-h").stdout == tools.ddpfs("help").stdout == tools.ddpfs("--help").stdout
    assert tools.ddpfs("help", "mount").stdout == tools.ddpfs("mount", "--help").stdout
    assert tools.ddpfs("version").stdout == tools.ddpfs("--version").stdout
    assert tools.mkshard("help").stdout == tools.mkshard("--help").stdout


def test_log_file(dataset, mountpoint, background, scratch):
    background(dataset, mountpoint, f"rank=0,world=2,log_level=debug,log={scratch / 'log'}")
    assert (scratch / "log").exists()
    tools.ddpfs("umount", mountpoint)
    assert "nodir" in refusal(dataset, mountpoint, f"rank=0,world=2,log={scratch / 'nodir/log'}")
    os.mkfifo(scratch / "fifo")
    assert "fifo" in refusal(dataset, mountpoint, f"rank=0,world=2,log={scratch / 'fifo'}")  # nobody reads it


def test_log_to_a_pipe(dataset, mountpoint):
    """As a container's log is: /dev/stdout leads to a link of /proc whose target is no path."""
    options = "view=all,log_level=debug,log=/dev/stdout"
    with subprocess.Popen([tools.tool("ddpfs"), "mount", "-f", "-o", options, dataset, mountpoint],
                          stdout=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent) as mount:
        while mount.poll() is None and not mounts.is_mounted(mountpoint):
            time.sleep(0.01)
        os.listdir(mountpoint)  # waits until the server answers
        tools.ddpfs("restart", mountpoint)  # which logs
        tools.ddpfs("umount", mountpoint)
        assert mount.wait(60) == 0
        assert "answers again" in mount.stdout.read()


def limited(limit, value, *arguments):
    """`ddpfs ARGUMENTS` with that limit; its output goes to pipes."""
    return subprocess.run(["prlimit", f"--{limit}={value}", tools.tool("ddpfs"), *map(str, arguments)],
                          capture_output=True, text=True)


def test_too_few_open_files_are_told_as_such(dataset, mountpoint):
    for files in 10, 12, 16, 63:
        line = one_line(limited("nofile", files, "mount", "-o", "view=all", dataset, mountpoint), 1)
        assert f"{files} files open" in line and "ulimit -n" in line
        assert not mounts.is_mounted(mountpoint)


def test_threads_up_to_the_limit(dataset, mountpoint, background):
    background(dataset, mountpoint, "view=all,threads=64")
    server = tools.stat_json(mountpoint)["server_pid"]
    names = [Path(f"/proc/{server}/task/{task}/comm").read_text() for task in os.listdir(f"/proc/{server}/task")]
    assert sum(name.startswith("fuse-") for name in names) == 64


def test_what_a_mount_hides_is_told(dataset, mountpoint, background):
    (mountpoint / "mine").touch()
    done = background(dataset, mountpoint)
    assert f"'{mountpoint}' is not empty" in done.stderr and "hidden" in done.stderr
    tools.ddpfs("umount", mountpoint)
    (mountpoint / "mine").unlink()
    assert not background(dataset, mountpoint).stderr


def test_a_limit_on_the_size_of_files_is_told(dataset, mountpoint):
    line = one_line(limited("fsize", 0, "mount", "-o", "view=all", dataset, mountpoint), 1)
    assert "ulimit -f" in line
    assert not mounts.is_mounted(mountpoint)


def test_a_log_that_may_not_grow_does_not_end_the_server(dataset, mountpoint, scratch):
    limit = 64 << 20
    log = scratch / "log"
    with open(log, "wb") as file:
        file.truncate(limit)
    done = limited("fsize", limit, "mount", "-o", f"view=all,log_level=debug,log={log}", dataset, mountpoint)
    try:
        assert done.returncode == 0, done
        before = tools.stat_json(mountpoint)
        tools.ddpfs("restart", mountpoint)  # which logs
        now = tools.stat_json(mountpoint)
        assert (now["pid"], now["restarts"]) == (before["pid"], 1), "the one that was asked for"
        assert log.stat().st_size == limit
    finally:
        tools.ddpfs("umount", mountpoint)
    assert f"cut at {limit} bytes" in done.stderr and "ulimit -f" in done.stderr


def test_another_users_link_is_not_followed_by_log(dataset, mountpoint, background, scratch):
    """Links of one's own and of root are; whoever mounts names a path, and nobody else leads it elsewhere."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make links of another user")
    theirs, ours = scratch / "theirs", scratch / "ours"
    theirs.mkdir()
    ours.mkdir()
    victim = ours / "victim"
    (theirs / "file").symlink_to(victim)
    (theirs / "dir").symlink_to(ours)
    (scratch / "own").symlink_to(theirs / "real")
    (ours / "dir").symlink_to("../theirs")
    for link in theirs / "file", theirs / "dir":
        os.lchown(link, 65534, 65534)
    for path in theirs / "file", theirs / "dir" / "victim", ours / "dir" / "file":
        line = refusal(dataset, mountpoint, f"view=all,log={path}")
        assert "symbolic link of another user (65534)" in line
        assert not victim.exists()
    background(dataset, mountpoint, f"view=all,log_level=debug,log={scratch / 'own'}")
    assert (theirs / "real").exists()
    tools.ddpfs("umount", mountpoint)
    background(dataset, mountpoint, f"view=all,log_level=debug,log={ours / 'dir' / 'another'}")
    assert (theirs / "another").exists()


def test_relative_log_and_control_are_the_callers(dataset, mountpoint, background, scratch):
    background(dataset, mountpoint, "rank=0,world=2,log=a.log,control=a.sock", cwd=scratch)
    assert (scratch / "a.log").exists() and (scratch / "a.sock").is_socket()
    assert not Path("/a.log").exists() and not Path("/a.sock").exists()
    assert json.loads(tools.ddpfs("ctl", "a.sock", "info", cwd=scratch).stdout)["mountpoint"] == str(mountpoint)


def test_a_living_mounts_socket_is_not_taken(dataset, mountpoint, background, scratch):
    sock = scratch / "x.sock"
    background(dataset, mountpoint, f"rank=0,world=2,control={sock}")
    (scratch / "other").mkdir()
    done = tools.ddpfs("mount", "-o", f"rank=1,world=2,control={sock}", dataset, scratch / "other", check=False)
    assert "another mount answers there" in one_line(done, 1)
    assert not mounts.is_mounted(scratch / "other")
    assert json.loads(tools.ddpfs("ctl", sock, "info").stdout)["mountpoint"] == str(mountpoint)
    now = json.loads((mountpoint / ".ddpfs/stats.json").read_text())
    mounts.kill_with_supervisor(now["pid"], now["server_pid"])  # a dead one's is
    tools.ddpfs("umount", mountpoint)
    assert sock.is_socket()
    background(dataset, mountpoint, f"rank=0,world=2,control={sock}")


@pytest.mark.parametrize("key", ["control", "log"])
def test_nothing_is_put_where_the_mount_hides_it(dataset, mountpoint, key):
    (mountpoint / "below").mkdir()
    for place in ("x", "below/x", "below/../x"):
        said = refusal(dataset, mountpoint, f"rank=0,world=2,{key}={mountpoint / place}")
        assert f"{key}=" in said and "below the mountpoint" in said
    assert os.listdir(mountpoint) == ["below"]


def test_of_two_on_one_directory_one_mounts(dataset, mountpoint, background):
    for _ in range(5):
        both = [subprocess.Popen([tools.tool("ddpfs"), "mount", "-o", f"rank={rank},world=2", dataset, mountpoint],
                                 stderr=subprocess.PIPE, text=True) for rank in range(2)]
        said = [one.communicate()[1] for one in both]
        assert sorted(one.returncode for one in both) == [0, 1], said
        rank = json.loads((mountpoint / ".ddpfs/stats.json").read_text())["rank"]
        assert both[rank].returncode == 0 and "is a ddpfs mount already" in said[1 - rank] or "was made there" in said[1 - rank]
        tools.ddpfs("umount", mountpoint)
        assert not mounts.is_mounted(mountpoint)


def test_read_only_whatever_is_asked(dataset, mountpoint, background):
    done = background(dataset, mountpoint, "rank=0,world=2,rw")
    assert "warning: rw: a ddpfs mount is read-only" in done.stderr
    assert os.statvfs(mountpoint).f_flag & os.ST_RDONLY


def test_a_damaged_index_is_told_as_one(dataset, mountpoint):
    index = dataset / "index.ddpfs"
    index.chmod(0o644)
    with open(index, "r+b") as f:
        f.seek(5000)
        f.write(b"\xff" * 2000)
    for done in (tools.ddpfs("order", "-o", "rank=0,world=2", dataset, check=False), tools.mkshard("stats", dataset, check=False)):
        assert done.returncode == 1 and "subdir" not in done.stderr and "mkshard index" in done.stderr, done.stderr


def crashing_library(scratch, body):
    """A shared object whose fuse_session_mount() does `body`: a server that gets that far and no further."""
    cc = shutil.which("cc") or shutil.which("gcc")
    if not cc:
        pytest.skip("no C compiler to make a crashing libfuse with")
    source = scratch / "crash.c"
    source.write_text(f"#include <stdlib.h>\n#include <unistd.h>\nint fuse_session_mount(void);\n"
                      f"int fuse_session_mount(void) {{ {body} return -1; }}\n")
    subprocess.run([cc, "-shared", "-fPIC", "-o", scratch / "crash.so", source], check=True)
    return scratch / "crash.so"


def preloaded(library):
    # A build with ASan wants to be the first library, unless told otherwise.
    return {"LD_PRELOAD": str(library), **tools.sanitizers("verify_asan_link_order=0")}


@pytest.mark.parametrize("body,word", [("abort();", "signal 6"), ("_exit(3);", "status 3")])
def test_a_crash_of_the_server_is_told(dataset, mountpoint, scratch, body, word):
    library = crashing_library(scratch, body)
    done = tools.run([tools.tool("ddpfs"), "mount", "-o", "rank=0,world=2", dataset, mountpoint],
                     env=preloaded(library), check=False)
    assert word in one_line(done, 1)
    assert not mounts.is_mounted(mountpoint)  # though the server died behind its mount(2)


def test_interrupted_while_it_waits(dataset, mountpoint, scratch):
    library = crashing_library(scratch, "sleep(1000);")
    process = subprocess.Popen([tools.tool("ddpfs"), "mount", "-o", "rank=0,world=2", dataset, mountpoint],
                               env={**os.environ, **preloaded(library)}, stderr=subprocess.PIPE, text=True)
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    while not open(children).read().split():
        time.sleep(0.01)
    server = int(open(children).read().split()[0])
    while str(mountpoint) not in Path("/proc/self/mountinfo").read_text():  # a stat of it would hang
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert not mounts.is_mounted(mountpoint)
    assert process.returncode == 1 and "interrupted" in said
    assert not os.path.exists(f"/proc/{server}")


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_interrupted_when_the_mount_begins_to_answer(dataset, mountpoint, name):
    """The signal comes right after the server's report that the mount answers, while the command sets its three handlers back:
    the mount goes again, and the command says so."""
    if not shutil.which("strace") or subprocess.run(["strace", "-o", "/dev/null", "true"]).returncode:
        pytest.skip("strace cannot be run here")
    mount = [tools.tool("ddpfs"), "mount", "-o", "rank=0,world=2", dataset, mountpoint]
    calls = tools.run(["strace", "-qq", "-e", "trace=rt_sigaction", *mount], env=tools.TRACED).stderr
    tools.ddpfs("umount", mountpoint)
    last = sum(line.startswith("rt_sigaction(") for line in calls.splitlines())
    assert last > 6
    done = tools.run(["strace", "-qq", "-o", "/dev/null", "-e", f"inject=rt_sigaction:signal={name}:when={last - 2}", *mount],
                     env=tools.TRACED, check=False)
    assert done.returncode == 1 and "interrupted" in done.stderr
    assert not mounts.is_mounted(mountpoint)
