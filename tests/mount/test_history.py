# SPDX-License-Identifier: Apache-2.0
"""The history of a mount (fs/recorder.h): over the control socket, over a change of servers, and in the log file."""

import contextlib
import json
import os
import signal

from helpers.waiting import wait_until
from mount.control import ask, stats


def history(mount, after=0):
    """[{field: value}] of all readings after a time, by as many requests as it takes."""
    found = []
    while True:
        reply = ask(mount, "history", after=after)
        assert reply["ok"], reply
        found += [dict(zip(reply["fields"], reading, strict=True)) for reading in reply["readings"]]
        if not reply["more"]:
            return found
        after = found[-1]["at_ms"]


def restarts(mount):
    with contextlib.suppress(OSError, ValueError):  # asked a server that was just killed
        return history(mount)[-1]["restarts"]


def logged(path):
    objects = [json.loads(line.split("history ", 1)[1]) for line in path.read_text().splitlines() if ": history {" in line]
    assert all(len(o["readings"]) <= 16 for o in objects)
    return [dict(zip(o["fields"], reading, strict=True)) for o in objects for reading in o["readings"]]


def read_all(mount):
    names = os.listdir(mount.path)
    for name in names:
        (mount.path / name).read_bytes()
    return len(names)


def test_readings_follow_the_counters(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=1,world=2")
    reply = ask(m, "history")
    assert (reply["rank"], reply["world"], reply["view"]) == (1, 2, "rank")
    assert reply["mountpoint"] == os.path.realpath(m.path) and reply["pid"] == m.process.pid
    assert reply["files"] == len(tree[1])
    n = read_all(m)
    wait_until(lambda: history(m)[-1]["opens"] == n, "a reading with all opens")
    readings = history(m)
    assert readings[0]["opens"] == 0
    times = [r["at_ms"] for r in readings]
    assert times == sorted(set(times))
    assert history(m, after=times[0])[0]["at_ms"] in times[1:]
    assert set(readings[0]) - {"at_ms", "tier_bytes"} <= set(stats(m)), "every value is a statistic"


def test_a_time_that_is_none_is_refused(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    for after in (-1, 1.5, "1", [1]):
        assert not ask(m, "history", after=after)["ok"]
    assert ask(m, "history", after=2**62)["readings"] == []


def test_a_successor_goes_on_with_the_readings(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    n = read_all(m)
    wait_until(lambda: history(m)[-1]["opens"] == n, "a reading with all opens")
    before = history(m)
    os.kill(m.server_pid(), signal.SIGKILL)
    wait_until(lambda: restarts(m) == 1, "a reading of the successor")
    after = history(m)
    assert after[0] == before[0] and after[-1]["opens"] == n


def test_the_log_file_has_the_history_when_the_mount_is_gone(mount, pack, tree, scratch):
    m = mount(pack(tree[0]), f"rank=0,world=2,log_level=error,log={scratch / 'rank0.log'}")
    n = read_all(m)
    m.unmount()
    readings = logged(scratch / "rank0.log")
    assert (readings[0]["opens"], readings[-1]["opens"]) == (0, n)
    times = [r["at_ms"] for r in readings]
    assert times == sorted(set(times)), "each reading once"


def test_without_a_log_file_no_line_has_the_history(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=2")
    read_all(m)
    m.unmount()
    assert "history" not in m.log()
