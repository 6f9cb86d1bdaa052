# SPDX-License-Identifier: Apache-2.0
"""mkshard index of tar files in a store: they stay where they are, and the dataset has their bytes."""

import io
import json
import os
import signal
import subprocess
import tarfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from helpers import datasets, tools, waiting
from helpers.datasets import content

MKSHARD = tools.tool("mkshard")
URL = "s3://data/wds"


def tar_of(files, **options):
    """The bytes of a tar with {name: bytes}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_600_000_000
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def webdataset(shards=3, samples=12, sizes=(3_000, 1_500_000, 70_000)):
    """{tar name: {member: bytes}} as WebDataset names them."""
    return {f"train-{s:04}.tar": {f"{s}{i:04}.{end}": content(f"{s}{i}{end}", sizes[i % len(sizes)] if end == "jpg" else 7)
                                  for i in range(samples) for end in ("cls", "jpg")} for s in range(shards)}


def put(s3, tars, prefix="wds/"):
    for name, files in tars.items():
        s3.put_object(Bucket="data", Key=prefix + name, Body=files if isinstance(files, bytes) else tar_of(files))


def keys(s3):
    return [found["Key"] for found in s3.list_objects_v2(Bucket="data").get("Contents", [])]


def members(tars):
    return {name: data for files in tars.values() for name, data in files.items()}


def shown(mount, dataset):
    m = mount(dataset, "view=all,layout=tree,memory=64M")
    return {name: data for name, data in datasets.read_tree(m.path).items() if not name.startswith(".ddpfs")}


def fails(*words):
    """What mkshard says in its one line; it must exit with 1."""
    done = tools.run([MKSHARD, *words], check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# In a bucket


@pytest.mark.parametrize("jobs", [1, 4])
def test_tars_in_a_bucket_are_indexed_where_they_are(jobs, s3, scratch, mount):
    tars = webdataset()
    put(s3, tars)
    before = {key: s3.head_object(Bucket="data", Key=key)["LastModified"] for key in keys(s3)}
    done = tools.mkshard("index", f"--jobs={jobs}", f"{URL}/")
    assert "72 files in 3 shards" in done.stdout and "by key" in done.stdout and done.stderr == ""
    assert keys(s3) == ["wds/index.ddpfs", *before]
    assert {key: s3.head_object(Bucket="data", Key=key)["LastModified"] for key in before} == before
    assert list((scratch / "indexes").iterdir()) == [], "a part of the work stays on this host"
    assert "all good" in tools.mkshard("verify", URL).stdout
    assert shown(mount, URL) == members(tars)


def test_only_tars_directly_below_the_dataset_are_taken(s3):
    tars = webdataset(shards=1)
    put(s3, {**tars, "README.md": b"no tar", "old/train-0000.tar": {"x": b"x"}})
    put(s3, {"train-0000.tar": {"y": b"y"}}, prefix="wds2/")
    assert "24 files in 1 shard" in tools.mkshard("index", URL).stdout


def test_named_tars_of_a_bucket_are_indexed(s3, mount):
    tars = webdataset()
    put(s3, tars)
    put(s3, {"more/train-9.tar": {"9.jpg": b"nine"}})
    tools.mkshard("index", URL, f"{URL}/more/train-9.tar", f"{URL}/train-0001.tar")
    assert shown(mount, URL) == {**tars["train-0001.tar"], "9.jpg": b"nine"}


@pytest.mark.parametrize("name, said", [
    (f"{URL}/missing.tar", "there is no object 'wds/missing.tar'"),
    ("s3://data/wds2/a.tar", "is not below s3://data/wds"),
    ("s3://other/wds/a.tar", "is not below s3://data/wds"),
    ("a.tar", "are named as s3://data/wds/SHARD.tar"),
])
def test_a_name_that_is_no_tar_of_the_dataset_is_said(name, said, s3):
    put(s3, webdataset())
    assert said in fails("index", URL, f"{URL}/train-0000.tar", name)
    assert "wds/index.ddpfs" not in keys(s3)


def test_a_prefix_without_tars_is_said(s3):
    put(s3, {"README.md": b"no tar"})
    assert "holds no shards" in fails("index", URL)
    put(s3, {"b.tar.gz": b"", "a.tgz": b"", "below/c.tar.gz": b""})
    said = tools.run([MKSHARD, "index", URL], check=False).stderr
    assert "compressed tar files are left out: 2, the first one 'a.tgz'; decompress" in said and "no shards" in said


def test_a_source_is_no_store(s3):
    put(s3, webdataset())
    assert f"'{URL}': a source is a directory, an archive or a list of this host" in fails("pack", URL, f"{URL}2")


@pytest.fixture
def lists(monkeypatch):
    """A store that answers every list with `body`, and has no objects."""
    class Lists(BaseHTTPRequestHandler):
        def do_GET(self):
            listed = "list-type" in self.path
            self.send_response(200 if listed else 404)
            self.end_headers()
            self.wfile.write(server.body.encode() if listed else b"<Error><Code>NoSuchKey</Code></Error>")

        def do_HEAD(self):
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Lists) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("DDPFS_S3_ANONYMOUS", "1")
        yield server
        server.shutdown()


LISTED = "<ListBucketResult>{}<Contents><Key>wds/{}</Key><Size>10240</Size></Contents></ListBucketResult>"


@pytest.mark.parametrize("token", ["", "<NextContinuationToken/>", "<NextContinuationToken></NextContinuationToken>"])
def test_a_part_of_a_list_does_not_pass_for_all(token, lists):
    """As of a store that only knows the first version of lists."""
    lists.body = LISTED.format("<IsTruncated>true</IsTruncated>" + token, "a.tar")
    assert "the store lists only a part of the objects" in fails("index", URL)


def test_a_list_ends_with_an_empty_token(lists):
    lists.body = LISTED.format("<IsTruncated>false</IsTruncated><NextContinuationToken></NextContinuationToken>", "README")
    assert "holds no shards" in fails("index", URL)


def test_names_in_a_list_may_be_numbers_of_unicode(lists):
    lists.body = LISTED.format("<IsTruncated>false</IsTruncated>", "&#233;&#x1F431;&#x20ac;&#65;.tar")
    assert "'s3://data/wds/é🐱€A.tar'" in fails("index", "--timeout=5", URL)


def test_names_in_a_list_are_decoded_once(lists):
    lists.body = LISTED.format("<IsTruncated>false</IsTruncated>", "a&amp;amp;b&amp;lt;.tar")
    assert "'s3://data/wds/a&amp;b&lt;.tar'" in fails("index", "--timeout=5", URL)


@pytest.mark.parametrize("url", ["gs://data/wds", "GS://data/wds", "s3:/data/wds"])
def test_a_kind_of_url_that_is_not_known_is_said(url, scratch):
    said = "https://storage.googleapis.com" if url[0] in "gG" else "; did you mean 's3://data/wds"
    (scratch / "source").mkdir()
    (scratch / "source/a").write_bytes(b"a")
    for words in [("index", url), ("index", url, f"{url}/a.tar"), ("pack", scratch / "source", url), ("info", url)]:
        text = fails(*words)
        assert f"'{url}': " in text and "s3://BUCKET/PREFIX" in text and said in text, text


def test_tars_in_a_store_need_a_dataset_in_the_store(s3, scratch):
    put(s3, webdataset())
    assert "DATASET must be there too" in fails("index", scratch / "d", f"{URL}/train-0000.tar")
    assert not (scratch / "d").exists()


def test_two_thousand_small_members(s3, mount):
    tars = {f"{s}.tar": {f"{s}/{i:04}.txt": content(f"{s}{i}", i % 700) for i in range(1000)} for s in range(2)}
    put(s3, tars)
    assert "2000 files in 2 shards" in tools.mkshard("index", URL).stdout
    assert shown(mount, URL) == members(tars)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names(form, s3, mount):
    files = {"/".join(["directory" * 8] * 4) + f"/{'n' * 200}-{i}.jpg": content(i, 5000) for i in range(20)}
    files["ünï/\u4e2d.jpg"] = b"unicode"
    put(s3, {"a.tar": tar_of(files, format=form)})
    tools.mkshard("index", URL)
    assert shown(mount, URL) == files


def test_a_member_over_the_window_of_reading(s3, scratch):
    files = {"big.bin": os.urandom(37 << 20), "small.bin": b"small"}
    put(s3, {"a.tar": files})
    tools.mkshard("index", URL)
    tools.mkshard("extract", URL, scratch / "out")
    assert datasets.read_tree(scratch / "out") == files


def test_by_shard_keeps_equal_names_apart(s3, mount):
    put(s3, {"a.tar": {"x.jpg": b"a"}, "b.tar": {"x.jpg": b"b"}})
    assert f"'x.jpg' comes twice: in '{URL}/a.tar' and in '{URL}/b.tar'" in fails("index", URL)
    tools.mkshard("index", "--by-shard", URL)
    assert shown(mount, URL) == {"a/x.jpg": b"a", "b/x.jpg": b"b"}


@pytest.mark.parametrize("container", ["tar", "bare"])
def test_the_lost_index_of_a_packed_dataset_is_made_again(container, s3, scratch):
    datasets.write_tree(scratch / "source", classes=3, per_class=40)
    tools.mkshard("pack", f"--container={container}", "--shard-size=1M", scratch / "source", URL)
    index = s3.get_object(Bucket="data", Key="wds/index.ddpfs")["Body"].read()
    s3.delete_object(Bucket="data", Key="wds/index.ddpfs")
    tools.mkshard("index", URL)
    assert s3.get_object(Bucket="data", Key="wds/index.ddpfs")["Body"].read() == index


def test_an_index_is_replaced_only_with_force(s3):
    tars = webdataset()
    put(s3, tars)
    tools.mkshard("index", URL)
    before = s3.get_object(Bucket="data", Key="wds/index.ddpfs")["Body"].read()
    assert "has an index already; give --force" in fails("index", URL)
    assert s3.get_object(Bucket="data", Key="wds/index.ddpfs")["Body"].read() == before
    tars["train-0001.tar"]["10003.jpg"] = b"other bytes"
    put(s3, tars)
    done = tools.mkshard("index", "--force", URL)
    assert "1 of the files of 's3://data/wds' differ from the old index, first '10003.jpg'" in done.stderr
    assert "all good" in tools.mkshard("verify", URL).stdout


def test_the_index_of_a_bucket_can_be_written_on_this_host(s3, scratch, mount):
    tars = webdataset()
    put(s3, tars)
    tools.mkshard("index", "-o", scratch / "index", URL)
    assert "wds/index.ddpfs" not in keys(s3)
    assert "exists already; give --force" in fails("index", f"--output={scratch / 'index'}", URL)
    s3.put_object(Bucket="data", Key="wds/index.ddpfs", Body=(scratch / "index").read_bytes())
    assert shown(mount, URL) == members(tars)


def test_output_that_cannot_be_written_is_said_before_a_tar_is_read(s3, scratch):
    put(s3, {"a.tar": b"no tar" * 100})
    assert "No such file or directory" in fails("index", "-o", scratch / "nowhere/index", URL)
    assert "No such file or directory" in fails("index", "-o", scratch / "nowhere/index", scratch)


def test_an_index_that_cannot_be_sent_stays_on_this_host(s3, server, scratch, monkeypatch):
    tars = webdataset()
    put(s3, tars)
    iam = server.client("iam")
    iam.create_user(UserName="reader")
    allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}]}
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(allow))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    text = fails("index", URL)
    assert "the index stays in '" in text and "AccessDenied" in text
    path = Path(text.split("stays in '")[1].split("'")[0])
    assert path.parent == scratch / "indexes"
    s3.put_object(Bucket="data", Key="wds/index.ddpfs", Body=path.read_bytes())
    assert "all good" in tools.mkshard("verify", URL).stdout


# Damage


@pytest.mark.parametrize("damage, said", [
    (lambda data: data[:1536] + b"\xff" + data[1537:], "at byte 1536"),
    (lambda data: data[:len(data) // 2], "truncated"),
    (lambda data: data[:1536 + 100], "truncated"),
    (lambda data: b"", "an empty file"),
    (lambda data: b"\x1f\x8b" + data, "gzip"),
    (lambda data: b"\x1f\x8b" + bytes(98), "gzip"),
    (lambda data: data + tar_of({"d": b"d"}), "the archive ends at byte 13824 and 16896 bytes follow"),
])
def test_a_damaged_tar_is_named_and_there_is_no_index(damage, said, s3):
    tars = {"a.tar": {"a": b"a" * 600, "b": b"b" * 600, "c": b"c" * 9_000}, "z.tar": {"z": b"z"}}
    put(s3, {**tars, "m.tar": damage(tar_of(tars["a.tar"]))})
    text = fails("index", URL)
    assert f"'{URL}/m.tar': " in text and said in text, text
    assert "wds/index.ddpfs" not in keys(s3)


def test_keep_going_takes_what_is_before_the_damage(s3, mount):
    files = {"a": b"a" * 600, "b": b"b" * 600, "c": b"c" * 600}
    put(s3, {"m.tar": tar_of(files)[:1536 + 512 + 100], "z.tar": {"z": b"z"}})
    done = tools.run([MKSHARD, "index", "--keep-going", URL], check=False)
    assert done.returncode == 1 and f"left out '{URL}/m.tar'" in done.stderr
    assert shown(mount, URL) == {"a": files["a"], "z": b"z"}


def reads(process):
    """Whether the process reads objects now: it has the thread for it."""
    try:
        return any(path.read_text() == "http\n" for path in Path(f"/proc/{process.pid}/task").glob("*/comm"))
    except OSError:
        return False  # a thread that ended


def test_a_killed_run_leaves_no_index_and_can_be_run_again(s3, scratch, mount):
    tars = webdataset(shards=8, sizes=(500_000,))
    put(s3, tars)
    for _ in range(20):
        first = subprocess.Popen([MKSHARD, "index", "--jobs=1", URL])
        waiting.wait_until(lambda: first.poll() is not None or reads(first), pause_s=0.001)  # noqa: B023
        first.kill()
        if first.wait() == -signal.SIGKILL and "wds/index.ddpfs" not in keys(s3):
            break
        s3.delete_object(Bucket="data", Key="wds/index.ddpfs")  # it was over before it could be killed
    else:
        raise AssertionError("it was over each time")
    assert keys(s3) == [f"wds/{name}" for name in tars]
    assert s3.list_multipart_uploads(Bucket="data").get("Uploads", []) == []
    tools.mkshard("index", URL)
    assert list((scratch / "indexes").iterdir()) == []
    assert shown(mount, URL) == members(tars)


# Behind HTTP


@pytest.fixture
def behind_http(http_store):
    """Tars at `URL/wds`, their URLs and their members."""
    tars = webdataset()
    (http_store.root / "wds").mkdir()
    for name, files in tars.items():
        (http_store.root / "wds" / name).write_bytes(tar_of(files))
    url = f"{http_store.url}/wds"
    return url, [f"{url}/{name}" for name in tars], members(tars)


def test_tars_behind_http_are_indexed_by_their_names(behind_http, http_store, mount):
    url, names, files = behind_http
    tools.mkshard("index", "-o", http_store.root / "wds/index.ddpfs", url, *names)
    assert "all good" in tools.mkshard("verify", url).stdout
    assert shown(mount, url) == files


def test_what_http_cannot_do_is_said(behind_http, scratch):
    url, names, _ = behind_http
    assert "do not list their files; name the shards: mkshard index" in fails("index", "-o", scratch / "index", url)
    assert "only read; give --output=FILE" in fails("index", url, *names)


def test_a_store_that_fails_gives_the_same_index(behind_http, http_store, scratch):
    url, names, _ = behind_http
    tools.mkshard("index", "-o", scratch / "clean", url, *names)
    http_store.set(latency_ms=2, p503=0.05, reset=0.03, cut=0.03)
    tools.mkshard("index", "-o", scratch / "faulty", url, *names)
    assert (scratch / "faulty").read_bytes() == (scratch / "clean").read_bytes()


def begin(http_store, output, *words, name):
    """Begins to index while the store is slow; returns the process when it reads the object `name`."""
    http_store.set(bps=200_000)
    process = subprocess.Popen([MKSHARD, "index", "-o", output, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    waiting.wait_until(lambda: process.poll() is not None or
                       sum(answer[1].endswith(name) and int(answer[3]) > 1 << 20 for answer in http_store.answers()))
    assert process.poll() is None, process.communicate()
    return process


def go_on(http_store, url):
    """Lets the store be fast again; it takes new values when a request comes."""
    http_store.set()
    urllib.request.urlopen(urllib.request.Request(url, method="HEAD")).close()


def end(process):
    """What the process says; it must exit with 1."""
    out, said = process.communicate(timeout=300)
    assert process.returncode == 1, (out, said)
    return said


@pytest.mark.parametrize("options, lines", [([], 1), (["--keep-going"], 2)])
def test_a_tar_that_is_replaced_while_it_is_read_is_named(options, lines, behind_http, http_store, scratch):
    url, _, _ = behind_http
    path = http_store.root / "wds/large.tar"
    path.write_bytes(tar_of({f"{i}.bin": content(i, 1 << 20) for i in range(40)}))
    process = begin(http_store, scratch / "index", *options, url, f"{url}/large.tar", name="large.tar")
    (scratch / "new.tar").write_bytes(tar_of({f"{i}.bin": content(-i, 1 << 20) for i in range(40)}))
    os.rename(scratch / "new.tar", path)
    go_on(http_store, f"{url}/large.tar")
    said = end(process)
    assert f"'{url}/large.tar': cannot be read at byte" in said and "it was replaced while it was read" in said, said
    assert said.count("\n") == lines and (not options or "hold no files" in said), said
    assert not (scratch / "index").exists()


@pytest.mark.parametrize("options", [[], ["--keep-going"]])
def test_a_store_that_is_away_ends_it_with_one_sentence(options, behind_http, http_store, scratch):
    url, names, _ = behind_http
    process = begin(http_store, scratch / "index", *options, "--timeout=1", url, *names, name="train-0000.tar")
    http_store.close()
    said = end(process)
    assert said.count("\n") == 1, said
    assert "the store did not answer for 1 s (" in said and "run the command again" in said, said
    assert not (scratch / "index").exists()
