# SPDX-License-Identifier: Apache-2.0
"""A trainer of one rank that believes nothing: lists, reads every file, compares it with the source, lists again.

    rank.py SOURCE MOUNT RANK WORLD

For each epoch one line of JSON on stdout: epoch, the paths it was dealt, errors (path and errno), wrong (paths), and the longest
time in ms between two files.  Ends after the epoch in which its stdin was closed."""

import json
import os
import sys
import threading
import time
from pathlib import Path

source, mount = Path(sys.argv[1]), sys.argv[2]
closed = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
expected = {str(p.relative_to(source)): p.read_bytes() for p in source.rglob("*") if p.is_file()}


def read(path):
    """Without open()'s isatty(): the reads come as fast as they can, most of them from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 17):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


while True:
    result = {"epoch": None, "paths": [], "errors": [], "wrong": [], "pause_ms": 0, "files": 0}
    try:
        names = sorted(os.listdir(mount))
    except OSError as e:
        names = []
        result["errors"].append(["listing", e.errno])
    last = time.monotonic()
    for name in names:
        epoch, _, path = name.split("-", 2)
        path = path.replace("%2F", "/").replace("%25", "%")
        result["epoch"] = int(epoch)
        result["paths"].append(path)
        try:
            if read(f"{mount}/{name}") != expected[path]:
                result["wrong"].append(path)
        except OSError as e:
            result["errors"].append([path, e.errno])
        now = time.monotonic()
        result["pause_ms"] = max(result["pause_ms"], int((now - last) * 1000))
        last = now
        result["files"] += 1
    print(json.dumps(result), flush=True)
    if not names or closed.is_set():
        break
