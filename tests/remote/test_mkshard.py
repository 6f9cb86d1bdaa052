# SPDX-License-Identifier: Apache-2.0
"""mkshard verify, cat and extract of datasets in a store."""

import json
import shutil
import signal
import subprocess
import time

import pytest

from helpers import datasets, tools, waiting

FAULTS = {"latency_ms": 2, "p503": 0.05, "reset": 0.03, "cut": 0.03}


@pytest.fixture
def stored(build_dir, scratch, http_store):
    """A packed dataset at `URL/train` and its source."""
    files = datasets.write_tree(scratch / "source", classes=3, per_class=60, sizes=(0, 1, 20_000, 65_536, 3_000_000))
    tools.mkshard("pack", "--shard-size=40M", scratch / "source", http_store.root / "train")
    return f"{http_store.url}/train", files


def test_verify_passes_over_a_store_that_fails(stored, http_store):
    http_store.set(flip_over=2 << 20, **FAULTS)  # what is read ahead, not what is read again
    assert "all good" in tools.mkshard("verify", stored[0]).stdout


def test_verify_names_the_file_of_a_flipped_byte(stored, http_store):
    url, files = stored
    name = next(n for n, data in sorted(files.items()) if len(data) == 3_000_000)
    shard = next(p for p in sorted((http_store.root / "train").glob("shard-*")) if files[name] in p.read_bytes())
    data = bytearray(shard.read_bytes())
    data[data.index(files[name]) + 2_000_000] ^= 1
    shard.write_bytes(data)
    done = tools.run([tools.tool("mkshard"), "verify", url], check=False)
    assert done.returncode == 1 and name in done.stderr and "1 of 180 files are bad" in done.stderr, done.stderr


def test_extract_gives_the_source_under_faults(stored, http_store, scratch):
    url, files = stored
    http_store.set(flip_over=2 << 20, **FAULTS)
    tools.mkshard("extract", url, scratch / "out")
    assert datasets.read_tree(scratch / "out") == files


def test_cat_gives_the_source_under_faults(stored, http_store):
    url, files = stored
    http_store.set(**FAULTS)
    name = next(n for n, data in sorted(files.items()) if len(data) == 3_000_000)
    done = tools.run([tools.tool("mkshard"), "cat", url, name], text=False, check=False)
    assert done.stdout == files[name]


def test_a_shard_that_is_not_there_is_named(stored, http_store):
    (http_store.root / "train/shard-000000.tar").unlink()
    done = tools.run([tools.tool("mkshard"), "verify", stored[0]], check=False)
    assert done.returncode == 1 and "shard-000000.tar" in done.stderr, done.stderr


def in_one_sentence_each(text):
    return all(line.count(" at byte ") <= 1 for line in text.splitlines())


def mkshard_fails(*words):
    """What mkshard says; it must exit with 1."""
    done = tools.run([tools.tool("mkshard"), *words], check=False, text=False)
    said = done.stderr.decode()
    assert done.returncode == 1 and in_one_sentence_each(said), said
    return said


def away(stored, http_store, *command):
    """Runs a command over a store that goes away when the first shard is read.  Returns what it says."""
    http_store.set(bps=1_000_000)
    process = subprocess.Popen([tools.tool("mkshard"), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    waiting.wait_until(lambda: process.poll() is not None or any("/shard-" in answer[1] for answer in http_store.answers()))
    ended = process.poll()
    http_store.set(down=1)
    out, said = process.communicate(timeout=300)
    assert ended is None, f"it ended before the store went away: {said.decode()}"
    assert process.returncode == 1 and b"all good" not in out
    return said.decode()


def test_what_fails_late_is_asked_for_again(stored, http_store):
    """The first answer comes after 10 s, for which a request is tried, and is a failure."""
    http_store.set(latency_ms=10_500, p503=1)
    with subprocess.Popen([tools.tool("mkshard"), "info", stored[0]], stdout=subprocess.PIPE, text=True) as process:
        time.sleep(3)  # the first request has come; the next one finds a store that is well
        http_store.set()
        assert "180 (0 common)" in process.communicate(timeout=120)[0]


@pytest.mark.parametrize("command", ["verify", "extract", "cat"])
def test_a_store_that_is_away_is_said_in_one_sentence(command, stored, http_store, scratch):
    url, files = stored
    words = {"verify": [], "extract": [scratch / "out"], "cat": sorted(files)}[command]
    text = away(stored, http_store, command, "--timeout=1", *(["--jobs=3"] if command != "cat" else []), url, *words)
    assert "the store did not answer for 1 s (" in text and "run the command again" in text
    assert text.count("\n") == 1 and in_one_sentence_each(text), text
    if command == "verify":
        assert "shards were not checked" in text
    if command == "extract":
        written = datasets.read_tree(scratch / "out")
        assert all(files[name] == data for name, data in written.items()), "an incomplete file has its final name"
        http_store.set()
        tools.mkshard("extract", url, scratch / "out")
        assert datasets.read_tree(scratch / "out") == files


def test_an_object_of_another_size_is_named(stored, http_store):
    url, files = stored
    shard = http_store.root / "train/shard-000000.tar"
    shard.write_bytes(shard.read_bytes() + bytes(512))
    text = mkshard_fails("verify", url)
    assert "'shard-000000.tar': cannot be read at byte 0: replaced or cut off since it was indexed" in text
    assert "s3://" not in text and url not in text
    name = next(n for n, data in files.items() if len(data) > 1 and data in shard.read_bytes())
    assert f"'{name}': '{url}/shard-000000.tar': cannot be read at byte" in mkshard_fails("cat", url, name)


def test_a_shard_that_is_not_there_leaves_out_its_files_only(stored, http_store, scratch):
    url, files = stored
    shard = http_store.root / "train/shard-000000.tar"
    lost = shard.read_bytes()
    shard.unlink()
    text = mkshard_fails("extract", url, scratch / "out")
    assert f"'{url}/shard-000000.tar': cannot be read at byte" in text and "no such object" in text
    assert text.count("\n") == 1 and "files in it are left out" in text
    written = datasets.read_tree(scratch / "out")
    assert all(files[name] == data for name, data in written.items())
    assert all(name in written or not data or data in lost for name, data in files.items())


# In a bucket


@pytest.fixture
def in_bucket(s3, scratch):
    """A dataset s3://data/x/y and its source."""
    files = datasets.write_tree(scratch / "source", classes=3, per_class=50, sizes=(20_000, 1_500_000, 1, 60_000))
    tools.mkshard("pack", "--shard-size=4M", scratch / "source", "s3://data/x/y")
    return "s3://data/x/y", files


def damage(s3, files):
    """Flips a byte in the middle of a large file.  Returns its name."""
    name = next(name for name, data in sorted(files.items()) if len(data) == 1_500_000)
    for found in s3.list_objects_v2(Bucket="data", Prefix="x/y/shard-")["Contents"]:
        data = bytearray(s3.get_object(Bucket="data", Key=found["Key"])["Body"].read())
        at = data.find(files[name])
        if at >= 0:
            data[at + 1_400_000] ^= 1
            s3.put_object(Bucket="data", Key=found["Key"], Body=bytes(data))
            return name
    raise AssertionError("no shard has it")


def test_a_bucket_is_verified_written_out_and_shown(in_bucket, scratch):
    url, files = in_bucket
    assert "all good" in tools.mkshard("verify", url).stdout
    tools.mkshard("extract", url, scratch / "out")
    assert datasets.read_tree(scratch / "out") == files
    some = sorted(files)[:5]
    done = tools.run([tools.tool("mkshard"), "cat", url, *some], text=False)
    assert done.stdout == b"".join(files[name] for name in some)


def test_a_bucket_is_listed_and_its_order_measured_as_on_a_disk(in_bucket, scratch, pack):
    url, files = in_bucket
    local = pack(scratch / "source", "--shard-size=4M")
    for words in (["ls"], ["ls", "-0"], ["ls", "--json"], ["stats", "--json", "--epochs=2", "-o", "order=chunk,chunk=1M,pool=4M"]):
        here, there = (tools.mkshard(*words, name).stdout for name in (local, url))
        assert there.replace(url, str(local)) == here, words
    assert tools.mkshard("ls", url).stdout.split() == sorted(files)
    below = sorted(files)[0].partition("/")[0]
    assert tools.mkshard("ls", url, below).stdout.split() == sorted(name for name in files if name.startswith(f"{below}/"))
    assert "no 'nowhere'" in mkshard_fails("ls", url, "nowhere")


def test_a_damaged_object_is_found_and_named(in_bucket, s3, scratch):
    url, files = in_bucket
    bad = damage(s3, files)
    text = mkshard_fails("verify", url)
    assert f"'{bad}': checksum mismatch in 'shard-" in text and "1 of 150 files are bad" in text, text
    assert json.loads(tools.run([tools.tool("mkshard"), "verify", "--json", url], check=False).stdout)["bad"][0]["path"] == bad
    assert f"'{bad}': damaged in shard" in mkshard_fails("cat", url, bad)
    assert f"'{bad}': damaged in shard" in mkshard_fails("extract", url, scratch / "out")
    assert datasets.read_tree(scratch / "out") == {name: data for name, data in files.items() if name != bad}


def test_the_quarantine_list_of_a_bucket_is_honoured(in_bucket, s3, mount):
    url, files = in_bucket
    options = "rank=0,world=1,tail=short,layout=tree"
    bad = damage(s3, files)
    refused = tools.run([tools.tool("ddpfs"), "order", url, "-o", f"{options},on_bad=skip"], check=False)
    assert refused.returncode == 1 and "mkshard verify --quarantine" in refused.stderr
    tools.run([tools.tool("mkshard"), "verify", "--quarantine", url], check=False)
    m = mount(url, f"{options},on_bad=skip,memory=64M")
    good = {name: data for name, data in files.items() if name != bad}
    assert {name: data for name, data in datasets.read_tree(m.path).items() if not name.startswith(".ddpfs")} == good
    assert tools.stat_json(m.path)["quarantine"] == [{"path": bad}]


def test_a_quarantine_list_in_a_bucket_that_is_too_large_is_refused(in_bucket, s3):
    s3.put_object(Bucket="data", Key="x/y/quarantine.ddpfs", Body=b"#" * ((8 << 20) + 1))
    done = tools.run([tools.tool("ddpfs"), "order", in_bucket[0], "-o", "rank=0,world=1,on_bad=skip"], check=False)
    assert done.returncode == 1 and "over 8 MiB" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_killed_extract_leaves_no_part_of_a_file_and_is_completed(in_bucket, scratch):
    url, files = in_bucket
    argv = [tools.tool("mkshard"), "extract", "--jobs=1", url, scratch / "out"]
    for _ in range(20):
        first = subprocess.Popen(argv)
        waiting.wait_until(lambda: first.poll() is not None or any((scratch / "out").rglob("item_*")), pause_s=0.001)  # noqa: B023
        first.kill()
        if first.wait() == -signal.SIGKILL:
            break
        shutil.rmtree(scratch / "out")  # it was over before it could be killed
    else:
        raise AssertionError("it was over each time")
    written = {n: d for n, d in datasets.read_tree(scratch / "out").items() if "/.mkshard-extract-" not in n}
    assert written and all(files[name] == data for name, data in written.items())
    tools.run(argv)
    assert datasets.read_tree(scratch / "out") == files
