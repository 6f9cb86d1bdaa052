# SPDX-License-Identifier: Apache-2.0
"""The copy that a host keeps of the index of a dataset in a store (shard/remote/index_copy.h)."""

import json
import os
import re
import shutil
import signal

import pytest

from helpers import datasets, tools
from helpers.http_store import HttpStore, certificate_of_localhost
from mount import control

MKSHARD = tools.tool("mkshard")
PAGE = b"<html>closed until ten</html>"


@pytest.fixture
def stored(scratch, http_store):
    """A packed dataset at `URL/train` and its files."""
    files = datasets.write_tree(scratch / "source", classes=2, per_class=50)
    tools.mkshard("pack", scratch / "source", http_store.root / "train")
    return f"{http_store.url}/train", files


@pytest.fixture
def index(stored, http_store):
    """The object."""
    del stored
    return http_store.root / "train/index.ddpfs"


def copies(scratch):
    return sorted((scratch / "indexes").glob("*.index*"))


def info(url, check=True):
    return tools.run([MKSHARD, "info", url], check=check)


def damaged(data, how):
    at = {"header": 100, "sums": len(data) - 4}.get(how)
    if at:
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
    return data[:{"empty": 0, "torn": len(data) // 2}[how]]


@pytest.mark.parametrize("how", ["empty", "torn", "header", "sums"])
def test_a_damaged_copy_is_fetched_again(how, stored, index, scratch, mount):
    url, files = stored
    info(url)
    [copy] = copies(scratch)
    copy.write_bytes(damaged(copy.read_bytes(), how))
    m = mount(url, "view=all,layout=tree,memory=64M")
    assert {name: (m.path / name).read_bytes() for name in files} == files
    assert copies(scratch) == [copy] and copy.read_bytes() == index.read_bytes()


def test_a_damaged_copy_is_no_copy_if_the_store_is_away(stored, http_store, scratch):
    url, _ = stored
    info(url)
    [copy] = copies(scratch)
    older = copy.with_name(copy.name[:17] + "0" * 16 + ".index")  # of another version
    shutil.copy(copy, older)
    os.utime(older, (1, 1))
    copy.write_bytes(b"")
    http_store.close()
    done = info(url)
    assert f"'{copy}': the copy of the index on this host was damaged" in done.stderr
    assert "the copy of the index that is on this host is used" in done.stderr
    assert copies(scratch) == [older]


@pytest.mark.parametrize("command", ["mkshard verify", "ddpfs doctor"])
def test_damage_where_opening_a_copy_does_not_look_is_said_to_be_of_a_copy(command, stored, index, scratch):
    url, _ = stored
    info(url)
    [copy] = copies(scratch)
    data = bytearray(copy.read_bytes())
    data[4096] ^= 1
    copy.write_bytes(data)
    program, word = command.split()
    done = tools.run([tools.tool(program), word, url], check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and str(copy) in said and "restore index.ddpfs" not in said, said
    assert "the file is this host's copy of the index: remove it" in " ".join(said.split()), said
    copy.unlink()
    assert "all good" in tools.mkshard("verify", url).stdout and copy.read_bytes() == index.read_bytes()


@pytest.mark.parametrize("how", ["page", "empty", "torn", "header", "sums", "middle"])
def test_what_is_no_index_takes_no_copys_place(how, stored, index, http_store, scratch):
    url, _ = stored
    info(url)
    good, kept = copies(scratch), index.read_bytes()
    if how == "middle":  # a piece that opening an index does not look at
        index.write_bytes(kept[:4096] + bytes([kept[4096] ^ 1]) + kept[4097:])
    else:
        index.write_bytes(PAGE if how == "page" else damaged(kept, how))
    done = info(url, check=False)
    assert done.returncode == 1 and f"'{url}/index.ddpfs': " in done.stderr, done.stderr
    assert str(scratch) not in done.stderr, done.stderr
    assert copies(scratch) == good and good[0].read_bytes() == kept
    if how == "page":
        http_store.close()
        assert "the copy of the index that is on this host is used" in info(url).stderr


def test_a_server_is_replaced_while_the_store_shows_a_page(stored, index, mount):
    url, files = stored
    m = mount(url, "view=all,layout=tree,memory=64M")
    index.write_bytes(PAGE)
    os.kill(m.server_pid(), signal.SIGKILL)
    assert {name: (m.path / name).read_bytes() for name in files} == files


def test_a_copy_is_on_the_disk_before_it_has_its_name(stored, scratch):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    log = scratch / "strace"
    tools.run(["strace", "-f", "-y", "-e", "trace=fsync,rename", "-o", log, MKSHARD, "info", stored[0]],
              env=tools.TRACED)
    [copy] = copies(scratch)
    calls = re.findall(r"(fsync\(\d+|rename\()[<\"](.*?)[>\"]", log.read_text())
    what = [(call[:6], path.split(".tmp-")[0]) for call, path in calls]
    assert what == [("fsync(", str(copy)), ("rename", str(copy)), ("fsync(", str(scratch / "indexes"))], log.read_text()


@pytest.fixture
def stored_behind_tls(tls_store, scratch, monkeypatch):
    datasets.write_tree(scratch / "source", classes=1, per_class=10)
    tools.mkshard("pack", scratch / "source", tls_store.root / "train")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls_store.certificate))
    return f"{tls_store.url}/train"


@pytest.mark.parametrize("bundle", ["", "nowhere.pem", "cert.key"], ids=["the system's", "missing", "no certificate"])
def test_a_server_that_is_not_trusted_is_an_error_with_a_copy_too(bundle, stored_behind_tls, scratch, monkeypatch):
    info(stored_behind_tls)
    if bundle:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(scratch / bundle))
    else:
        monkeypatch.delenv("AWS_CA_BUNDLE")
    done = info(stored_behind_tls, check=False)
    assert done.returncode == 1 and "certificate" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_read_from_a_server_that_is_not_trusted_blames_no_file(stored_behind_tls, tls_store, scratch, mount):
    m = mount(stored_behind_tls, "view=all,layout=tree,memory=64M")
    tls_store.close()
    with HttpStore(tls_store.root, scratch, port=tls_store.port, tls=certificate_of_localhost(scratch / "other")):
        with pytest.raises(OSError):
            (m.path / "class_00/item_0003.bin").read_bytes()
        said = control.wait_for_log(m, "the server's certificate is not trusted: readers get EIO; no file is bad")
    assert "quarantine" not in said and "AWS_CA_BUNDLE" in said


def test_a_server_is_replaced_while_the_certificate_is_not_trusted(stored_behind_tls, tls_store, scratch, mount):
    """Its successor knows the identity of the dataset; what is resident can be read, and the rest later."""
    m = mount(stored_behind_tls, "view=all,layout=tree,memory=64M")
    tls_store.close()
    with HttpStore(tls_store.root, scratch, port=tls_store.port, tls=certificate_of_localhost(scratch / "other")):
        os.kill(m.server_pid(), signal.SIGKILL)
        assert sorted(os.listdir(m.path / "class_00"))[0] == "item_0000.bin"


def test_the_same_bucket_of_another_endpoint_has_other_copies(stored, http_store, scratch, monkeypatch):
    monkeypatch.setenv("DDPFS_S3_ANONYMOUS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", http_store.url)
    (http_store.root / "bucket").mkdir()
    (http_store.root / "train").rename(http_store.root / "bucket/train")
    info("s3://bucket/train")
    [copy] = copies(scratch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    done = info("s3://bucket/train", check=False)
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr, done.stderr
    (scratch / "other").mkdir()
    shutil.copytree(http_store.root / "bucket", scratch / "other/bucket")
    with HttpStore(scratch / "other", scratch) as other:
        monkeypatch.setenv("AWS_ENDPOINT_URL", other.url)
        info("s3://bucket/train")
    assert len(copies(scratch)) == 2 and copy in copies(scratch)


@pytest.mark.parametrize("faults", [{"no_etag": 1, "no_modified": 1}, {"no_etag": 1}], ids=["nothing", "a time"])
def test_another_index_of_the_same_size_is_fetched(faults, stored, index, http_store, scratch):
    """By a server that tells of an object no ETag."""
    url, files = stored
    http_store.set(**faults)
    before = json.loads(tools.mkshard("info", "--json", url).stdout)
    st = index.stat()
    for name in files:
        path = scratch / "source" / name
        path.write_bytes(bytes(path.stat().st_size))
    tools.mkshard("pack", "--force", scratch / "source", index.parent)
    os.utime(index, ns=(st.st_atime_ns, st.st_mtime_ns))
    assert index.stat().st_size == st.st_size
    after = json.loads(tools.mkshard("info", "--json", url).stdout)
    assert before["identity"] != after["identity"]
    assert "all good" in tools.mkshard("verify", url).stdout
    asked = [answer[1:] for answer in http_store.answers() if answer[1].endswith("index.ddpfs") and answer[3] != "4095"]
    tools.mkshard("info", url)
    again = [answer[1:] for answer in http_store.answers() if answer[1].endswith("index.ddpfs") and answer[3] != "4095"]
    assert again == asked, "an index that did not change was fetched again"
