# SPDX-License-Identifier: Apache-2.0
"""The bash completion, as an interactive bash with readline uses it: what stands in the line after TAB."""

import os
import pty
import re
import shutil
import subprocess

import pytest

from helpers import tools

COMPLETION = tools.ROOT / "tools/ddpfs.bash-completion"

SHELL = r"""
PS1= PS2=
bind 'set enable-bracketed-paste off'
bind 'set bell-style none'
source "$COMPLETION"
ddpfs() { printf 'got<%s>\n' "$@"; echo 'end<>'; }
mkshard() { ddpfs "$@"; }
"""


def typed(text, before="", cwd=None):
    """The words that the program gets when `text` is typed and TAB after it."""
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    master, slave = pty.openpty()
    process = subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], stdin=slave, stdout=slave, stderr=slave,
                               cwd=cwd, env={**os.environ, "COMPLETION": str(COMPLETION), "TERM": "dumb",
                                             "HISTFILE": ""},
                               start_new_session=True, preexec_fn=tools.die_with_parent)
    os.close(slave)
    got = b""
    try:
        os.write(master, (SHELL + before + "\necho rea''dy\n").encode())
        while b"ready" not in got:
            got += os.read(master, 65536)
        os.write(master, text.encode() + b"\t\n")
        while b"end<>" not in got.rpartition(b"ready")[2]:
            got += os.read(master, 65536)
        os.write(master, b"exit\n")
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return re.findall(r"got<(.*?)>", got.rpartition(b"ready")[2].decode())


@pytest.mark.parametrize("text, last", [
    ("ddpfs mount -o or", "order="),
    ("ddpfs mount -o order=t", "order=torch"),
    ("ddpfs mount -o view=all,or", "view=all,order="),
    ("ddpfs mount -o view=all,order=to", "view=all,order=torch"),
    ("ddpfs mount -o rank=0,world=2,allow_o", "rank=0,world=2,allow_other"),
    ("ddpfs mount --options=view=all,or", "--options=view=all,order="),
    ("ddpfs exec --launcher=sl", "--launcher=slurm"),
    ("ddpfs exec --launcher sl", "slurm"),
    ("mkshard pack --container=ba", "--container=bare"),
])
@pytest.mark.parametrize("breaks", ["", "COMP_WORDBREAKS=${COMP_WORDBREAKS//=}"], ids=["default", "without ="])
def test_the_word_is_completed_and_not_doubled(text, last, breaks):
    assert typed(text, breaks)[-1].rstrip() == last


def test_a_file_behind_an_option(scratch):
    (scratch / "state.json").touch()
    assert typed("ddpfs mount -o view=all,state=sta", cwd=scratch)[-1] == "view=all,state=state.json"
