# SPDX-License-Identifier: Apache-2.0
"""Lines of a server's log on their way: a server may reach no socket, so its supervisor writes them."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from helpers import tools
from helpers.private import Private
from helpers.waiting import wait_until

FLOOD = 20_000


class Syslog:
    """The other end of /dev/log: `text` is what has come so far.  It is read at once: the queue takes ten lines, and a program that
    finds it full waits for nobody."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.text = ""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        while line := self.socket.recv(65536):
            self.text += line.decode() + "\n"

    def wait_for(self, words):
        return wait_until(lambda: next((line for line in self.text.splitlines() if words in line), None), words)

    def close(self):
        self.socket.shutdown(socket.SHUT_RD)
        self.reader.join()
        self.socket.close()


@pytest.fixture
def syslog(scratch):
    log = Syslog(scratch / "log")
    yield log
    log.close()


@pytest.fixture
def background(build_dir, scratch, syslog):
    """background(script): run beside a syslog; the end of the script is the end of its mounts."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    private = Private(scratch)
    prologue = f"""
        mkdir dev mnt
        mount -t tmpfs tmpfs dev
        cp -a /dev/null /dev/urandom dev
        mknod -m 666 dev/fuse c 10 229
        ln -s {scratch}/log dev/log
        mount --bind dev /dev
        """
    return lambda script: private.run(prologue + script)


def damage(dataset, data):
    for shard in dataset.glob("shard-*"):
        raw = shard.read_bytes()
        if data in raw:
            shard.chmod(0o644)
            shard.write_bytes(raw.replace(data, data[:300] + bytes([data[300] ^ 1]) + data[301:]))
            return
    raise AssertionError("no shard has it")


def test_a_line_of_a_server_in_the_background_comes_to_syslog(background, pack, tree, syslog):
    dataset = pack(tree[0])
    victim = next(path for path, data in sorted(tree[1].items()) if len(data) > 600)
    damage(dataset, tree[1][victim])
    said = background(f"""
        "$ddpfs" mount -o view=all,layout=tree {dataset} mnt
        ! cat mnt/{victim} 2>/dev/null
        "$ddpfs" stat --json mnt
        "$ddpfs" umount mnt
        """).stdout
    line = syslog.wait_for(victim)
    assert line.startswith(f"<27>ddpfs[{json.loads(said)['pid']}]: '{victim}' in shard '"), line


def test_the_last_words_of_a_server_come_to_syslog(background, mount, pack, scratch, syslog):
    """Its disk, another mount, fails: an index of several blocks has pages that it has not looked at."""
    root = scratch / "wide"
    for i in range(2000):
        (root / f"class{i // 100:02}").mkdir(parents=True, exist_ok=True)
        (root / f"class{i // 100:02}" / f"item{i:04}.txt").write_bytes(b"%d" % i)
    below = mount(pack(pack(root), "--container=bare", "--common="), "view=all,layout=tree,watchdog=0")
    dataset = below.path
    background(f"""
        "$ddpfs" mount -o view=all,layout=tree,timeout=2 {dataset} mnt
        exec 9<{dataset}/index.ddpfs
        kill -9 {below.server_pid()} {below.process.pid}
        {sys.executable} -c 'import os; os.posix_fadvise(9, 0, 0, os.POSIX_FADV_DONTNEED)'
        cat mnt/*/* mnt/nothing >/dev/null 2>&1 || true
        """)
    line = syslog.wait_for("cannot be read any more")
    assert line.startswith("<27>ddpfs[") and f"{dataset}/index.ddpfs" in line and "mount again" in line
    syslog.wait_for("died of signal 7")
    assert syslog.text.index("cannot be read any more") < syslog.text.index("died of signal 7")


@pytest.fixture
def flooding(scratch):
    """A library with which a server, before it answers, says the same line very often."""
    cc = shutil.which("cc")
    if not cc:
        pytest.skip("no C compiler")
    (scratch / "flood.c").write_text(f"""
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <string.h>
        #include <sys/socket.h>
        #include "fs/supervise/channel.h"
        int fuse_session_mount(void *session, const char *mountpoint)
        {{
            int (*real)(void *, const char *) = (int (*)(void *, const char *))dlsym(RTLD_NEXT, __func__);
            struct fs_channel_message message = {{ .kind = FS_CHANNEL_LOG, .code = 1 }};
            strcpy(message.text, "flood \\x1b[2J\\n<0>of lines");
            for (int channel = 3; channel < 100; channel++) {{
                int type = 0;
                socklen_t len = sizeof(type);
                getsockopt(channel, SOL_SOCKET, SO_TYPE, &type, &len);
                for (int i = 0; type == SOCK_SEQPACKET && i < {FLOOD}; i++)
                    send(channel, &message, sizeof(message), MSG_NOSIGNAL);
            }}
            return real(session, mountpoint);
        }}
        """)
    subprocess.run([cc, "-shared", "-fPIC", "-I", tools.ROOT, "-o", scratch / "flood.so", scratch / "flood.c", "-ldl"],
                   check=True)
    return scratch / "flood.so"


def test_a_server_that_floods_its_log_is_cut_short(mount, pack, tree, flooding):
    m = mount(pack(tree[0]), "view=all,layout=tree",
              env={"LD_PRELOAD": str(flooding), **tools.sanitizers("verify_asan_link_order=0")})
    assert all((m.path / path).read_bytes() == data for path, data in tree[1].items())
    m.unmount()
    lines = [line for line in m.log().splitlines() if "of lines" in line]
    assert lines and set(lines) == {r"ddpfs: warning: flood \x1b[2J\x0a<0>of lines"}
    left = sum(int(n) for n in re.findall(r": (\d+) more lines of its server's log were left out", m.log()))
    assert left > 0 and len(lines) + left == FLOOD
