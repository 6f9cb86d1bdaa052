# SPDX-License-Identifier: Apache-2.0
"""A store whose name has no address, when a mount begins and later.

Mounts are made in a mount namespace with its own /etc/hosts, and with a resolver that nobody answers for.  So no test
asks the network."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from helpers import datasets, tools
from helpers.waiting import PATIENCE_S, wait_until

NAME = "store.ddpfs.invalid"  # RFC 6761: no resolver knows it
AWAY_S = float(os.environ.get("DDPFS_AWAY_S", "3"))  # how long it has no address
CACHED_S = 60  # libcurl keeps an address for so long (CURLOPT_DNS_CACHE_TIMEOUT(3))


class Names:
    """`within`: words in front of a command that runs with the names of `know`."""

    def __init__(self, scratch):
        if os.geteuid() != 0:
            pytest.skip("a mount namespace of its own needs root")
        self.hosts = scratch / "hosts"
        self.know(False)
        (scratch / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        (scratch / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        script = "".join(f"mount --bind {scratch}/{name} /etc/{name}; " for name in ("hosts", "resolv.conf", "nsswitch.conf"))
        self.process = subprocess.Popen(["unshare", "--mount", "sh", "-ec", f"{script} echo there; exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "there\n":
            pytest.skip(f"no mount namespace with names of its own: {self.process.communicate()[1].strip()}")
        self.within = ("nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt", "--")

    def know(self, known):
        """Whether the store's name has an address."""
        with open(self.hosts, "w") as file:  # the same inode: it is mounted elsewhere
            file.write("127.0.0.1 localhost\n" + (f"127.0.0.1 {NAME}\n" if known else ""))

    def path(self, path):
        """A file of the namespace."""
        return Path(f"/proc/{self.process.pid}/root{path}")

    def close(self):
        self.process.communicate()


@pytest.fixture
def names(scratch):
    with contextlib.closing(Names(scratch)) as one:
        yield one


@pytest.fixture
def stored(build_dir, scratch, http_store):
    """The URL of a dataset, by name, and its files."""
    files = datasets.write_tree(scratch / "source", classes=2, per_class=50, sizes=(20_000, 31_111))
    tools.mkshard("pack", scratch / "source", http_store.root / "train")
    return f"http://{NAME}:{http_store.port}/train", files


@pytest.fixture
def mounted(names, stored, scratch):
    """A mount that was made while the name had an address: its path, and its supervisor."""
    at = scratch / "mnt"
    at.mkdir()
    names.know(True)
    with subprocess.Popen([*names.within, tools.tool("ddpfs"), "mount", "-f", "-o", "view=all,layout=tree,memory=64M",
                           stored[0], at], stderr=subprocess.PIPE, text=True, preexec_fn=tools.die_with_parent) as process:
        try:
            wait_until(lambda: process.poll() is not None or names.path(at / ".ddpfs/stats.json").exists(), "a mount")
            assert process.poll() is None, process.communicate()[1]
            yield names.path(at), process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=PATIENCE_S)
            process.kill()


def stats(process):
    """The counters of a mount; {}: its server does not answer yet, as it waits for the store before it takes the copy of
    the index."""
    done = tools.ddpfs("stat", "--json", f"@{process.pid}", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def read_while_it_has_no_address(names, path, process, file, data, seconds):
    """A reader begins without an address, waits, says why, and gets the bytes after `seconds`."""
    with subprocess.Popen(["md5sum", path / file], stdout=subprocess.PIPE, text=True) as reader:
        wait_until(lambda: "resolve host" in stats(process).get("store_error", ""), "a reason in the statistics")
        time.sleep(seconds)
        assert reader.poll() is None, "the reader did not wait"
        names.know(True)
        assert reader.communicate(timeout=PATIENCE_S)[0].split()[0] == hashlib.md5(data).hexdigest()
    assert stats(process)["errors"] == 0


@pytest.mark.parametrize("command", ["mount", "exec"])
def test_a_mount_of_a_name_without_an_address_says_why(names, stored, scratch, command):
    """Once while it tries again, and once at the end."""
    (scratch / "mnt").mkdir()
    more = ["--", "true"] if command == "exec" else []
    done = tools.run([*names.within, tools.tool("ddpfs"), command, "-o", "view=all", stored[0], scratch / "mnt", *more],
                     check=False)
    why = f"{stored[0]}/index.ddpfs: Could not resolve host: {NAME}"
    said = [line for line in done.stderr.splitlines() if "resolve" in line]
    assert done.returncode != 0 and done.stdout == "" and len(said) == 2, done.stderr
    assert said[0] == f"ddpfs: warning: {stored[0]}: waiting for the store: {why}"
    assert said[1].startswith(f"ddpfs: {why}; tried ") and said[1] == done.stderr.splitlines()[-1]


def test_readers_wait_until_the_name_has_an_address(names, stored, mounted):
    """The name is lost before the first shard is asked for."""
    path, process = mounted
    file, data = next(iter(stored[1].items()))
    names.know(False)
    read_while_it_has_no_address(names, path, process, file, data, AWAY_S)
    assert {name: (path / name).read_bytes() for name in stored[1]} == stored[1]


def test_a_server_that_begins_without_the_address_goes_on(names, stored, mounted):
    path, process = mounted
    first, *_, last = stored[1]
    assert (path / first).read_bytes() == stored[1][first]
    names.know(False)
    os.kill(stats(process)["server_pid"], signal.SIGKILL)
    killed = time.monotonic()
    wait_until(lambda: stats(process).get("restarts") == 1, "a successor")
    assert time.monotonic() - killed < 5, "it waits for the store before it takes the copy of the index"
    read_while_it_has_no_address(names, path, process, last, stored[1][last], AWAY_S)


@pytest.mark.skipif(AWAY_S < CACHED_S, reason=f"libcurl knows the address for {CACHED_S} s: DDPFS_AWAY_S={CACHED_S}")
def test_readers_wait_when_the_address_is_forgotten(names, stored, mounted, http_store):
    path, process = mounted
    first, second, *_, last = stored[1]
    assert (path / first).read_bytes() == stored[1][first]
    http_store.set(down=1)
    names.know(False)
    with subprocess.Popen(["md5sum", path / second], stdout=subprocess.DEVNULL) as early:  # its requests end all connections
        time.sleep(CACHED_S + 5)
        http_store.set()
        read_while_it_has_no_address(names, path, process, last, stored[1][last], 1)
        assert early.wait(timeout=PATIENCE_S) == 0
