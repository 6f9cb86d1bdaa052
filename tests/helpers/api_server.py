# SPDX-License-Identifier: Apache-2.0
"""The part of Kubernetes' API server that the CSI driver asks, over TLS on 127.0.0.1, in a thread of the test."""

import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "secret-token.of-a_test"
HOST = "127.0.0.1"


def variable(name, value=None, **source):
    """An entry of a container's env."""
    return {"name": name, "value": value} if value is not None else {"name": name, "valueFrom": source}


def field(path):
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def make_certificate(place):
    """A certificate that signs itself, for HOST; in place/ca.crt, its key in place/key.pem."""
    place.mkdir()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", place / "key.pem", "-out", place / "ca.crt", "-days", "2", "-subj", "/CN=kubernetes",
                    "-addext", f"subjectAltName=IP:{HOST}"], check=True, capture_output=True)
    return place


class FakeApiServer:
    """`account` is the service account's directory, `environment` what the kubelet sets in the driver's container."""

    def __init__(self, place):
        self.account = make_certificate(place)
        self.token_file = self.account / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.pods = {}  # path of the API: the pod
        self.paths = []  # that were asked for
        self.status, self.body = None, None  # instead of the right ones
        self.silent = threading.Event()  # it takes requests and does not answer until close()
        self._end = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                fake.paths.append(self.path)
                if fake.silent.is_set():
                    fake._end.wait()
                    return
                status, body = fake.answer(self.path, self.headers["Authorization"])
                self.send_response(status)
                self.send_header("Content-Length", len(body))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # a client that does not trust the certificate hangs up

        self._server = Server((HOST, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.account / "ca.crt", self.account / "key.pem")
        # The thread of the connection shakes hands, not the one that accepts.
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.environment = {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": self._server.server_port}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, path, authorization):
        if authorization != f"Bearer {TOKEN}":
            return 401, b"{}"
        if self.status or self.body:
            return self.status or 200, self.body or b"{}"
        if path not in self.pods:
            return 404, b'{"kind": "Status", "reason": "NotFound"}'
        return 200, json.dumps(self.pods[path]).encode()

    def add(self, name, annotations=None, labels=None, env=(), namespace="team", uid=None):
        """A pod with one container."""
        pod = {"kind": "Pod", "metadata": {"namespace": namespace, "name": name, "uid": uid or f"uid-of-{name}"},
               "spec": {"containers": [{"name": "trainer", "env": list(env)}]}}
        for field, values in ("annotations", annotations), ("labels", labels):
            if values is not None:  # the API leaves out what is empty
                pod["metadata"][field] = values
        self.pods[f"/api/v1/namespaces/{namespace}/pods/{name}"] = pod
        return pod

    def close(self):
        self._end.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
