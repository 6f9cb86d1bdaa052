# SPDX-License-Identifier: Apache-2.0
"""nginx as a process, on 127.0.0.1, with the files of a directory."""

import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path

CONF = """worker_processes 1; daemon off; pid {place}/pid; error_log {place}/error.log; {user}
events {{ worker_connections 2048; }}
http {{ access_log {place}/access.log; sendfile on; tcp_nopush on; keepalive_requests 1000000;
limit_rate {rate}; server {{ listen 127.0.0.1:{port}; root {root}; }}
client_body_temp_path {place}/b; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u;
scgi_temp_path {place}/s; }}
"""


def program():
    """nginx, or None.  A user's PATH may lack its folder."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


class NginxServer:
    """`url`; rate: bytes a second of one connection, 0: no limit."""

    def __init__(self, root, place, rate=0):
        self.place = Path(place)
        self.place.mkdir()
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        user = f"user {getpass.getuser()};"
        (self.place / "conf").write_text(CONF.format(place=self.place, port=port, root=root, rate=rate, user=user))
        self.process = subprocess.Popen([program(), "-c", self.place / "conf"], stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise
                time.sleep(0.05)

    def close(self):
        self.process.terminate()  # a killed one would leave its worker, which goes on
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()
