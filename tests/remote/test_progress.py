# SPDX-License-Identifier: Apache-2.0
"""Commands that wait for a store or read a tier say so on a terminal."""

import shutil
import subprocess

import pytest

from helpers import datasets, tools
from helpers.terminal import OnTerminal


@pytest.fixture
def silent(http_store, build_dir, scratch):
    """The URL of a dataset whose store answers nothing as long as the test runs."""
    datasets.write_tree(scratch / "source", classes=2, per_class=4)
    tools.mkshard("pack", scratch / "source", http_store.root / "data")
    http_store.set(latency_ms=3_600_000)
    return f"{http_store.url}/data"


@pytest.mark.parametrize("command", [["mkshard", "info"], ["mkshard", "ls"], ["mkshard", "stats"], ["mkshard", "verify"],
                                     ["ddpfs", "order"]])
def test_a_command_says_that_it_opens_the_index(silent, command):
    with OnTerminal([tools.tool(command[0]), *command[1:], silent]) as ran:
        ran.wait_for("opening the index, 2 s")


def test_mount_says_that_it_waits(silent, scratch):
    (scratch / "mnt").mkdir()
    with OnTerminal([tools.tool("ddpfs"), "mount", "-o", "view=all", silent, scratch / "mnt"]) as ran:
        ran.wait_for("waiting for the mount to answer, 2 s")


@pytest.mark.parametrize("view", ["all", "rank"])
def test_of_the_ranks_on_a_terminal_the_first_one_says_that_it_waits(silent, scratch, monkeypatch, view):
    (scratch / "mnt").mkdir()
    def rank(number):
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setenv("WORLD_SIZE", "2")
        return OnTerminal([tools.tool("ddpfs"), "exec", "-o", f"view={view}", silent, scratch / "mnt", "--", "true"])
    with rank(1) as other, rank(0) as first:
        first.wait_for("waiting for the mount to answer, 3 s")
        other.read()
        other.wait_for("ddpfs: rank 1: warning: ")
        lines = [line for line in other.text.splitlines() if "waiting for the store" not in line]
        assert "waiting" not in other.text.replace("waiting for the store", "") and len(lines) == 1, other.text


def test_quiet_mount_says_nothing(silent, scratch):
    (scratch / "mnt").mkdir()
    with OnTerminal([tools.tool("ddpfs"), "mount", "-q", "-o", "view=all", silent, scratch / "mnt"]) as ran, \
            OnTerminal([tools.tool("mkshard"), "info", silent]) as other:
        other.wait_for("opening the index, 3 s")  # the mount has waited for at least as long
        ran.read()
        assert all("warning:" in line for line in ran.text.splitlines()), ran.text


def test_mount_says_in_a_log_that_it_waits(silent, scratch):
    """Not only on a terminal: what a launcher keeps of a job says why nothing happens."""
    (scratch / "mnt").mkdir()
    mount = subprocess.Popen([tools.tool("ddpfs"), "mount", "-o", "view=all", silent, scratch / "mnt"],
                             stderr=subprocess.PIPE, text=True)
    assert f"{silent}: waiting for the store: it has not answered yet" in mount.stderr.readline()
    mount.terminate()
    mount.communicate(timeout=60)


def test_a_warning_of_mkshard_names_mkshard(build_dir):
    said = tools.waits_for_store(tools.tool("mkshard"), "info", "http://127.0.0.1:1/x")
    assert all(line.startswith("mkshard: ") for line in said.splitlines()), said


def test_verifying_a_tier_shows_how_far_it_is(http_store, build_dir, scratch):
    """Each read of the tier takes 50 ms, because strace holds it up."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    datasets.write_tree(scratch / "source", classes=2, per_class=10, sizes=(60_000,))
    tools.mkshard("pack", scratch / "source", http_store.root / "data")
    url, tier = f"{http_store.url}/data", scratch / "tier"
    tier.mkdir()
    tools.ddpfs("warm", url, "-o", f"tier={tier},tier_size=64M")
    with OnTerminal(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=pread64:delay_enter=50000", tools.tool("ddpfs"), "tier",
                     f"--verify={url}", tier]) as ran:
        assert ran.wait() == 0, ran.text
    assert "verifying [" in ran.text and " of 20" in ran.text
    http_store.set(latency_ms=3_600_000)
    with OnTerminal([tools.tool("ddpfs"), "tier", f"--verify={url}", tier]) as ran:
        ran.wait_for("opening the index, 2 s")
