# SPDX-License-Identifier: Apache-2.0
"""An HTTP/1.1 file server with ranges, ETags and faults, for tests.  `HttpStore(root)` runs it in a process of its own.

Faults are set while it runs (`store.set(latency_ms=20, p503=0.05)`):

    latency_ms      before each answer
    tail, tail_ms   share of answers that are tail_ms later
    slow_from, slow_ms  from the n-th answer on each is slow_ms later
    p503, p429      share of answers with that status; 429 says Retry-After: 1
    retry_after     that many seconds in its place
    retry_date      1: Retry-After is a date, 2 s later
    each_503        every n-th answer has status 503
    at_once         requests that are served at the same time; more get status 503
    rate            requests that are served in a second; more get status 503
    reset           share of connections that are closed without an answer
    cut             share of bodies that end in the middle
    stall, stall_ms share of bodies that stop in the middle for that long
    each_stall      every n-th body stops so
    flip            share of bodies with one wrong byte
    flip_once       the same, but no byte of an object comes twice in such a body: what is read again is right
    flip_over       bodies of more bytes have one wrong byte
    whole           1: ranges are not answered; the whole object comes
    bps             bytes a second of one connection
    wrong_range     share of answers whose Content-Range is another one than was asked for
    no_range        share of answers with status 206 that have no Content-Range
    redirect        each request without a query is answered with that status: to the same path with a query that holds
                    for 2 s; later it gets 403
    redirect_to     what stands before that path: "http://HOST:PORT"; else the Location begins with '/'
    redirect_loop   1: the query counts for nothing
    down            1: connections are closed at once
    head_status     HEAD is answered with that status
    no_length       1: answers have no Content-Length: to HEAD nothing says the size, to GET chunks come
    no_etag         1: answers have no ETag
    no_modified     1: answers have no Last-Modified
    key             access keys, with spaces between, that requests must be signed with; others get 403 ExpiredToken
    code            the error code that they get in its place

Shares are drawn from a generator with a fixed seed: a client that asks for the same things in the same order meets the
same faults.
"""

import email.utils
import json
import os
import random
import re
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


def certificate_of_localhost(path):
    """Makes a certificate that nobody signed, and its key: PATH.pem, PATH.key."""
    certificate, key = Path(f"{path}.pem"), Path(f"{path}.key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, capture_output=True)
    return certificate, key


class HttpStore:
    """The server as a process, on 127.0.0.1; `url` is its root.  `log` has a line "status key first last" for each answer."""

    def __init__(self, root, scratch, port=0, tls=None, address="127.0.0.1", within=()):
        """tls: (certificate, key), files in PEM; the server is then https://localhost:PORT.
        within: words of a command that runs the server (helpers/network.py)."""
        self.faults = Path(scratch) / "faults.json"
        self.log = Path(scratch) / "http.log"
        self.faults.write_text("{}")
        self.log.write_text("")
        words = [*within, sys.executable, __file__, root, self.faults, self.log, address, str(port), *(tls or ())]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.url = f"https://localhost:{self.port}" if tls else f"http://{address}:{self.port}"

    def set(self, **faults):
        temp = self.faults.with_suffix(".new")
        temp.write_text(json.dumps(faults))
        temp.rename(self.faults)

    def answers(self):
        return [line.split() for line in self.log.read_text().splitlines()]

    def was_asked_with(self, access_key):
        """Whether a request was signed with this access key."""
        seen = self.faults.with_suffix(".keys")
        return seen.exists() and access_key in seen.read_text().split()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536

    def log_message(self, *_arguments):
        pass

    def faults(self):
        server = self.server
        changed = server.faults.stat().st_mtime_ns
        if changed != server.faults_ns:
            server.faults_ns, server.values = changed, json.loads(server.faults.read_text())
        return lambda name: server.values.get(name, 0)

    def hang_up(self):
        self.close_connection = True
        self.connection.close()

    def refuse(self, status, body=b"", **headers):
        self.note(status, 0, -1)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def every(self, name):
        """Whether this is the n-th time, as the fault `name` says."""
        n, server = self.faults()(name), self.server
        if not n:
            return False
        with server.lock:
            server.times[name] = server.times.get(name, 0) + 1
            return server.times[name] % n == 0

    def comes_late(self):
        with self.server.lock:
            self.server.answered += 1
            return 0 < self.faults()("slow_from") <= self.server.answered

    def flips_once(self, first, n):
        """Whether this body of `n` bytes from `first` on is one of the fault `flip_once`."""
        share, server = self.faults()("flip_once"), self.server
        if server.chance() >= share:
            return False
        with server.lock:
            flipped = server.flipped.setdefault(self.path, [])
            once = all(first + n <= begin or end <= first for begin, end in flipped)
            if once:
                flipped.append((first, first + n))
            return once

    def throttled(self):
        """Whether more is asked for than the faults `at_once` and `rate` allow.  The rate has room for 100 ms."""
        fault, server = self.faults(), self.server
        with server.lock:
            if 0 < fault("at_once") < server.serving:
                return True
            if not fault("rate"):
                return False
            now = time.monotonic()
            server.free_at = max(server.free_at, now - 0.1)
            if server.free_at > now:
                return True
            server.free_at += 1 / fault("rate")
            return False

    def note(self, status, first, last):
        self.server.log.write(f"{status} {self.path} {first} {last}\n")
        self.server.log.flush()

    def note_key(self, access_key):
        server = self.server
        with server.lock:
            if access_key not in server.keys:
                server.keys.add(access_key)
                server.faults.with_suffix(".keys").write_text(" ".join(server.keys))

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        with self.server.lock:
            self.server.serving += 1
        try:
            self.answer(body=True)
        finally:
            with self.server.lock:
                self.server.serving -= 1

    def answer(self, body):
        fault, chance = self.faults(), self.server.chance
        if fault("down"):
            return self.hang_up()
        if self.throttled():
            return self.refuse(503)
        p503 = fault("p503")  # of the moment when the request came
        time.sleep((fault("latency_ms") + (fault("tail_ms") if chance() < fault("tail") else 0)) / 1e3)
        if self.comes_late():
            time.sleep(fault("slow_ms") / 1e3)
        if chance() < fault("reset"):
            return self.hang_up()
        if chance() < p503 or self.every("each_503"):
            return self.refuse(503)
        if chance() < fault("p429"):
            later = email.utils.formatdate(time.time() + 2, usegmt=True)
            return self.refuse(429, Retry_After=later if fault("retry_date") else str(fault("retry_after") or 1))
        if fault("redirect"):
            path, _, until = self.path.partition("?until=")
            if not until or fault("redirect_loop"):
                to = f"{fault('redirect_to') or ''}{path}?until={time.time() + 2}"
                return self.refuse(fault("redirect"), body=b"moved", Location=to, ETag='"of the redirect"')
            if float(until) < time.time():
                return self.refuse(403, body=b"expired")
        if fault("head_status") and not body:
            return self.refuse(fault("head_status"))
        signed_by = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        self.note_key(signed_by)
        if fault("key") and signed_by not in fault("key").split():
            return self.refuse(403, body=f"<Error><Code>{fault('code') or 'ExpiredToken'}</Code></Error>".encode())
        path = os.path.realpath(self.server.root + "/" + unquote(self.path.split("?")[0]).lstrip("/"))
        if not path.startswith(self.server.root + "/") or not os.path.isfile(path):
            return self.refuse(404)
        with open(path, "rb") as file:
            return self.send(file, os.fstat(file.fileno()), fault, body)

    def send(self, file, st, fault, body):
        size, first, last, status = st.st_size, 0, st.st_size - 1, 200
        etag = f'"{st.st_mtime_ns:x}-{size:x}"'
        if self.headers.get("If-Match", etag) not in (etag, "*"):
            return self.refuse(412)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not fault("whole"):
            first, last = int(asked[1]), min(int(asked[2] or size), size - 1)
            if first > last:
                return self.refuse(416, Content_Range=f"bytes */{size}")
            status = 206
        self.send_response(status)
        if fault("no_length"):
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(last - first + 1))
        if not fault("no_etag"):
            self.send_header("ETag", etag)
        if not fault("no_modified"):
            self.send_header("Last-Modified", email.utils.formatdate(st.st_mtime, usegmt=True))
        if status == 206 and self.server.chance() >= fault("no_range"):
            away = 1 if self.server.chance() < fault("wrong_range") else 0
            self.send_header("Content-Range", f"bytes {first + away}-{last + away}/{size}")
        self.end_headers()
        if body:
            self.note(status, first, last)
            self.send_body(file, first, last - first + 1, fault)
        return None

    def send_body(self, file, first, left, fault):
        chance = self.server.chance
        half = left // 2
        cut, stall = chance() < fault("cut"), chance() < fault("stall") or self.every("each_stall")
        flip = chance() < fault("flip") or 0 < fault("flip_over") < left or self.flips_once(first, left)
        file.seek(first)
        while left > 0:
            data = file.read(min(left, 1 << 16))
            if flip:
                data, flip = bytes([data[0] ^ 1]) + data[1:], False
            if left <= half and cut:
                self.wfile.flush()
                self.hang_up()
                return
            if left <= half and stall:
                self.wfile.flush()
                time.sleep(fault("stall_ms") / 1e3)
                stall = False
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if fault("no_length") else data)
            left -= len(data)
            if fault("bps"):
                time.sleep(len(data) / fault("bps"))
        if fault("no_length"):
            self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request, client_address):
        pass  # clients that hang up


def main(root, faults, log, address, port, *tls):
    server = Server((address, int(port)), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.root, server.faults, server.faults_ns, server.values = os.path.realpath(root), Path(faults), 0, {}
    server.lock, server.times, server.serving, server.free_at = threading.Lock(), {}, 0, 0
    server.answered, server.keys = 0, set()
    server.chance, server.flipped = random.Random(14).random, {}
    with open(log, "a") as server.log:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
