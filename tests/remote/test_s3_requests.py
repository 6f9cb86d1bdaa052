# SPDX-License-Identifier: Apache-2.0
"""What a request to S3 has for each option: the host, the headers and what of them is signed."""

import hashlib
import hmac
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helpers import datasets, tools
from mount import control


class Refusing(BaseHTTPRequestHandler):
    """Notes each request and refuses it, as a store without the object does or as AWS does in another region."""

    def log_message(self, *_arguments):
        pass

    def do_GET(self):
        self.headers["method"] = self.command
        self.server.seen.append((self.path, self.headers))
        self.send_response(301 if self.server.region else 404)
        if self.server.region:
            self.send_header("x-amz-bucket-region", self.server.region)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET


@pytest.fixture
def refusing(build_dir, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    server.seen, server.region = [], None
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://localhost:{server.server_address[1]}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKX")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def first_request(refusing):
    """The path and headers of the first request for s3://buck/train."""
    def ask(**environment):
        done = tools.run([tools.tool("mkshard"), "info", "s3://buck/train"], check=False, env=environment)
        assert done.returncode != 0 and refusing.seen, done.stderr
        return refusing.seen[0]
    return ask


def test_another_region_is_named_in_a_sentence(refusing):
    refusing.region = "eu-west-3"
    done = tools.run([tools.tool("mkshard"), "info", "s3://buck/train"], check=False, env={"AWS_REGION": "us-west-2"})
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "the bucket is in region 'eu-west-3', and requests go to 'us-west-2'; set AWS_REGION=eu-west-3" in done.stderr


def signed(headers):
    return headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")


@pytest.mark.parametrize("addressing, host, path", [("path", "localhost", "/buck/train/index.ddpfs"),
                                                    ("virtual", "buck.localhost", "/train/index.ddpfs")])
def test_the_bucket_is_in_the_path_or_in_the_host(addressing, host, path, first_request):
    asked, headers = first_request(DDPFS_S3_ADDRESSING=addressing)
    assert (headers["Host"].partition(":")[0], asked) == (host, path) and "host" in signed(headers)


def signature(host, path, headers):
    """Of a GET or HEAD, by AWS's description of Signature Version 4."""
    method, when, body = headers["method"], headers["x-amz-date"], headers["x-amz-content-sha256"]
    names = {"host": host, "x-amz-content-sha256": body, "x-amz-date": when}
    request = [method, path, "", *(f"{name}:{value}" for name, value in names.items()), "", ";".join(names), body]
    key = b"AWS4secret"
    for part in (when[:8], "us-east-1", "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    to_sign = ["AWS4-HMAC-SHA256", when, f"{when[:8]}/us-east-1/s3/aws4_request",
               hashlib.sha256("\n".join(request).encode()).hexdigest()]
    return hmac.new(key, "\n".join(to_sign).encode(), "sha256").hexdigest()


@pytest.mark.parametrize("host, sent", [("store.invalid:80", "store.invalid"), ("store.invalid", "store.invalid"),
                                        ("store.invalid:8080", "store.invalid:8080"), ("[::1]:80", "[::1]")])
def test_the_host_is_signed_as_it_is_sent(host, sent, first_request, monkeypatch):
    # The server stands in for each host as a proxy.
    proxy = os.environ["AWS_ENDPOINT_URL"].replace("localhost", "127.0.0.1")
    path, headers = first_request(AWS_ENDPOINT_URL=f"http://{host}", http_proxy=proxy, no_proxy="", AWS_REGION="us-east-1")
    path = "/" + path.partition("://")[2].partition("/")[2]
    assert headers["Host"] == sent
    assert headers["Authorization"].endswith("Signature=" + signature(sent, path, headers))


@pytest.mark.parametrize("environment, header, value", [
    ({"AWS_SESSION_TOKEN": "a-token"}, "x-amz-security-token", "a-token"),
    ({"DDPFS_S3_REQUESTER_PAYS": "1"}, "x-amz-request-payer", "requester")], ids=["token", "requester"])
def test_a_header_is_sent_and_signed(environment, header, value, first_request):
    _, headers = first_request(**environment)
    assert headers[header] == value and header in signed(headers)


def test_a_host_that_has_no_address_is_named(build_dir):
    *_, said = tools.waits_for_store(tools.tool("mkshard"), "info", "http://nothing.invalid/x").splitlines()
    assert re.search("resolve.*nothing.invalid", said), said


@pytest.mark.parametrize("name, environment", [
    ("http://127.0.0.1:0/x", {}), ("http://127.0.0.1:99999/x", {}), ("http://127.0.0.1:http/x", {}),
    ("http://ho st/x", {}), ("https://[::1/x", {}), ("s3://buck/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:0"}),
    ("s3://buck/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:99999/base"})])
def test_an_address_that_never_works_is_refused_at_once(name, environment, build_dir):
    """Before any request, so before the credentials are looked for."""
    done = tools.run([tools.tool("mkshard"), "info", name], check=False, env=environment)
    assert done.returncode == 1 and f"{name}: no request can go to '" in done.stderr, done
    assert "waiting" not in done.stderr and "tried" not in done.stderr


def test_resident_files_are_read_while_the_store_is_away(http_store, build_dir, mount, scratch):
    datasets.write_tree(scratch / "source", classes=3, per_class=30)
    tools.mkshard("pack", scratch / "source", http_store.root / "train")
    m = mount(f"{http_store.url}/train", "rank=0,world=1,memory=64M,timeout=3")
    names = [path.name for path in m.path.iterdir() if not path.name.startswith(".")]
    data = {name: (m.path / name).read_bytes() for name in names}
    control.settled(m)
    http_store.set(down=1)
    assert {name: (m.path / name).read_bytes() for name in names} == data
