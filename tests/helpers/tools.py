# SPDX-License-Identifier: Apache-2.0
"""Where the built programs are and how tests run them."""

import ctypes
import json
import os
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def build_dir():
    """The build under test: $DDPFS_BUILD, else build/ of this checkout."""
    return Path(os.environ.get("DDPFS_BUILD", ROOT / "build")).resolve()


def tool(name):
    """Absolute path of a built program: mkshard, ddpfs, mount.ddpfs."""
    return str(build_dir() / "tools" / name)


def die_with_parent():
    """preexec_fn: the child gets SIGTERM when the test process dies, however that happens."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def sanitizers(options):
    """Environment for a program that sanitizers, where it has some, shall treat in another way: detect_leaks=0, say."""
    return {name: f"{os.environ.get(name, '')}:{options}" for name in ("ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS")}


TRACED = sanitizers("detect_leaks=0")  # strace, ptrace: the search for leaks traces, too
CRASHING = sanitizers("handle_segv=0:handle_sigbus=0:handle_abort=0")  # by a signal from outside: nothing to report
MEASURED = sanitizers("quarantine_size_mb=1")  # memory is measured: what has been freed shall not pile up


def run(argv, check=True, text=True, env=None, timeout=600, **kwargs):
    """Runs a program and returns the CompletedProcess; a failure shows what it printed.

    The timeout only keeps a hang from stopping the whole run; no test asserts a time."""
    full_env = {**os.environ, **{k: str(v) for k, v in (env or {}).items()}}
    given = kwargs.pop("input", None)
    stdin = kwargs.pop("stdin", subprocess.DEVNULL) if given is None else subprocess.PIPE
    process = subprocess.Popen([str(a) for a in argv], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=text,
                               env=full_env, preexec_fn=die_with_parent, **kwargs)
    try:
        stdout, stderr = process.communicate(given, timeout)
    except BaseException:
        process.terminate()  # a launcher ends its ranks, which are in sessions of their own
        try:
            process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()  # not for the ends of its pipes, which others may hold
            process.stdout.close()
            process.stderr.close()
        raise
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, argv))}\nexit code {done.returncode}\n"
                             f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}")
    return done


def waits_for_store(*argv, **kwargs):
    """What a program has printed when it says that it waits for its store, for which it would try again for ten seconds."""
    with subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, preexec_fn=die_with_parent, **kwargs) as process:
        said = ""
        for line in process.stderr:
            said += line
            if "waiting for the store: " in line:
                process.terminate()
                return said
        raise AssertionError(f"{' '.join(map(str, argv))}\ndid not wait for a store:\n{said}")


def mkshard(*args, **kwargs):
    return run([tool("mkshard"), *args], **kwargs)


def ddpfs(*args, **kwargs):
    return run([tool("ddpfs"), *args], **kwargs)


def stat_json(mountpoint):
    """The counters of a mount as `ddpfs stat --json` prints them."""
    return json.loads(ddpfs("stat", "--json", mountpoint).stdout)
