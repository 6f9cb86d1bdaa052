# SPDX-License-Identifier: Apache-2.0
"""A proxy of the environment that fails: it is named, and not taken for the store."""

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helpers import datasets, tools
from helpers.waiting import wait_until

DEAD = "http://me:s3cr3t@127.0.0.1:1"
STORE, TLS_STORE = "http://store.invalid/x", "https://store.invalid/x"
CURE = "or add the store's host to no_proxy"


@pytest.fixture(autouse=True)
def clean(build_dir, monkeypatch):
    for name in "no_proxy", "NO_PROXY":
        monkeypatch.delenv(name, raising=False)


def waits(url):
    said = tools.waits_for_store(tools.tool("mkshard"), "info", url)
    assert "s3cr3t" not in said, said
    return said


@pytest.mark.parametrize("variable, url", [("http_proxy", STORE), ("https_proxy", TLS_STORE),
                                           ("HTTPS_PROXY", TLS_STORE), ("ALL_PROXY", STORE)])
@pytest.mark.parametrize("no_proxy", ["", "other.invalid"])
def test_a_proxy_that_takes_no_connection_is_named(variable, url, no_proxy, monkeypatch):
    monkeypatch.setenv(variable, DEAD)
    monkeypatch.setenv("no_proxy", no_proxy)
    assert f"the proxy 127.0.0.1:1 takes no connection: look at the variable {variable}, {CURE}" in waits(url)


def test_a_proxy_without_an_address_is_named(monkeypatch):
    monkeypatch.setenv("http_proxy", "nothing.invalid:3128")
    assert "the proxy nothing.invalid:3128 has no address: look at the variable http_proxy" in waits(STORE)


@pytest.mark.parametrize("address", ["http://me:s3cr3t@127.0.0.1:99999", "http://me:s3cr3t@[::1"])
@pytest.mark.parametrize("no_proxy", ["", "other.invalid"])
def test_an_address_that_is_none_is_said_without_its_password(address, no_proxy, monkeypatch):
    monkeypatch.setenv("http_proxy", address)
    monkeypatch.setenv("no_proxy", no_proxy)
    assert "the variable http_proxy is no address of a proxy: correct it, or unset it" in waits(STORE)


@pytest.mark.parametrize("variable, no_proxy", [("https_proxy", ""), ("http_proxy", "127.0.0.1"), ("HTTP_PROXY", "")])
def test_a_proxy_that_is_not_asked_is_not_named(variable, no_proxy, monkeypatch):
    monkeypatch.setenv(variable, DEAD.replace(":1", ":2"))
    monkeypatch.setenv("no_proxy", no_proxy)
    said = waits("http://127.0.0.1:1/x")
    assert "port 1 " in said and "proxy" not in said, said


class Forwards(BaseHTTPRequestHandler):
    """A proxy for http; it refuses CONNECT."""

    def log_message(self, *_arguments):
        pass

    def do_GET(self):
        path = self.path.partition("://")[2].partition("/")[2]
        request = urllib.request.Request(f"{self.server.store}/{path}", method=self.command)
        if "Range" in self.headers:
            request.add_header("Range", self.headers["Range"])
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    do_HEAD = do_GET

    def do_CONNECT(self):
        self.send_error(403)


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.shutdown()
        self.thread.join()
        self.server_close()


def test_a_proxy_that_refuses_the_store_is_named(monkeypatch):
    with Proxy(("127.0.0.1", 0), Forwards) as proxy:
        place = f"127.0.0.1:{proxy.server_address[1]}"
        monkeypatch.setenv("https_proxy", f"http://{place}")
        said = f"the proxy {place} refuses to connect to the store: look at the variable https_proxy"
        assert said in waits(TLS_STORE)


def test_a_mount_names_the_proxy_that_went_away(http_store, mount, scratch, monkeypatch):
    datasets.write_tree(scratch / "source", classes=1, per_class=20)
    tools.mkshard("pack", scratch / "source", http_store.root / "train")
    with Proxy(("127.0.0.1", 0), Forwards) as proxy:
        proxy.store, place = http_store.url, f"127.0.0.1:{proxy.server_address[1]}"
        monkeypatch.setenv("http_proxy", f"http://{place}")
        m = mount("http://store.invalid/train", "view=all,layout=tree,memory=64M,timeout=2")
    with pytest.raises(OSError):
        (m.path / "class_00/item_0007.bin").read_bytes()
    said = f"the proxy {place} takes no connection"
    wait_until(lambda: said in tools.stat_json(m.path).get("store_error", ""), "a reason")
