# SPDX-License-Identifier: Apache-2.0
"""Writing to a store of S3 that fails in ways of its own."""

import hashlib
import itertools
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from helpers import datasets, tools


class FakeS3(BaseHTTPRequestHandler):
    """A bucket in memory.  `server.fail(handler)` is asked before each PUT; it returns whether it has answered."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        key, _, query = self.path.partition("?")
        data = self.server.objects.get(unquote(key))
        if "uploads" in query and self.server.hides_uploads:
            return self.reply(403, b"<Error><Code>AccessDenied</Code></Error>")
        if "list-type" in query or "uploads" in query:
            return self.reply(200, b"<Result><IsTruncated>false</IsTruncated></Result>")
        if data is None:
            return self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self.reply(200, data, ETag=self.server.etags.get(unquote(key), f'"{hash(data):x}"'))

    do_HEAD = do_GET

    def do_POST(self):
        key, _, query = self.path.partition("?")
        self.rfile.read(int(self.headers["Content-Length"]))
        if query == "uploads":
            self.server.parts.clear()
            return self.reply(200, b"<Result><UploadId>1</UploadId></Result>")
        return self.server.complete(self, unquote(key))

    def do_DELETE(self):
        self.server.parts.clear()
        self.reply(204)

    def do_PUT(self):
        with self.server.lock:
            self.server.puts += 1
            number = self.server.puts
        if self.server.fail(self, number):
            return
        data = self.rfile.read(int(self.headers["Content-Length"]))
        part = re.search(r"partNumber=(\d+)", self.path)
        if part:
            self.server.parts[int(part[1])] = data
        else:
            self.server.objects[unquote(self.path)] = data
        self.reply(200, ETag=f'"{hashlib.md5(data).hexdigest()}"')


@pytest.fixture
def store(scratch, monkeypatch):
    datasets.write_tree(scratch / "source", classes=2, per_class=40, sizes=(200_000,))
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeS3)
    server.daemon_threads = True
    server.objects, server.etags, server.parts = {}, {}, {}
    server.hides_uploads = False
    server.puts, server.lock, server.fail = 0, threading.Lock(), lambda _handler, _number: False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_body_that_came_too_slowly_is_sent_again(store, scratch):
    """S3's RequestTimeout has status 400."""
    def fail(handler, number):
        if number > 1:
            return False
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.reply(400, b"<Error><Code>RequestTimeout</Code></Error>")
        return True
    store.fail = fail
    tools.mkshard("pack", scratch / "source", "s3://bucket/x")
    assert sorted(store.objects) == ["/bucket/x/index.ddpfs", "/bucket/x/shard-000000.tar"] and store.puts == 3


def test_a_store_that_lists_no_uploads_is_packed_to(store, scratch):
    store.hides_uploads = True
    assert "uploads" not in tools.mkshard("pack", scratch / "source", "s3://bucket/x").stderr
    assert "/bucket/x/index.ddpfs" in store.objects


NO_UPLOAD = b"<Error><Code>NoSuchUpload</Code></Error>"


def complete(server, key):
    """Puts the parts together, and gives the object the ETag that S3 gives it."""
    parts = [server.parts[number] for number in sorted(server.parts)]
    digest = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
    server.objects[key], server.etags[key] = b"".join(parts), f'"{digest}-{len(parts)}"'
    server.parts.clear()


def pack_parts(store, scratch, tries, check=True):
    """Packs a shard of two parts.  tries: what answers each try of CompleteMultipartUpload."""
    calls = iter(tries)
    store.complete = lambda handler, key: next(calls)(handler, key)
    datasets.write_tree(scratch / "large", classes=2, per_class=50, sizes=(200_000,))
    done = tools.run([tools.tool("mkshard"), "pack", "--shard-size=64M", scratch / "large", "s3://bucket/x"], check=check)
    assert next(calls, None) is None, "it was tried less often"
    return done


def packed_here(scratch):
    """What pack_parts makes of the same files."""
    tools.mkshard("pack", "--shard-size=64M", scratch / "large", scratch / "here")
    return {f"/bucket/x/{path.name}": path.read_bytes() for path in (scratch / "here").iterdir()}


def lose(handler, key):
    complete(handler.server, key)
    handler.close_connection = True


def refuse(handler, _key):
    handler.reply(404, NO_UPLOAD)


@pytest.mark.parametrize("etags", [True, False])
def test_an_upload_is_complete_though_the_answer_was_lost(etags, store, scratch):
    """The next try finds no such upload.  Not each store has ETags that tell of the parts."""
    def lose_here(handler, key):
        lose(handler, key)
        if not etags:
            handler.server.etags[key] = '"of-this-store"'
    pack_parts(store, scratch, [lose_here, refuse])
    assert store.objects == packed_here(scratch)


def test_another_object_does_not_pass_for_the_upload(store, scratch):
    """It has as many bytes, and comes from another upload."""
    def lose_to_another(handler, key):
        lose(handler, key)
        handler.server.etags[key] = f'"{"0" * 32}-2"'
    done = pack_parts(store, scratch, [lose_to_another, refuse], check=False)
    assert done.returncode == 1 and "is gone before it was complete" in done.stderr, done.stderr
    assert "/bucket/x/index.ddpfs" not in store.objects


def hang_up(handler, _key):
    handler.close_connection = True


def gateway_timeout(handler, _key):
    handler.reply(504)


@pytest.mark.parametrize("after", [hang_up, gateway_timeout])
def test_an_upload_is_complete_though_all_answers_were_lost(after, store, scratch):
    """The object's ETag tells.  It takes the 10 s for which the end of an upload is tried again."""
    calls = itertools.chain([lose], itertools.repeat(after))
    store.complete = lambda handler, key: next(calls)(handler, key)
    datasets.write_tree(scratch / "large", classes=2, per_class=50, sizes=(200_000,))
    tools.mkshard("pack", "--shard-size=64M", scratch / "large", "s3://bucket/x")
    assert store.objects == packed_here(scratch)


def test_an_older_object_does_not_pass_for_an_upload_without_an_answer(store, scratch):
    """It has as many bytes, and the store's ETags do not tell of parts."""
    def older(handler, key):
        handler.server.objects[key] = b"\0" * sum(map(len, handler.server.parts.values()))
        handler.server.etags[key] = '"of-this-store"'
        handler.close_connection = True
    store.complete = older
    datasets.write_tree(scratch / "large", classes=2, per_class=50, sizes=(200_000,))
    done = tools.run([tools.tool("mkshard"), "pack", "--shard-size=64M", scratch / "large", "s3://bucket/x"], check=False)
    assert done.returncode == 1 and "tried" in done.stderr, done.stderr
    assert "/bucket/x/index.ddpfs" not in store.objects


def test_an_upload_that_is_gone_fails_at_once(store, scratch):
    done = pack_parts(store, scratch, [refuse], check=False)
    assert done.returncode == 1 and "is gone before it was complete" in done.stderr, done.stderr


@pytest.mark.parametrize("code", ["InternalError", "SlowDown"])
def test_an_error_behind_a_success_is_tried_again(code, store, scratch):
    """S3 begins its answer before it has put the parts together."""
    def fail_late(handler, _key):
        handler.reply(200, f"<?xml version='1.0'?>  \n<Error><Code>{code}</Code></Error>".encode())

    def succeed(handler, key):
        complete(handler.server, key)
        handler.reply(200, b"<CompleteMultipartUploadResult/>")
    pack_parts(store, scratch, [fail_late, fail_late, succeed])
    assert store.objects == packed_here(scratch)


def sign_with(scratch, key, token=""):
    (scratch / "credentials").write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=x\n"
                                         + (f"aws_session_token={token}\n" if token else ""))


@pytest.fixture
def expiring(store, scratch, monkeypatch):
    """`expiring.takes` is the key that the store takes, and `expiring.seen(handler)` looks at each request before."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    def wrap(method):
        def do(self):
            self.server.seen(self)
            if f"Credential={self.server.takes}/" in self.headers["Authorization"]:
                return method(self)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return self.reply(403, b"<Error><Code>ExpiredToken</Code><Message>The token has expired</Message></Error>")
        return do
    methods = {name: wrap(getattr(FakeS3, name)) for name in ("do_GET", "do_HEAD", "do_PUT", "do_POST", "do_DELETE")}
    store.RequestHandlerClass = type("Expiring", (FakeS3,), methods)
    sign_with(scratch, "AKFIRST", "first")
    store.takes, store.seen = "AKFIRST", lambda _handler: None
    return store


@pytest.mark.parametrize("late_s", [0, 2])
@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_a_pack_goes_on_when_its_token_expires(method, late_s, expiring, scratch):
    """At a list, a part or the end of an upload.  The next token may come a little late."""
    def expire(handler):
        if handler.command == method and expiring.takes == "AKFIRST" and (method != "POST" or "uploadId" in handler.path):
            expiring.takes = "AKSECOND"
            threading.Timer(late_s, sign_with, (scratch, "AKSECOND", "second")).start()
    expiring.seen = expire

    def succeed(handler, key):
        complete(handler.server, key)
        handler.reply(200, b"<CompleteMultipartUploadResult/>")
    pack_parts(expiring, scratch, [succeed])
    assert expiring.takes == "AKSECOND" and expiring.objects == packed_here(scratch)


def test_keys_that_stay_the_same_are_refused_at_once(expiring, scratch):
    sign_with(scratch, "AKOTHER")
    begin = time.monotonic()
    done = tools.run([tools.tool("mkshard"), "pack", scratch / "source", "s3://bucket/x"], check=False)
    assert done.returncode == 1 and "refuses access" in done.stderr and "ExpiredToken" in done.stderr, done.stderr
    assert time.monotonic() - begin < 8


def test_an_upload_that_hangs_says_so(store, scratch):
    """After 15 s.  Then it goes on with another connection."""
    hung = []

    def fail(handler, number):
        if number > 1:
            return False
        time.sleep(17)
        hung.append(number)
        handler.close_connection = True
        return True
    store.fail = fail
    done = tools.run([tools.tool("mkshard"), "pack", scratch / "source", "s3://bucket/x"])
    line = "s3://bucket/x: waiting for the store: it takes no more of what is sent, and does not answer"
    assert hung and done.stderr.count(line) == 1 and "/bucket/x/index.ddpfs" in store.objects, done.stderr


def test_a_wrong_clock_is_said(store):
    def do_get(self):
        self.reply(403, b"<Error><Code>RequestTimeTooSkewed</Code><Message>too large</Message></Error>")
    store.RequestHandlerClass = type("Skewed", (FakeS3,), {"do_GET": do_get, "do_HEAD": do_get})
    done = tools.run([tools.tool("mkshard"), "info", "s3://bucket/x"], check=False)
    assert done.returncode == 1 and "the clock of this host is wrong" in done.stderr, done.stderr


def test_a_range_without_its_place_has_no_size(store):
    """Its Content-Length is that of the range, not of the object."""
    def do_get(self):
        self.reply(206, b"x")

    def do_head(self):
        self.reply(501)
    store.RequestHandlerClass = type("NoRange", (FakeS3,), {"do_GET": do_get, "do_HEAD": do_head})
    done = tools.run([tools.tool("mkshard"), "info", "s3://bucket/x"], check=False)
    assert done.returncode == 1 and "does not say how large" in done.stderr, done.stderr


def test_why_an_index_was_not_taken_is_said(store):
    """A server that encodes its answers gives them another ETag."""
    def do_get(self):
        self.reply(206, b"x" * 100, ETag='"of-gzip"', Content_Encoding="gzip", Content_Range="bytes 0-99/100")

    def do_head(self):
        self.reply(200, b"x" * 100, ETag='"plain"')
    store.RequestHandlerClass = type("Encoding", (FakeS3,), {"do_GET": do_get, "do_HEAD": do_head})
    done = tools.run([tools.tool("mkshard"), "info", "s3://bucket/x"], check=False)
    assert done.returncode == 1
    assert 'ETag "of-gzip" in place of "plain" (Content-Encoding: gzip)' in done.stderr, done.stderr


def test_a_redirected_index_may_have_another_etag(store, monkeypatch, scratch, pack):
    """HEAD and GET may be led to two servers."""
    datasets.write_tree(scratch / "small", classes=1, per_class=3)
    index = (pack(scratch / "small") / "index.ddpfs").read_bytes()

    def do_get(self):
        if not self.path.startswith("/other"):
            return self.reply(302, Location=f"/other{self.path}")
        first, last = map(int, self.headers.get("Range", f"bytes=0-{len(index) - 1}")[6:].split("-"))
        if self.headers.get("If-Match", '"of-GET"') != '"of-GET"':
            return self.reply(412)
        return self.reply(206, index[first:last + 1], ETag=f'"of-{self.command}"',
                          Content_Range=f"bytes {first}-{last}/{len(index)}")
    store.RequestHandlerClass = type("Redirecting", (FakeS3,), {"do_GET": do_get, "do_HEAD": do_get})
    done = tools.mkshard("info", f"http://127.0.0.1:{store.server_port}/x")
    assert "3 (0 common)" in done.stdout
