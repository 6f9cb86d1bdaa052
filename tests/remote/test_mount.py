# SPDX-License-Identifier: Apache-2.0
"""Mounts of datasets that lie in a store: the same files as on disk, whatever the store does."""

import errno
import hashlib
import json
import mmap
import os
import random
import shutil
import subprocess
import time

import pytest

from helpers import datasets, mounts, tools
from helpers.waiting import wait_until
from mount import control

AWAY_S = float(os.environ.get("DDPFS_AWAY_S", "3"))  # how long a store is away
FILE = "class_00/item_0003.bin"


@pytest.fixture
def stored(build_dir, scratch, http_store):
    """A packed dataset at `URL/train` and its source."""
    source = scratch / "source"
    files = datasets.write_tree(source, classes=3, per_class=100, sizes=(0, 1, 20_000, 31_111, 65_536))
    tools.mkshard("pack", "--shard-size=2M", source, http_store.root / "train")
    return f"{http_store.url}/train", files


def contents(path):
    return {name: data for name, data in datasets.read_tree(path).items() if not name.startswith(".ddpfs")}


def test_files_are_those_that_were_packed(stored, http_store, mount):
    url, files = stored
    http_store.set(latency_ms=5)
    assert contents(mount(url, "view=all,layout=tree,memory=64M").path) == files


@pytest.mark.parametrize("faults", [{"head_status": 403}, {"head_status": 405}, {"head_status": 501}, {"no_length": 1},
                                    {"no_length": 1, "whole": 1}],
                         ids=lambda faults: "-".join(f"{name}={value}" for name, value in faults.items()))
def test_a_server_that_tells_no_size_by_head(faults, stored, http_store):
    url, _ = stored
    http_store.set(**faults)
    assert "all good" in tools.mkshard("verify", url).stdout


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("host", ["", "http://localhost"])
def test_redirects_are_followed(status, host, stored, http_store, mount):
    """As the resolve URLs of a hub: each to a signed URL that expires, of another host or of the same."""
    url, files = stored
    http_store.set(redirect=status, redirect_to=host and f"{host}:{http_store.port}")
    m = mount(url, "view=all,layout=tree,memory=64M")
    names = sorted(files)
    assert all((m.path / name).read_bytes() == files[name] for name in names[:50])
    time.sleep(2.5)  # what was signed before has expired
    assert contents(m.path) == files


def test_a_loop_of_redirects_is_said_at_once(stored, http_store, mount):
    url, _ = stored
    m = mount(url, "view=all,layout=tree,memory=64M,timeout=60")
    http_store.set(redirect=302, redirect_loop=1)
    begin = time.monotonic()
    with pytest.raises(OSError) as error:
        (m.path / FILE).read_bytes()
    assert error.value.errno == errno.EIO and time.monotonic() - begin < 30
    assert tools.stat_json(m.path)["store_error"] == "the server redirects again and again"
    done = tools.run([tools.tool("mkshard"), "info", url], check=False)
    assert done.returncode == 1 and "the server redirects again and again" in done.stderr, done.stderr
    http_store.set()
    (m.path / FILE).read_bytes()


def test_a_redirect_to_what_is_no_url_is_said_at_once(stored, http_store):
    url, _ = stored
    http_store.set(redirect=302, redirect_to="http://127.0.0.1:99999")
    done = tools.run([tools.tool("mkshard"), "info", url], check=False)
    assert done.returncode == 1 and "tried" not in done.stderr and "99999" not in done.stderr, done.stderr


@pytest.mark.parametrize("command", ["mkshard info", "mkshard verify", "mkshard pack source", "mkshard index",
                                     "ddpfs order -o rank=0,world=1", "ddpfs doctor"])
@pytest.mark.parametrize("name, said", [("https://me:s3cr3t@host/train", "a user or password in the name"),
                                        ("https://me:p%40s3cr3t@host/train", "a user or password in the name"),
                                        ("https://me:s3cr3t%40host/train", "a user or password in the name"),
                                        ("https://me%3As3cr3t%40host/train", "a user or password in the name"),
                                        ("https://me:s3cr3t/x@host:80/train", "a user or password in the name"),
                                        ("s3://KEY:s3cr3t/x@bucket/train", "a user or password in the name"),
                                        ("S3://KEY:x%2Fs3cr3t@bucket/train", "a user or password in the name"),
                                        ("s3:/KEY:x/s3cr3t@bucket/train", "write s3://BUCKET/PREFIX"),
                                        ("ftp://me:s3cr3t@host/train", "write s3://BUCKET/PREFIX"),
                                        ("https://host/train?sig=s3cr3t", "a query")])
def test_a_secret_in_a_name_is_not_printed(command, name, said, build_dir, scratch):
    (scratch / "source").mkdir()
    (scratch / "source/a").write_text("a")
    program, *words = command.split()
    done = tools.run([tools.tool(program), *words, name], check=False, cwd=scratch)
    printed = done.stdout + done.stderr
    assert done.returncode != 0 and said in printed and "s3cr3t" not in printed, printed
    assert "?" in name or not any(word in printed for word in ("KEY", "@", "host/train", "bucket/train")), printed


@pytest.mark.parametrize("name", ["http://127.0.0.1:1/a%40b", "http://[::1]:1/a:b@c"])
def test_a_path_with_an_at_sign_is_no_password(name, build_dir):
    assert "password" not in tools.waits_for_store(tools.tool("mkshard"), "info", name)


def test_the_own_order_is_read_ahead(stored, http_store, mount):
    url, _ = stored
    http_store.set(latency_ms=20)
    m = mount(url, "rank=0,world=2,memory=64M")
    names = [n for n in os.listdir(m.path) if not n.startswith(".")]
    control.settled(m)
    for name in names:
        (m.path / name).read_bytes()
    stats = tools.stat_json(m.path)
    # What the kernel takes back is no fault: `lost`, or one of the turns that are read ahead once more.
    taken_back = 2 * stats["lost"] + 1024 * stats["refetches"]
    assert stats["opens"] >= len(names) and stats["misses"] < 0.2 * len(names) + taken_back


def test_faults_of_the_store_reach_no_reader(stored, http_store, mount):
    url, files = stored
    http_store.set(latency_ms=2, p503=0.05, reset=0.03, cut=0.03, flip_once=0.02)
    assert contents(mount(url, "view=all,layout=tree,memory=64M").path) == files


def test_readers_wait_for_a_store_that_is_away(stored, http_store, mount):
    url, files = stored
    m = mount(url, "view=all,layout=tree,memory=64M")
    http_store.set(down=1)
    reader = subprocess.Popen(["md5sum", m.path / FILE], stdout=subprocess.PIPE, text=True)
    time.sleep(AWAY_S)
    assert reader.poll() is None, "the reader did not wait"
    http_store.set()
    assert reader.communicate(timeout=60)[0].split()[0] == hashlib.md5(files[FILE]).hexdigest()


def test_a_store_that_has_never_answered_is_away(stored, http_store, mount):
    """The index came from the copy of an earlier mount; the shards have not been asked for before."""
    url, _ = stored
    mount(url, "view=all").unmount()
    m = mount(url, "view=all,layout=tree,memory=64M")
    http_store.set(reset=1, latency_ms=300)
    with subprocess.Popen(["md5sum", m.path / FILE], stdout=subprocess.DEVNULL):
        wait_until(lambda: tools.stat_json(m.path)["store_away_ns"], "a store that is away")
        # It is away while it is tried again, too.
        said = {tools.stat_json(m.path).get("limited_by") for _ in range(50)}
        control.wait_for_log(m, "the store has not answered for")
        http_store.set()
    assert said == {"store: it does not answer"}
    wait_until(lambda: not tools.stat_json(m.path)["store_away_ns"], "a store that answers")


def test_a_store_that_stays_away_is_eio_and_not_remembered(stored, http_store, mount):
    url, files = stored
    m = mount(url, "view=all,layout=tree,memory=64M,timeout=2")
    http_store.set(down=1)
    with pytest.raises(OSError) as e:
        (m.path / FILE).read_bytes()
    assert e.value.errno == errno.EIO
    said = control.wait_for_log(m, "readers get EIO; it is read again when")
    assert "Connection timed out" in said and "quarantine" not in said
    http_store.set()
    assert (m.path / FILE).read_bytes() == files[FILE]


def test_a_killed_server_is_replaced_while_the_store_is_away(stored, http_store, mount):
    url, files = stored
    m = mount(url, "view=all,layout=tree,memory=64M")
    (m.path / FILE).read_bytes()
    http_store.set(down=1)
    os.kill(m.server_pid(), 9)
    time.sleep(1)
    http_store.set()
    assert contents(m.path) == files


def test_unmounting_does_not_wait_for_the_store(stored, http_store, mount):
    url, _ = stored
    m = mount(url, "rank=0,world=1,memory=64M")
    http_store.set(latency_ms=30_000)
    began = time.monotonic()
    (m.path / os.listdir(m.path)[-1]).stat()
    m.unmount()
    assert time.monotonic() - began < 25


def test_a_replaced_shard_is_stale(stored, http_store, mount, scratch):
    """ESTALE, which tells a reader that no other try helps, and never other bytes."""
    url, files = stored
    m = mount(url, "view=all,layout=tree,memory=8M")
    shards = list(http_store.root.glob("train/shard-*"))
    for name in files:
        if all(any(answer[1].endswith(shard.name) for answer in http_store.answers()) for shard in shards):
            break
        (m.path / name).read_bytes()
    (scratch / "kept").mkdir()
    for shard in shards:
        replace(shard, scratch)
    assert set(errors_of(m, files)) == {errno.ESTALE}
    control.wait_for_log(m, "readers get ESTALE; put the shard back that the index describes")
    for shard in shards:  # with the same ETag
        os.replace(scratch / "kept" / shard.name, shard)
    assert contents(m.path) == files


def replace(shard, scratch):
    """Puts other bytes of the same size in the place of a shard, which is kept."""
    other = scratch / "other"
    other.write_bytes(os.urandom(shard.stat().st_size))
    os.link(shard, scratch / "kept" / shard.name)
    os.replace(other, shard)


def errors_of(m, files):
    """Reads all files.  Returns the errors; no other bytes come."""
    found = []
    for name, data in files.items():
        try:
            assert (m.path / name).read_bytes() == data
        except OSError as error:
            found.append(error.errno)
    return found


def test_a_shard_that_is_replaced_before_it_is_asked_for(stored, http_store, mount, scratch):
    """The index has sizes and checksums, so the mount cannot tell a replaced object of the same size from a damaged one."""
    url, files = stored
    m = mount(url, "view=all,layout=tree,memory=8M")
    (scratch / "kept").mkdir()
    for shard in http_store.root.glob("train/shard-*"):
        replace(shard, scratch)
    assert set(errors_of(m, files)) == {errno.EIO}
    said = control.wait_for_log(m, "readers get EIO; the object is damaged, or was replaced after it was packed")
    assert "--quarantine" in said


def index_bytes(http_store):
    """What was sent of the index, in its sizes."""
    fetched = [a for a in http_store.answers() if a[1].endswith("index.ddpfs") and a[0] == "206"]
    size = (http_store.root / "train/index.ddpfs").stat().st_size
    return sum(int(last) - int(first) + 1 for _, _, first, last in fetched) / size


def test_the_index_is_fetched_once(stored, http_store, mount):
    url, _ = stored
    for _ in range(2):
        mount(url, "view=all").unmount()
    assert index_bytes(http_store) == 1


def test_ranks_that_start_together_fetch_the_index_once(stored, http_store):
    url, _ = stored
    http_store.set(latency_ms=200)
    ranks = [subprocess.Popen([tools.tool("mkshard"), "info", url], stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [rank.wait(timeout=60) for rank in ranks] == [0] * 4
    assert index_bytes(http_store) == 1


def test_nobody_waits_for_a_process_that_died_while_it_fetched_the_index(stored, http_store, scratch):
    url, _ = stored
    http_store.set(stall=1, stall_ms=60_000)
    with subprocess.Popen([tools.tool("mkshard"), "info", url], stdout=subprocess.DEVNULL) as first:
        wait_until(lambda: index_bytes(http_store), "a process that fetches the index")
        first.kill()
    assert list((scratch / "indexes").glob("*.lock"))
    http_store.set()
    tools.run([tools.tool("mkshard"), "info", url], timeout=20)


@pytest.mark.parametrize("name, said", [
    ("http://127.0.0.1:1/x", "connect to server"),
    ("http://user:pw@host/x", "password"),
    ("s3:///x", "bucket is missing"),
    ("http://h/a/../b", "'..'"),
])
def test_names_that_cannot_be_right_are_refused(name, said, scratch, build_dir):
    (scratch / "mnt").mkdir()
    done = subprocess.run([build_dir / "tools/ddpfs", "mount", name, scratch / "mnt", "-o", "view=all"],
                          capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and said in done.stderr.lower(), done.stderr
    # Who waited for a store that may be away learns why, once while it is waited for and once at the end.
    waited = [line.lower() for line in done.stderr.splitlines() if "waiting for the store: " in line]
    assert len(waited) == done.stderr.count("; tried ") == ("connect" in said), done.stderr
    assert all(said in line for line in waited), done.stderr
    assert not mounts.is_mounted(scratch / "mnt")


def test_the_statistics_tell_of_the_store(stored, http_store, mount):
    url, files = stored
    http_store.set(p503=0.2)
    m = mount(url, "view=all,layout=tree,memory=64M")
    assert contents(m.path) == files
    stats = tools.stat_json(m.path)
    assert stats["dataset"] == url
    # A refused request beside a slow one needs no other in its place.
    assert stats["store_requests"] > stats["store_retries"] + stats["store_hedged"] >= stats["store_throttled"] > 0
    assert stats["store_bytes"] >= sum(map(len, files.values()))
    assert stats["store_first_byte_p50_ns"] > 0 and "503" in stats["store_error"]


def test_top_shows_the_requests(stored, http_store, mount):
    url, files = stored
    http_store.set(p503=0.2, latency_ms=2)
    m = mount(url, "view=all,layout=tree,memory=64M")
    command = [tools.tool("ddpfs"), "top", "--json", "-d", "0.2", str(m.path)]
    top = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent)
    try:
        seen = [json.loads(top.stdout.readline())["mounts"][0]]
        assert contents(m.path) == files
        control.settled(m)
        stats = tools.stat_json(m.path)
        while seen[-1].get("store_requests", 0) < stats["store_requests"]:
            seen.append(json.loads(top.stdout.readline())["mounts"][0])
    finally:
        top.kill()
        top.communicate()
    names = ["store_requests", "store_retries", "store_throttled", "store_hedged", "store_first_byte_p50_ns",
             "store_first_byte_p99_ns"]
    assert {name: seen[-1][name] for name in names} == {name: stats[name] for name in names}
    for before, after in zip(seen, seen[1:]):
        if after.get("store_requests_per_s") is not None:
            grown = after["store_requests"] - before["store_requests"]
            assert after["store_requests_per_s"] * after["seconds"] == pytest.approx(grown)
    assert any(frame.get("store_requests_per_s") for frame in seen)

    def lines():
        found = tools.ddpfs("top", "--batch", "-n", "1", m.path).stdout
        return "(silent)" not in found and found.splitlines()
    titles, line = wait_until(lines, "an answer in time")[1:3]
    shown = dict(zip(titles.split()[1:], line[len(str(m.path)):].split()))
    assert shown["REQ/s"] == "0" and shown["RETRY"] == shown["HEDGE"] == shown["THROT"] == "-", shown
    assert shown["BYTE50"].endswith("s") and shown["BYTE99"].endswith("s"), shown


def test_top_has_no_columns_of_a_store_without_one(stored, http_store, mount):
    m = mount(http_store.root / "train", "view=all,layout=tree,memory=64M")
    (m.path / FILE).read_bytes()
    assert "REQ/s" not in tools.ddpfs("top", "--batch", "-n", "1", m.path).stdout


def test_the_statistics_say_what_limits(stored, mount):
    """A reader that reads nothing is limited by nothing."""
    m = mount(stored[0], "view=all,layout=tree,memory=64M")
    deadline = time.monotonic() + 60
    while not tools.stat_json(m.path).get("limited_by", "").startswith("nothing:"):
        assert time.monotonic() < deadline, tools.stat_json(m.path)
        time.sleep(0.5)


def limits_of(m, names, seconds):
    """What limits in the intervals of some time in which one file after the other is read past the page cache."""
    said, end = [], time.monotonic() + seconds
    with mmap.mmap(-1, 1 << 20) as room:
        while time.monotonic() < end:
            fd = os.open(m.path / random.choice(names), os.O_RDONLY | os.O_DIRECT)
            os.preadv(fd, [room], 0)
            os.close(fd)
            said.append(tools.stat_json(m.path).get("limited_by", "").partition(":")[0])
    return set(said)


def test_a_steady_reader_waits_for_answers_and_not_for_the_link(stored, http_store, mount):
    """It comes at the best rate that was ever seen, far below what the link can do."""
    url, files = stored
    http_store.set(latency_ms=100)
    m = mount(url, "view=all,layout=tree,memory=8M")
    said = limits_of(m, [name for name in files if files[name]], 18)
    assert "latency" in said and said <= {"", "nothing", "latency"}, said


def test_a_dataset_on_a_disk_with_a_tier_waits_for_a_disk(stored, http_store, scratch, mount):
    (scratch / "tier").mkdir()
    m = mount(http_store.root / "train", f"view=all,layout=tree,memory=8M,tier={scratch / 'tier'},tier_size=64M")
    said = limits_of(m, [name for name in stored[1] if stored[1][name]], 12)
    assert said > {""} and said <= {"", "nothing", "disk", "tier disk", "processor"}, said


def test_https_is_not_left(tls_store, http_store, scratch, monkeypatch):
    datasets.write_tree(scratch / "source", classes=1, per_class=10)
    tools.mkshard("pack", scratch / "source", tls_store.root / "train")
    shutil.copytree(tls_store.root / "train", http_store.root / "train")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls_store.certificate))
    tls_store.set(redirect=302)
    assert "all good" in tools.mkshard("verify", f"{tls_store.url}/train").stdout
    tls_store.set(redirect=302, redirect_to=http_store.url)
    before = len(tls_store.answers())  # the two servers of this test write one log
    monkeypatch.setenv("DDPFS_INDEX_DIR", str(scratch / "others"))  # no copy of the index is there
    done = tools.run([tools.tool("mkshard"), "info", f"{tls_store.url}/train"], check=False)
    assert done.returncode == 1 and "redirects to another scheme" in done.stderr and "until=" not in done.stderr
    assert {answer[0] for answer in http_store.answers()[before:]} == {"302"}


def test_a_relative_file_of_certificates_begins_where_the_command_was_started(tls_store, scratch, monkeypatch):
    files = datasets.write_tree(scratch / "source", classes=1, per_class=10)
    tools.mkshard("pack", scratch / "source", tls_store.root / "train")
    (scratch / "mnt").mkdir()
    monkeypatch.chdir(tls_store.certificate.parent)
    monkeypatch.setenv("AWS_CA_BUNDLE", tls_store.certificate.name)
    tools.ddpfs("mount", "-o", "view=all,layout=tree,memory=64M", f"{tls_store.url}/train", scratch / "mnt")
    try:
        assert {name: (scratch / "mnt" / name).read_bytes() for name in files} == files
    finally:
        tools.ddpfs("umount", scratch / "mnt")


def test_https_is_verified(tls_store, scratch, mount, monkeypatch):
    """The server of the mount, whose system calls are filtered, resolves the name and reads the certificates."""
    files = datasets.write_tree(scratch / "source", classes=2, per_class=20)
    tools.mkshard("pack", scratch / "source", tls_store.root / "train")
    (scratch / "mnt").mkdir()
    refused = tools.run([tools.tool("ddpfs"), "mount", f"{tls_store.url}/train", scratch / "mnt", "-o", "view=all"],
                        check=False)
    assert refused.returncode == 1 and "certificate" in refused.stderr and refused.stderr.count("\n") == 1
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls_store.certificate))
    assert contents(mount(f"{tls_store.url}/train", "view=all,layout=tree").path) == files
