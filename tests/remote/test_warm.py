# SPDX-License-Identifier: Apache-2.0
"""`ddpfs warm`: a tier is filled without a mount, each byte is fetched once, and mounts find everything there."""

import io
import json
import os
import re
import signal
import subprocess
import tarfile
import time

import pytest

from helpers import datasets, tools
from helpers.terminal import OnTerminal
from helpers.waiting import wait_until
from mount import control


@pytest.fixture
def stored(build_dir, scratch, http_store):
    """A packed dataset at `URL/train`, its files, and the bytes of its shards."""
    source = scratch / "source"
    files = datasets.write_tree(source, classes=3, per_class=100, sizes=(0, 1, 20_000, 31_111, 65_536))
    files |= {"large/a.bin": bytes(range(256)) * 10_000, "labels.csv": b"a,b\n"}
    (source / "large").mkdir()
    for name in ("large/a.bin", "labels.csv"):
        (source / name).write_bytes(files[name])
    tools.mkshard("pack", "--shard-size=2M", source, http_store.root / "train")
    (scratch / "tier").mkdir()
    return f"{http_store.url}/train", files, sum(p.stat().st_size for p in http_store.root.glob("train/shard-*"))


def shard_bytes(http_store):
    """Bytes of shards that the store has sent."""
    return sum(int(last) - int(first) + 1 for _, path, first, last in http_store.answers() if "shard-" in path)


def command(scratch, dataset, more=""):
    return [tools.tool("ddpfs"), "warm", dataset, "-o", f"tier={scratch / 'tier'},tier_size=64M{more}", "--json"]


def warm(scratch, dataset, more=""):
    return json.loads(subprocess.run(command(scratch, dataset, more), capture_output=True, text=True, check=True,
                                     timeout=200).stdout)


def contents(path):
    return {name: data for name, data in datasets.read_tree(path).items() if not name.startswith(".ddpfs")}


GROUP, USERS = 23456, (12345, 12346)


def test_a_second_user_of_a_group_finds_what_the_first_one_fetched(stored, scratch, http_store):
    """In a directory of the group, whatever the umask of the first user is."""
    url, files, _ = stored
    place = scratch / "tier"
    if os.geteuid() != 0:
        pytest.skip("only root can run programs as other users")
    if subprocess.run([tools.tool("ddpfs"), "--version"], user=USERS[0], group=USERS[0], extra_groups=[],
                      capture_output=True).returncode != 0:
        pytest.skip("other users cannot run programs of this build folder")
    scratch.chmod(0o711)
    os.chown(place, 0, GROUP)
    place.chmod(0o3770)

    def run(user, *arguments, groups=(GROUP,)):
        indexes = scratch / f"indexes{user}"
        indexes.mkdir(exist_ok=True)
        os.chown(indexes, user, user)
        return tools.run([tools.tool("ddpfs"), *arguments], check=False, user=user, group=user, extra_groups=groups,
                         umask=0o077, env={"DDPFS_INDEX_DIR": indexes, "HOME": indexes})

    arguments = "warm", url, "-o", f"tier={place},tier_size=64M", "--json"
    refused = run(USERS[0], *arguments, groups=())
    assert refused.returncode != 0 and f"belongs to group {GROUP}" in refused.stderr
    first = json.loads(run(USERS[0], *arguments).stdout)
    before = shard_bytes(http_store)
    second = json.loads(run(USERS[1], *arguments).stdout)
    assert first["stored_bytes"] == second["held_bytes"] == sum(map(len, files.values()))
    assert second["fetched_bytes"] == second["stored_bytes"] == 0 and shard_bytes(http_store) == before
    assert (place / "tier").stat().st_mode & 0o777 == 0o660
    verified = json.loads(run(USERS[1], "tier", "--json", f"--verify={url}", place).stdout)["verified"]
    assert verified["absent"] == verified["damaged"] == 0 < verified["right"]
    one, = json.loads(run(USERS[1], "tier", "--json", place).stdout)["datasets"]
    assert run(USERS[1], "tier", f"--remove={one['identity']}", place).returncode == 0
    assert json.loads(run(USERS[0], "tier", "--json", place).stdout)["datasets"] == []


def test_a_mount_after_it_asks_the_store_for_nothing(stored, scratch, http_store, mount):
    url, files, size = stored
    done = warm(scratch, url)
    total = sum(map(len, files.values()))
    assert done["dataset_bytes"] == done["held_bytes"] == done["stored_bytes"] == total
    assert not done["full"] and done["bad_blocks"] == 0
    assert total <= done["fetched_bytes"] <= size
    before, requests = shard_bytes(http_store), len(http_store.answers())
    assert before == done["fetched_bytes"] and requests <= 12  # a few long reads, and the index
    m = mount(url, f"view=all,memory=64M,tier={scratch / 'tier'},tier_size=64M")
    assert contents(m.path) == files
    stats = control.settled(m)
    assert stats["tier_misses"] == 0 and stats["read_bytes"] == 0 and shard_bytes(http_store) == before
    m.unmount()
    again = warm(scratch, url)
    assert again["held_bytes"] == total and again["fetched_bytes"] == again["stored_bytes"] == 0
    assert shard_bytes(http_store) == before
    # A tier that is there needs no size.
    shown = tools.ddpfs("warm", url, "-o", f"tier={scratch / 'tier'}").stdout
    assert shown.startswith("the tier has ") and "; 0 B were fetched" in shown


def test_a_dataset_on_a_disk(stored, scratch, http_store, mount):
    _, files, _ = stored
    dataset = http_store.root / "train"
    assert warm(scratch, dataset)["held_bytes"] == sum(map(len, files.values()))
    m = mount(dataset, f"view=all,memory=64M,tier={scratch / 'tier'},tier_size=64M")
    assert contents(m.path) == files
    assert control.settled(m)["read_bytes"] == 0


@pytest.mark.parametrize("how, status", [(signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interrupted_one_goes_on(how, status, stored, scratch, http_store):
    url, files, size = stored
    http_store.set(bps=2_000_000)
    with subprocess.Popen(command(scratch, url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        def used():
            shown = tools.ddpfs("tier", "--json", scratch / "tier", check=False)
            return shown.returncode == 0 and json.loads(shown.stdout)["used_bytes"] > 0
        wait_until(used, "blocks in the tier")
        first.send_signal(how)
        said = first.communicate(timeout=100)[1]
    assert first.returncode == status
    assert ("the same command goes on" in said) == (how == signal.SIGINT)
    http_store.set()
    done = warm(scratch, url)
    assert done["held_bytes"] == sum(map(len, files.values()))
    assert done["fetched_bytes"] < size - 100_000


BAR = re.compile(r"\rwarming \[(=*) *\] +(\d+)% \S+( \S+)?, \S+( \S+)?/s, \S+ left")


def shares(text):
    """What the bar has shown, in percent."""
    return [int(found[2]) for found in BAR.finditer(text)]


def test_a_terminal_shows_a_bar_which_is_wiped_at_the_end(stored, scratch, http_store):
    url, files, _ = stored
    http_store.set(bps=2_000_000)
    with OnTerminal(command(scratch, url)[:-1], stdout=subprocess.PIPE, text=True) as ran:
        assert ran.wait() == 0, ran.text
        said = ran.process.stdout.read()
    seen = shares(ran.text)
    assert len(set(seen)) > 1 and seen == sorted(seen) and seen[-1] <= 100, ran.text
    assert ran.text.endswith("\r\x1b[K"), ran.text
    total = float(sum(map(len, files.values())))
    held, whole, _fetched = re.fullmatch(r"the tier has (\S+ \S+) of (\S+ \S+); (\S+ \S+) were fetched\n", said).groups()
    assert held == whole == f"{total / (1 << 20):.1f} MiB"


def test_without_a_terminal_there_is_no_bar(stored, scratch, http_store):
    http_store.set(bps=4_000_000)  # slow enough for one
    ran = subprocess.run(command(scratch, stored[0])[:-1], capture_output=True, text=True, timeout=200, check=True)
    assert ran.stderr == "" and ran.stdout.count("\n") == 1 and "\r" not in ran.stdout


def test_ctrl_c_leaves_a_valid_tier_and_the_next_run_goes_on(stored, scratch, http_store):
    url, files, _ = stored
    total = sum(map(len, files.values()))
    http_store.set(bps=1_000_000)
    with OnTerminal(command(scratch, url), stdout=subprocess.PIPE, text=True) as first:
        while not any(shares(first.text)):
            assert first.read(), first.text
        first.press("\x03")
        assert first.wait() == -signal.SIGINT
        assert first.process.stdout.read() == ""
    assert first.text.endswith("\r\x1b[Kddpfs: interrupted: what the tier has stays; the same command goes on\r\n"), first.text
    verified = json.loads(tools.ddpfs("tier", "--json", f"--verify={url}", scratch / "tier").stdout)["verified"]
    assert verified["damaged"] == 0 and verified["right"] and verified["absent"], verified
    http_store.set()
    with OnTerminal(command(scratch, url), stdout=subprocess.PIPE, text=True) as second:
        assert second.wait() == 0, second.text
        done = json.loads(second.process.stdout.read())
    assert done["held_bytes"] == total > done["stored_bytes"]
    one, = json.loads(tools.ddpfs("tier", "--json", scratch / "tier").stdout)["datasets"]
    assert one["hits"] == verified["right"], "each block that the first run stored was read from the tier"


def test_several_at_once_fetch_each_byte_once(stored, scratch, http_store):
    url, files, size = stored
    http_store.set(latency_ms=20)
    running = [subprocess.Popen(command(scratch, url), stdout=subprocess.PIPE, text=True) for _ in range(3)]
    done = [json.loads(process.communicate(timeout=200)[0]) for process in running]
    assert [one["held_bytes"] for one in done] == 3 * [sum(map(len, files.values()))]
    assert sum(one["fetched_bytes"] for one in done) <= 1.02 * size
    assert sum(one["stored_bytes"] for one in done) == sum(map(len, files.values()))


def test_a_dataset_that_is_larger_than_the_tier(build_dir, scratch, http_store):
    source = scratch / "source"
    datasets.write_tree(source, classes=1, per_class=80, sizes=(1_000_000,))
    tools.mkshard("pack", source, http_store.root / "large")
    (scratch / "tier").mkdir()
    done = warm(scratch, f"{http_store.url}/large")
    assert done["full"] and 50_000_000 < done["held_bytes"] < 64 << 20
    assert done["fetched_bytes"] < 1.3 * done["held_bytes"]  # it ends when the tier is full


def test_small_files_use_up_the_entries_of_a_tier(build_dir, scratch, http_store):
    with tarfile.open(scratch / "small.tar", "w") as tar:
        for i in range(40_000):
            member = tarfile.TarInfo(f"{i:05}.bin")
            member.size = 16
            tar.addfile(member, io.BytesIO(b"%16d" % i))
    tools.mkshard("pack", scratch / "small.tar", http_store.root / "small")
    (scratch / "tier").mkdir()
    ran = subprocess.run(command(scratch, f"{http_store.url}/small"), capture_output=True, text=True, timeout=200)
    done = json.loads(ran.stdout)
    assert ran.returncode == 0 and "no entry left for some blocks" in ran.stderr and done["full"]
    assert 0.9 * 32_768 * 16 < done["held_bytes"] <= 32_768 * 16


def test_options_that_choose_samples_are_said_to_have_no_effect(stored, scratch):
    ran = subprocess.run(command(scratch, stored[0], ",rank=0,world=2"), capture_output=True, text=True, timeout=200)
    done = json.loads(ran.stdout)
    assert ran.returncode == 0 and "rank, world, groups and subdir have no effect" in ran.stderr
    assert done["held_bytes"] == done["dataset_bytes"]


def test_wrong_bytes_are_named_and_not_stored(stored, scratch, http_store):
    url, files, _ = stored
    shard = max(http_store.root.glob("train/shard-*"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    at = len(data) // 2
    data[at:at + 70_000] = bytes(70_000)
    shard.write_bytes(data)
    ran = subprocess.run(command(scratch, url), capture_output=True, text=True, timeout=200)
    assert ran.returncode == 1 and "wrong checksum, the first in '" in ran.stderr
    assert json.loads(tools.ddpfs("tier", "--json", f"--verify={url}", scratch / "tier").stdout)["verified"]["damaged"] == 0


def test_a_store_that_is_away(stored, scratch, http_store):
    url, _, _ = stored
    warm(scratch, url)  # its index is on this host now
    (scratch / "tier/tier").unlink()
    http_store.set(down=1)
    start = time.monotonic()
    ran = subprocess.run(command(scratch, url, ",timeout=2"), capture_output=True, text=True, timeout=200)
    assert ran.returncode == 1 and "ddpfs: " in ran.stderr and time.monotonic() - start < 60


@pytest.mark.parametrize("given, status, said", [
    ("view=all", 2, "option tier is missing"), ("tier={}", 1, "add tier_size=SIZE"),
    ("tier=/nowhere/at/all,tier_size=64M", 1, "there is no directory")])
def test_what_is_missing_is_said(given, status, said, stored, scratch):
    ran = tools.ddpfs("warm", stored[0], "-o", given.format(scratch / "tier"), check=False)
    assert ran.returncode == status and said in ran.stderr
