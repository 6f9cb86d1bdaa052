# SPDX-License-Identifier: Apache-2.0
"""Writing to a store of S3 that fails in ways of its own."""

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
        if "list-type" in query or "uploads" in query:
            return self.reply(200, b"<Result><IsTruncated>false</IsTruncated></Result>")
        if data is None:
            return self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self.reply(200, data, ETag=f'"{hash(data):x}"')

    do_HEAD = do_GET

    def do_PUT(self):
        with self.server.lock:
            self.server.puts += 1
            number = self.server.puts
        if self.server.fail(self, number):
            return
        self.server.objects[unquote(self.path)] = self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(200, ETag='"x"')


@pytest.fixture
def store(scratch, monkeypatch):
    datasets.write_tree(scratch / "source", classes=2, per_class=40, sizes=(200_000,))
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeS3)
    server.daemon_threads = True
    server.objects, server.puts, server.lock, server.fail = {}, 0, threading.Lock(), lambda _handler, _number: False
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
