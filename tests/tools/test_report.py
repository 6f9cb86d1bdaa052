# SPDX-License-Identifier: Apache-2.0
"""`ddpfs report`: of a live mount, of logs, of ranks side by side, of nothing, of damage; and in a browser."""

import json
import os
import random
import re
import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from helpers.tools import ddpfs
from helpers.waiting import wait_until

VOID = {"meta"}
UNCLOSED = {"tr", "td", "th"}  # HTML lets their ends be left out
FIELDS = """at_ms epoch opens misses read_bytes waited_ns epoch_wait_p99_ns resident_bytes memory_bytes depth inflight lost
    errors restarts""".split()


class Page(HTMLParser):
    """A page whose elements are closed in order: its text, its attributes, its plots."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.attributes = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open
        self.text = " ".join(" ".join(self.texts).split())
        svgs = re.findall(r"<svg.*?</svg>", text, re.S)
        self.svgs = [ElementTree.fromstring(svg) for svg in svgs]

    def handle_starttag(self, tag, attributes):
        self.attributes += attributes
        if tag not in VOID | UNCLOSED:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += attributes

    def handle_endtag(self, tag):
        if tag not in UNCLOSED:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    def curves(self):
        return [value for name, value in self.attributes if name == "data-v"]


def report(*targets, check=True):
    done = ddpfs("report", "--output=-", *targets, check=check)
    return Page(done.stdout) if check else done


def write_log(path, rank=0, world=2, began_ms=1_790_000_000_000, epochs=3, files_a_second=100, seconds=60, **head):
    """A log as a server writes it: `epochs` epochs in `seconds` seconds, other lines between."""
    rows = [[1000 * s + 1, s * epochs // seconds, files_a_second * s, s, 10_000_000 * s, 5_000_000 * s, 0, 1 << 26, 1 << 27, 32, 7, 0,
             0, 0] for s in range(seconds)]
    with open(path, "a") as log:
        log.write("ddpfs: a line of another kind\n")
        for first in range(0, seconds, 16):
            log.write("ddpfs: history " + json.dumps({
                "version": "x", "pid": 100 + rank, "mountpoint": f"/mnt/r{rank}", "dataset": "/data/set", "rank": rank, "world": world,
                "view": "rank", "began_ms": began_ms, "files": 1000, "content_bytes": 100_000_000, "interval_ms": 1000, "fields": FIELDS,
                "readings": rows[first:first + 16], "more": False, **head}) + "\n")
    return path


def test_a_live_mount(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=1")
    names = os.listdir(m.path)
    for name in names:
        (m.path / name).read_bytes()
    page = wait_until(lambda: f" {len(names)} files in " in (p := report(m.path)).text and p, "a reading after the opens")
    assert len(page.svgs) == 6 and "epoch 0" in page.text and "rank 0 of 1" in page.text


def test_a_log_after_the_mount(mount, pack, tree, scratch):
    m = mount(pack(tree[0]), f"rank=1,world=2,log={scratch / 'rank1.log'}")
    names = os.listdir(m.path)
    for name in names:
        (m.path / name).read_bytes()
    m.unmount()
    output = scratch / "page.html"
    assert "wrote" in ddpfs("report", "-o", output, scratch / "rank1.log").stderr
    page = Page(output.read_text())
    assert len(page.svgs) == 6 and f" {len(names)} files in " in page.text and str(m.path) in page.text


def test_a_mount_of_which_nothing_was_read(mount, pack, tree):
    page = report(mount(pack(tree[0]), "rank=0,world=1").path)
    assert "No file has been opened yet" in page.text and not page.svgs


def test_two_ranks_side_by_side(scratch):
    slow = write_log(scratch / "1.log", rank=1, files_a_second=50)
    page = report(slow, write_log(scratch / "0.log"))
    assert page.text.index("rank 0") < page.text.index("rank 1"), "in the order of ranks"
    assert "2 mounts" in page.text and "/mnt/r0" in page.text and "/mnt/r1" in page.text
    throughput = page.curves()[:2]
    assert {float(v) for v in throughput[0].split()} == {100} and {float(v) for v in throughput[1].split()} == {50}
    assert "150 files/s" in page.text and "8,850 files" in page.text


def test_epochs_are_marked_in_each_plot(scratch):
    page = report(write_log(scratch / "0.log"))
    for svg in page.svgs:
        labels = [text.text for text in svg.iter("text") if text.get("class") == "mark"]
        assert labels == ["epoch 0", "epoch 1", "epoch 2"]
        xs = [float(text.get("x")) for text in svg.iter("text") if text.get("class") == "mark"]
        assert xs == sorted(xs) and abs((xs[1] - xs[0]) - (xs[2] - xs[1])) < 5


def test_ticks_are_round_and_in_the_plot(scratch):
    page = report(write_log(scratch / "0.log", files_a_second=777))
    for svg in page.svgs:
        _, _, width, height = map(float, svg.get("viewBox").split())
        for text in svg.iter("text"):
            assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height
        ticks = [float(text.text.replace(",", "")) for text in svg.iter("text") if text.get("class") == "y" and text.text[0].isdigit()]
        steps = {round(b - a, 9) for a, b in zip(ticks, ticks[1:])}
        assert len(ticks) >= 3 and len(steps) == 1
        assert re.fullmatch(r"[125](\.?0*)?", f"{steps.pop():.6e}".split("e")[0].rstrip("0")), ticks


def test_of_several_mounts_in_a_log_the_last_one_counts(scratch):
    log = write_log(scratch / "0.log", files_a_second=10)
    write_log(log, files_a_second=70, began_ms=1_790_009_000_000)
    assert "70 files/s" in report(log).text


def interleave(path, *logs):
    """One log of several mounts that write at the same time: a line of each in turn."""
    lines = [[line for line in log.read_text().splitlines(keepends=True) if "history" in line] for log in logs]
    path.write_text("".join("".join(turn) for turn in zip(*lines, strict=True)))
    return path


def test_mounts_that_share_a_log_at_the_same_time_are_all_shown(scratch):
    """`ddpfs exec -o view=all,log=FILE` under a launcher: one mountpoint, no rank, one log."""
    each = [write_log(scratch / f"{pid}.log", view="all", world=1, mountpoint="/mnt/ddpfs", pid=pid, files_a_second=10 * pid)
            for pid in (7, 8, 9)]
    page = report(interleave(scratch / "all.log", *each))
    assert "3 mounts" in page.text and "240 files/s" in page.text and f"{240 * 59:,} files" in page.text
    assert [{float(v) for v in curve.split()} for curve in page.curves()[:3]] == [{70}, {80}, {90}]
    for pid in (7, 8, 9):
        assert f"/mnt/ddpfs, PID {pid}" in page.text, "told apart by name"


def test_mounts_of_one_pid_that_share_a_log_are_told_apart(scratch):
    """Containers with PID namespaces of their own."""
    each = [write_log(scratch / f"{i}.log", view="all", mountpoint="/mnt/ddpfs", pid=7, files_a_second=10 + i,
                      began_ms=1_790_000_000_000 + 5_000 * i) for i in range(2)]
    page = report(interleave(scratch / "all.log", *each))
    assert "2 mounts" in page.text and f"{21 * 59:,} files" in page.text
    assert "/mnt/ddpfs, PID 7 " in page.text and "/mnt/ddpfs, PID 7 (2)" in page.text


def test_a_job_that_is_started_again_replaces_the_earlier_one_in_the_log(scratch):
    log = scratch / "all.log"
    for job in range(3):
        each = [write_log(scratch / f"{job}-{i}.log", view="all", mountpoint="/mnt/ddpfs", pid=10 * job + i, files_a_second=10 + job,
                          began_ms=1_790_000_000_000 + 59_100 * job + i) for i in range(2)]
        with open(log, "a") as f:
            f.write(interleave(scratch / "job.log", *each).read_text())
    page = report(log)
    assert "2 mounts" in page.text and f"{2 * 12 * 59:,} files" in page.text


def test_a_pid_that_comes_again_at_once_is_another_mount(scratch):
    log = write_log(scratch / "0.log", seconds=16, files_a_second=1000)
    page = report(write_log(log, seconds=16, files_a_second=10, began_ms=1_790_000_020_000))
    assert "150 files in" in page.text


def test_a_line_that_is_there_twice_counts_once(scratch):
    log = write_log(scratch / "0.log")
    log.write_text(2 * log.read_text())
    page = report(log)
    assert "5,900 files in" in page.text and "rank 0 of 2" in page.text


def test_a_clock_that_is_set_makes_no_other_mount(scratch):
    log = write_log(scratch / "0.log")
    lines = log.read_text().splitlines(keepends=True)
    later = [line.replace("1790000000000", "1790003600000") for line in lines[3:]]
    assert later != lines[3:]
    log.write_text("".join(lines[:3] + later))
    assert "5,900 files in" in report(log).text


def test_a_line_with_a_nul_costs_no_other_line(scratch):
    log = write_log(scratch / "0.log", seconds=16)
    raw = log.read_bytes()
    log.write_bytes(b"ddpfs: a line with\0 a NUL\n" + raw.split(b"\n", 1)[1])
    done = ddpfs("report", "-o-", log)
    assert "damaged" not in done.stderr and "1,500 files in" in Page(done.stdout).text


def test_a_log_of_an_earlier_version_has_whole_seconds(scratch):
    log = write_log(scratch / "0.log")
    log.write_text(log.read_text().replace('"began_ms": 1790000000000', '"began_s": 1790000000'))
    assert "5,900 files in" in report(log).text and "mounted 2026-09-21" in report(log).text


def test_runs_of_different_days_begin_side_by_side(scratch):
    page = report(write_log(scratch / "a.log"), write_log(scratch / "b.log", began_ms=1_790_900_000_000, mountpoint="/mnt/other"))
    assert "from the beginning of each mount" in page.text
    assert "/mnt/other" in page.text and len(page.curves()[0].split()) < 70
    # 100 files a second in each, never 200: they were not there together.
    assert "100 files/s 11,800 files in 1 min 58 s" in page.text and "times between the mounts do not count" in page.text
    assert "All ranks together" not in page.text


def test_runs_of_which_two_overlap_are_counted_once_while_they_do(scratch):
    logs = [write_log(scratch / f"{i}.log", rank=i, began_ms=1_790_000_000_000 + begin) for i, begin in enumerate((0, 29_500, 10**9))]
    assert "17,700 files in 2 min 28 s" in report(*logs).text


def test_many_ranks_and_epochs(scratch):
    logs = [write_log(scratch / f"{r}.log", rank=r, world=40, epochs=500, seconds=1000) for r in range(40)]
    page = report(*logs)
    assert "40 mounts" in page.text and "4,000 files/s" in page.text and "the first 200 epochs" in page.text
    assert page.text.count("Only the first 32 curves are drawn, 8 more are left out.") == 5
    assert "left out" not in report(*logs[:32]).text


def test_an_order_without_epochs_has_no_marks(scratch):
    page = report(write_log(scratch / "0.log", epochs=0, view="all"))
    assert "epoch 0" not in page.text and "all files" in page.text


def test_a_tier_has_an_area_if_bytes_came_from_it(scratch):
    with_tier = [*FIELDS, "tier_bytes"]
    rows = [[1000 * s + 1, 0, 10 * s, s, 2**20 * s, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2**21 * s] for s in range(10)]
    page = report(write_log(scratch / "0.log", fields=with_tier, readings=rows, content_bytes=1000 * 2**20, dataset="s3://b/set"))
    assert "20.0 MiB" not in page.text and "9.0 MiB read from the store, 18.0 MiB from the tier" in page.text
    store, tier, memory = [{float(v) for v in page.curves()[3 + i].split()} for i in range(3)]
    assert (store, tier, memory) == ({1}, {2}, {7})
    assert "tier" not in report(write_log(scratch / "1.log")).text


def test_the_page_loads_nothing(scratch):
    log = write_log(scratch / "0.log")
    text = ddpfs("report", "-o-", log).stdout
    assert not re.search(r"https?:|url\(|@import|<link|<img|\bsrc=|\bhref=", text)
    assert "default-src 'none'" in text


def test_names_are_text_and_no_markup(scratch):
    page = report(write_log(scratch / "0.log", dataset='/d/<script>alert("x")</script>&amp;', mountpoint="/<b>"))
    assert '<script>alert("x")</script>&amp;' in page.text and "/<b>" in page.text


def test_a_damaged_log_is_told_and_the_rest_is_shown(scratch):
    log = write_log(scratch / "0.log")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2]) + lines[2][:200] + "\n" + "".join(lines[3:]) + lines[4][:300])
    done = ddpfs("report", "-o-", log)
    assert "2 lines of its history are damaged" in done.stderr and len(Page(done.stdout).svgs) == 6


@pytest.mark.parametrize("damage", ["{", "{}", "[]", '{"fields":[]}', "\0"])
def test_a_log_with_nothing_but_damage_is_an_error(scratch, damage):
    (scratch / "0.log").write_text("one line\nddpfs: history " + damage + "\n")
    done = report(scratch / "0.log", check=False)
    assert done.returncode == 1 and "line 2" in done.stderr and not done.stdout


def test_any_damage_gives_a_page_or_a_sentence(scratch):
    whole = write_log(scratch / "0.log").read_bytes()
    rng = random.Random(28)
    for _ in range(60):
        raw = bytearray(whole)
        for _ in range(rng.choice([1, 3, 30])):
            at = rng.randrange(len(raw))
            raw[at:at + rng.choice([0, 1, 1, 40])] = rng.choice([b"", b"9" * 30, b"-", b"[", b"\n", b"e9", bytes([rng.randrange(256)])])
        (scratch / "0.log").write_bytes(raw)
        done = ddpfs("report", "--output", scratch / "page.html", scratch / "0.log", check=False)
        assert done.returncode in (0, 1), (done.returncode, done.stderr)
        if done.returncode == 0:
            Page((scratch / "page.html").read_text())
        else:
            assert done.stderr.startswith("ddpfs: ")


@pytest.mark.parametrize("text", ["", "a log without a history\n", "x" * 200_000])
def test_a_file_without_a_history_is_an_error(scratch, text):
    (scratch / "0.log").write_text(text)
    done = report(scratch / "0.log", check=False)
    assert done.returncode == 1 and "log=FILE" in done.stderr


def test_an_error_leaves_the_earlier_page(scratch):
    (scratch / "report.html").write_text("earlier")
    (scratch / "0.log").write_text("")
    assert ddpfs("report", "-o", scratch / "report.html", scratch / "0.log", check=False).returncode == 1
    assert (scratch / "report.html").read_text() == "earlier"
    assert ddpfs("report", check=False).returncode == 2


BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
PROBE = """<script>
const errors = [], boxes = [...document.querySelectorAll("svg .curve, svg .area")].map(p => p.getBoundingClientRect());
const svg = document.querySelector("svg"), r = svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent("pointermove", {clientX: r.left + r.width / 2, clientY: r.top + r.height / 2}));
document.title = JSON.stringify({
  width: document.documentElement.scrollWidth, view: innerWidth, plots: document.querySelectorAll("svg").length,
  drawn: boxes.filter(b => b.width > 50).length, curves: boxes.length,
  values: [...document.querySelectorAll(".legend b")].map(b => b.textContent)});
</script></body>"""


def test_in_a_browser(scratch):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        pytest.skip("no chromium on this machine (Debian: chromium-headless-shell)")
    page = scratch / "page.html"
    ddpfs("report", "-o", page, write_log(scratch / "0.log"), write_log(scratch / "1.log", rank=1))
    page.write_text(page.read_text().replace("</body>", PROBE))
    for width in (400, 1240):
        done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},1000", "--dump-dom",
                               page.as_uri()], capture_output=True, text=True, timeout=300, env={**os.environ, "HOME": str(scratch)})
        title = re.search("<title>(.*?)</title>", done.stdout, re.S)
        assert title, done.stderr
        seen = json.loads(title[1].replace("&amp;", "&"))
        assert seen["plots"] == 6 and seen["drawn"] == seen["curves"] > 10, seen
        assert seen["width"] <= seen["view"], "nothing is wider than the window"
        assert all(seen["values"]) and seen["values"][0] == "100", "the legends tell the values below the pointer"
