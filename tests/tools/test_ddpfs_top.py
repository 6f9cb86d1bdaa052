# SPDX-License-Identifier: Apache-2.0
"""`ddpfs top`: in a pseudo-terminal, as text, as JSON; mounts that come, stop and go."""

import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import termios

import pytest

from helpers import mounts, tools
from helpers.waiting import wait_until
from mount import control

ENTER, LEAVE = "\033[?1049h", "\033[?1049l"
SEQUENCE = re.compile(r"\033\[[?0-9;]*[A-Za-z]")


class Screen:
    """`ddpfs top` in a pseudo-terminal of its own."""

    def __init__(self, *args, rows=24, columns=300, term="xterm"):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns, tell=False)
        self.before = termios.tcgetattr(self.slave)
        self.text = ""
        self.process = subprocess.Popen([tools.tool("ddpfs"), "top", *map(str, args)], stdin=self.slave,
                                        stdout=self.slave, stderr=self.slave, env={**os.environ, "TERM": term},
                                        start_new_session=True, preexec_fn=tools.die_with_parent)

    def resize(self, rows, columns, tell=True):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def read(self):
        ready, _, _ = select.select([self.master], [], [], 0.05)
        if ready:
            self.text += os.read(self.master, 65536).decode()

    def frames(self):
        """The frames that are whole, as lists of lines."""
        return [SEQUENCE.sub("", frame).replace("\r", "").split("\n")
                for frame in self.text.split("\033[H")[1:] if "\033[m" in frame]

    def seen(self):
        """What a terminal shows after the latest whole frame: lines of its width that do not wrap, the cursor staying
        on the last column when that is written."""
        rows, columns = struct.unpack("HHHH", fcntl.ioctl(self.master, termios.TIOCGWINSZ, bytes(8)))[:2]
        cells = [[" "] * columns for _ in range(rows)]
        row = column = 0
        for part in re.findall(r"\033\[[?0-9;]*[A-Za-z]|.", self.text[:self.text.rindex("\033[m")], re.DOTALL):
            if part == "\033[H":
                row = column = 0
            elif part == "\r":
                column = 0
            elif part == "\n":
                row = min(row + 1, rows - 1)
            elif part in ("\033[K", "\033[J"):
                cells[row][column:] = [" "] * (columns - column)
                for below in cells[row + 1:] if part == "\033[J" else []:
                    below[:] = [" "] * columns
            elif part[0] != "\033":
                cells[row][column] = part
                column = min(column + 1, columns - 1)
        return ["".join(line).rstrip() for line in cells]

    def wait(self, wanted):
        """Reads until `wanted` says something of the latest frame."""
        while True:
            frames = self.frames()
            if frames and wanted(frames[-1]):
                return frames[-1]
            assert self.process.poll() is None, self.text
            self.read()

    def key(self, key):
        os.write(self.master, key.encode())

    def end(self):
        """The exit status; the terminal must be as it was."""
        while self.process.poll() is None:
            self.read()
        self.read()
        assert self.text.count(ENTER) == self.text.count(LEAVE) == 1
        assert self.text.rindex(LEAVE) > self.text.rindex("\033[H") and "\033[?25h" in self.text
        assert termios.tcgetattr(self.slave) == self.before
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def screen():
    made = []

    def start(*args, **kwargs):
        made.append(Screen(*args, **kwargs))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def two(mount, dataset):
    return mount(dataset, "rank=0,world=2,order=full"), mount(dataset, "rank=1,world=2,order=full")


def test_h_says_what_the_columns_mean(two, screen):
    s = screen()
    s.wait(lambda frame: any(line.startswith("MOUNT") for line in frame))
    s.key("h")
    frame = s.wait(lambda frame: frame[0].startswith("ddpfs top: what the columns mean"))
    for title in ("RANK", "EPOCH", "FILES/s", "CACHE/s", "WASTE/s", "HITS", "WAIT", "P50", "WINDOW", "MEMORY", "!", "?"):
        assert any(line.startswith(title) for line in frame), frame
    assert all(len(line) < 80 for line in frame)
    s.key("h")
    s.wait(lambda frame: any(line.startswith("MOUNT") for line in frame))
    s.key("q")
    assert s.end() == 0


def test_the_readme_names_the_wrong_uses_that_are_marked():
    """And says it within 150 lines."""
    text = (tools.ROOT / "README.md").read_text()
    sentence = " ".join(text.split()).partition("`ddpfs top` marks wrong use: ")[2].partition(". ")[0]
    assert [word in sentence for word in ("listed only once", "sharded a second time", "`set_epoch`")] == [True] * 3
    assert len(text.splitlines()) <= 150


def test_wrong_use_is_marked(mount, dataset, screen):
    """A trainer that lists once, on a rank's view."""
    m = mount(dataset, "rank=0,world=2,seed=7")
    names = os.listdir(m.path)
    while "lists once" not in m.log():
        for name in names:
            (m.path / name).read_bytes()
    s = screen(m.path)
    frame = s.wait(lambda frame: any(line.startswith(f"! {m.path}: the trainer lists once: ") for line in frame))
    assert any(line.startswith(f"! {m.path} ") for line in frame)
    s.key("q")
    assert s.end() == 0
    text = tools.ddpfs("top", "--batch", "--count=1", "--delay=0.1", m.path).stdout
    assert f"\n! {m.path}: the trainer lists once: " in text
    told = json.loads(tools.ddpfs("top", "--json", "--count=1", "--delay=0.1", m.path).stdout)
    assert "lists once" in told["mounts"][0]["misuse"]


def test_a_mount_whose_order_nobody_knows_is_marked(mount, pack, scratch, screen):
    for i in range(1200):
        path = scratch / "many" / f"d{i % 10}" / f"{i}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(20000))
    m = mount(pack(scratch / "many"), "view=all,layout=tree,memory=16M")
    for i in random.Random(1).sample(range(1200), 1200):
        (m.path / f"d{i % 10}" / f"{i}").read_bytes()
    s = screen(m.path)
    frame = s.wait(lambda frame: any(line.startswith(f"? {m.path}: nothing recognised after ") for line in frame))
    assert any(line.startswith(f"? {m.path} ") for line in frame)
    s.key("q")
    assert s.end() == 0
    told = json.loads(tools.ddpfs("top", "--json", "--count=1", "--delay=0.1", m.path).stdout)
    assert "% missed: " in told["mounts"][0]["read_ahead_note"] and "misuse" not in told["mounts"][0]


def line_of(frame, name):
    """The numbers of a line by the titles of the frame's table."""
    titles = next(line for line in frame if line.startswith("MOUNT")).split()[1:]
    line = next((line for line in frame if line.startswith(f"{name} ")), None)
    return line and dict(zip(titles, line[len(str(name)):].split()))


def read_all(mounted):
    for name in os.listdir(mounted.path):
        (mounted.path / name).read_bytes()


def shown(frame, name, title):
    """What stands in the line of a mount; None while its server is silent: on a busy machine it may answer late."""
    return (line_of(frame, name) or {}).get(title)


def states(frame):
    return [m["state"] for m in frame["mounts"]]


def all_live(frame):
    return set(states(frame)) == {"live"}


def next_live(process):
    """The next frame of `top --json` in which every server has answered in time."""
    while not all_live(frame := json.loads(process.stdout.readline())):
        pass
    return frame


def top_text(*args, wanted=lambda text: "(silent)" not in text):
    """What `top` prints once, when the servers have answered in time."""
    def once():
        done = tools.ddpfs("top", *args)
        assert not done.stderr
        return wanted(done.stdout) and done.stdout
    return wait_until(once, "an answer in time")


def test_a_frame_then_q(two, screen):
    s = screen("-d", "0.2", *(m.path for m in two))
    frame = s.wait(lambda f: all(shown(f, m.path, "RANK") for m in two))
    assert re.match(r"ddpfs top  \d\d:\d\d:\d\d  2 mounts, every 0.2 s   q: quit", frame[0])
    assert frame[1].startswith("MOUNT") and frame[2].startswith("total")
    assert line_of(frame, two[0].path)["RANK"] == "0/2" and line_of(frame, two[1].path)["RANK"] == "1/2"
    for m in two:
        read_all(m)
    s.wait(lambda f: shown(f, two[0].path, "DONE") == shown(f, two[1].path, "DONE") == "100%")
    s.key("q")
    assert s.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_end_it_with_the_terminal_restored(two, screen, number):
    s = screen(two[0].path)
    s.wait(lambda f: line_of(f, two[0].path))
    assert not termios.tcgetattr(s.slave)[3] & termios.ECHO
    s.process.send_signal(number)
    assert s.end() == -number


def test_stop_and_continue(two, screen):
    s = screen("-d", "0.2", two[0].path)
    s.wait(lambda f: line_of(f, two[0].path))
    s.process.send_signal(signal.SIGTSTP)
    os.waitid(os.P_PID, s.process.pid, os.WSTOPPED)
    while LEAVE not in s.text:
        s.read()
    assert termios.tcgetattr(s.slave) == s.before, "the shell's terminal while it is stopped"
    s.process.send_signal(signal.SIGCONT)
    while s.text.count(ENTER) < 2:
        s.read()
    s.text = ENTER + s.text[s.text.rindex(ENTER) + len(ENTER):]
    s.wait(lambda f: line_of(f, two[0].path))
    s.key("q")
    assert s.end() == 0


def test_the_terminal_goes_away(two, screen):
    s = screen("-d", "0.2", two[0].path)
    s.wait(lambda f: line_of(f, two[0].path))
    os.close(s.master)
    s.process.wait()
    s.master = os.open("/dev/null", os.O_RDONLY)


@pytest.mark.parametrize("columns", [1, 20, 40, 80, 111, 300])
def test_lines_fit_the_terminal(two, screen, columns):
    s = screen(two[0].path, columns=columns)
    frame = s.wait(lambda f: len(f) >= 4)
    assert max(len(line) for line in frame if line) <= max(columns, 12)
    if columns >= 80:
        assert {"RANK", "EPOCH", "DONE", "FILES/s", "OUT/s", "HITS", "WAIT", "P99"} <= set(frame[1].split())
    assert ("P50" in frame[1]) == (columns > 110)
    s.key("q")
    assert s.end() == 0


@pytest.mark.parametrize("rows", [3, 4, 24])
@pytest.mark.parametrize("columns", [60, 79, 80, 100])
def test_a_full_line_keeps_its_last_column(two, screen, columns, rows):
    s = screen("-d", "0.1", two[0].path, columns=columns, rows=rows)
    s.wait(lambda f: len(s.frames()) >= 3)  # the second and the third are drawn over others
    frame = s.frames()[-1]
    assert len(frame[1]) == columns, "nothing stands in the last column"
    assert s.seen()[:len(frame)] == [line.rstrip() for line in frame]
    assert not any(s.seen()[len(frame):])


def test_another_size_and_scrolling(two, screen):
    a, b = sorted(m.path for m in two)
    s = screen(a, b, rows=10, columns=300)
    s.wait(lambda f: line_of(f, b))
    s.resize(4, 250)
    frame = s.wait(lambda f: len(f) == 4)
    assert line_of(frame, a) and not line_of(frame, b) and max(map(len, frame)) <= 250
    s.key("\033[B")
    s.wait(lambda f: line_of(f, b) and not line_of(f, a))
    s.key("k")
    s.wait(lambda f: line_of(f, a) and not line_of(f, b))
    s.resize(1, 10)
    s.wait(lambda f: len(f) == 1)
    s.key("q")
    assert s.end() == 0


def test_a_mount_that_vanishes_and_comes_back(background, dataset, mountpoint, screen):
    background(dataset, mountpoint)
    s = screen("-d", "0.2", mountpoint)
    s.wait(lambda f: line_of(f, mountpoint))
    tools.run(["umount", "-l", mountpoint])
    frame = s.wait(lambda f: line_of(f, "(gone)"))
    assert set(line_of(frame, f"(gone) {mountpoint}").values()) <= {"0/2", "-"}
    background(dataset, mountpoint, "rank=1,world=2")
    s.wait(lambda f: (line_of(f, mountpoint) or {}).get("RANK") == "1/2")
    s.key("q")
    assert s.end() == 0


def test_all_of_the_host(background, dataset, mountpoint, screen):
    s = screen("-d", "0.2", rows=200, columns=300)
    s.wait(lambda f: len(f) >= 3 and not line_of(f, mountpoint))
    background(dataset, mountpoint)
    s.wait(lambda f: line_of(f, mountpoint))
    tools.run(["umount", "-l", mountpoint])
    s.wait(lambda f: not line_of(f, mountpoint) and not line_of(f, f"(gone) {mountpoint}"))
    s.key("q")
    assert s.end() == 0


def test_a_server_that_has_stopped_is_silent_and_holds_nobody_up(two, screen):
    s = screen("-d", "0.2", *(m.path for m in two))
    s.wait(lambda f: line_of(f, two[1].path))
    server = two[0].server_pid()
    os.kill(server, signal.SIGSTOP)
    try:
        s.wait(lambda f: line_of(f, f"(silent) {two[0].path}") and line_of(f, two[1].path))
    finally:
        os.kill(server, signal.SIGCONT)
    s.wait(lambda f: line_of(f, two[0].path))
    s.key("q")
    assert s.end() == 0


def test_batch_is_plain_text(two):
    paths = [m.path for m in two]
    for args in (["-b"], []):  # no terminal: by itself
        text = top_text(*args, "-d", "0.2", "-n", "2", *paths)
        assert "\033" not in text
        tables = text.strip("\n").split("\n\n")
        assert len(tables) == 2
        for table in tables:
            lines = table.split("\n")
            assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  2 mounts", lines[0])
            assert len(lines) == 5 and len({len(line) for line in lines[1:]}) == 1, "aligned"
            assert [line.split()[0] for line in lines[2:]] == [*map(str, paths), "total"]
            assert line_of(lines, paths[1])["FILES/s"] == "0"


def test_a_dumb_terminal_gets_batch(two, screen):
    s = screen("-n", "1", "-d", "0.2", two[0].path, term="dumb")
    while s.process.poll() is None:
        s.read()
    s.read()
    assert s.process.returncode == 0 and "\033" not in s.text and str(two[0].path) in s.text


def test_json_is_what_happened(two):
    command = [tools.tool("ddpfs"), "top", "--json", "-d", "0.5", *(str(m.path) for m in two)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent)
    try:
        first = next_live(process)
        read_all(two[0])
        turns = control.stats(two[0])["turns"]
        for m in two:
            control.settled(m)
        frames = [first]
        while frames[-1]["mounts"][0]["opens"] < turns:
            frames.append(next_live(process))
        frames.append(next_live(process))
    finally:
        process.terminate()
        process.communicate()
    stats = [tools.stat_json(m.path) for m in two]  # a listing may begin the next epoch
    assert turns == len(os.listdir(two[0].path))
    assert [m["mountpoint"] for m in first["mounts"]] == [str(m.path) for m in two]
    assert [(m["rank"], m["world"], m["view"], m["state"]) for m in first["mounts"]] == [
        (0, 2, "rank", "live"), (1, 2, "rank", "live")]
    for before, after in zip(frames, frames[1:]):
        a, b = before["mounts"][0], after["mounts"][0]
        if b["files_per_s"] is not None:  # it was live in the reading before, too
            assert b["files_per_s"] * b["seconds"] == pytest.approx(b["opens"] - a["opens"]), "what happened in between"
    last = frames[-1]
    assert last["mounts"][0]["opens"] == last["total"]["opens"] == last["mounts"][0]["position"] == turns
    assert not any(f["mounts"][1]["files_per_s"] for f in frames)
    for key in "resident_bytes", "window_limit_bytes", "depth", "memory_bytes", "turns":
        assert last["total"][key] == sum(s[key] for s in stats), key
        assert [m[key] for m in last["mounts"]] == [s[key] for s in stats], key
    assert all(0 <= f["mounts"][0]["hit_rate"] <= 1 for f in frames if f["mounts"][0]["files_per_s"])
    assert last["mounts"][1]["hit_rate"] is None
    for s, m in zip(stats, last["mounts"]):
        assert [m[f"wait_{q}_ns"] for q in ("p50", "p99", "max")] == [
            s[f"epoch_wait_{q}_ns"] for q in ("p50", "p99", "max")]
    assert last["total"]["wait_max_ns"] == max(s["epoch_wait_max_ns"] for s in stats)


def test_json_tells_of_a_mount_that_is_gone(two, background, dataset, mountpoint):
    background(dataset, mountpoint)
    command = [tools.tool("ddpfs"), "top", "--json", "-d", "0.2", str(mountpoint), str(two[0].path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent)
    try:
        next_live(process)
        subprocess.run(["umount", "-l", mountpoint], check=True)
        while states(frame := json.loads(process.stdout.readline())) != ["gone", "live"]:
            assert frame["mounts"][1]["state"] != "gone"
    finally:
        process.terminate()
        process.communicate()
    assert "epoch" not in frame["mounts"][0] and frame["total"]["turns"] == frame["mounts"][1]["turns"]
    assert not mounts.is_mounted(mountpoint)


def test_epochs_apart(two):
    tools.ddpfs("ctl", two[0].path, "epoch", "7")
    frame = json.loads(top_text("--json", "-d", "0.2", "-n", "1", *(m.path for m in two),
                                wanted=lambda text: all_live(json.loads(text))))
    assert [m["epoch"] for m in frame["mounts"]] == [7, 0] and frame["total"]["epoch"] == 0
    text = top_text("-b", "-n", "1", "-d", "0.2", *(m.path for m in two)).split("\n")
    assert next(line for line in text if line.startswith("total")).split()[1] == "0+"


def test_a_name_with_control_bytes_does_no_harm(mount, dataset, scratch):
    m = mount(dataset, "rank=0,world=2", mountpoint=scratch / "a\033[31m\nb")
    done = tools.ddpfs("top", "-b", "-n", "1", "-d", "0.2", m.path)
    assert "\033" not in done.stdout and len(done.stdout.strip("\n").split("\n")) == 4


def test_wrong_use(scratch):
    for args, code, word in [(["-d", "0"], 2, "0.1"), (["-d", "nan"], 2, "--delay=nan"), (["-d", "1x"], 2, "1x"),
                             (["-n", "0"], 2, "count"), ([scratch / "none"], 1, "none"), (["--x"], 2, "--x")]:
        done = tools.ddpfs("top", *args, check=False)
        assert done.returncode == code and word in done.stderr and not done.stdout, (args, done)


def test_a_full_disk_is_told(two):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([tools.tool("ddpfs"), "top", "-b", "-n", "1", "-d", "0.2", str(two[0].path)],
                              stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "standard output" in done.stderr


def test_a_mount_that_is_silent_from_the_beginning(dataset, mountpoint, background):
    background(dataset, mountpoint, "rank=0,world=2,watchdog=0")
    server = json.loads(tools.ddpfs("ctl", mountpoint, "info").stdout)["server_pid"]
    os.kill(server, signal.SIGSTOP)
    try:
        assert f"(silent) {mountpoint} " in tools.ddpfs("top", "-n", 1, "-d", 0.2, mountpoint).stdout
        frame = json.loads(tools.ddpfs("top", "--json", "-n", 1, "-d", 0.2, mountpoint).stdout)
        assert [(m["mountpoint"], m["state"]) for m in frame["mounts"]] == [(str(mountpoint), "silent")]
    finally:
        os.kill(server, signal.SIGCONT)


@pytest.fixture
def tiered(mount, dataset, scratch):
    (scratch / "tier").mkdir()
    return mount(dataset, f"rank=0,world=1,order=full,memory=64M,tier={scratch / 'tier'},tier_size=64M")


@pytest.mark.parametrize("columns", [60, 79, 80, 100, 124, 126, 300])
def test_a_tier_has_columns(tiered, screen, columns):
    s = screen("-d", "0.1", tiered.path, columns=columns)
    frame = s.wait(lambda f: f[1].startswith("MOUNT") and len(f) > 2)
    assert max(map(len, frame)) <= columns
    assert columns == 300 or len(frame[1]) == columns, "nothing stands in the last column"
    assert columns < 300 or "CACHE/s" in frame[1]
    assert "HITS" in frame[1] and ("TIER" in frame[1]) == (columns >= 77) and ("FILL" in frame[1]) == (columns >= 96)


def test_what_comes_from_a_tier(tiered, two, screen):
    names = sorted(os.listdir(tiered.path))
    for name in names:
        (tiered.path / name).read_bytes()
    wait_until(lambda: control.stats(tiered)["tier_used_bytes"] > 0, "the fill of the tier, though nothing is read")
    control.settled(tiered)
    filled = control.stats(tiered)
    one = json.loads(tools.ddpfs("top", "--json", "-d", "0.1", "-n", "1", tiered.path).stdout)["mounts"][0]
    assert one["tier_used_bytes"] == filled["tier_used_bytes"] > 0
    assert one["tier_room_bytes"] == filled["tier_room_bytes"] and one["tier_bytes_per_s"] == 0
    assert one["wasted_bytes_per_s"] == 0
    s = screen(columns=300)
    s.wait(lambda f: shown(f, tiered.path, "FILL").endswith("%"))
    frame = s.wait(lambda f: shown(f, two[0].path, "FILL") == "-" and shown(f, two[0].path, "WASTE/s") != "-")
    assert shown(frame, two[0].path, "TIER") == "-"
