# SPDX-License-Identifier: Apache-2.0
"""One reader, one pass, one row."""
import contextlib
import json
import os
import statistics
import subprocess
import time

import cgroup
from stores import HERE, Skip, stays, store


WARM_PASSES = 4


class Child:
    """A reader in the cgroup: started, imported and waiting before the caches are dropped."""

    def __init__(self, env, cmd, environ=None):
        self.env = env
        self.err = open(f"{env.scratch}/reader.log", "w+")
        self.p = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err, text=True,
                                  preexec_fn=env.cg.enter("/reader"), env={**os.environ, **(environ or {})})
        self._until(lambda line: line.strip() == "ready")

    def _until(self, wanted):
        while line := self.p.stdout.readline():
            if wanted(line):
                return line
        self.err.seek(0)
        raise RuntimeError(f"reader ended early, exit {self.p.wait(10)}: {self.err.read()[-300:].strip()}")

    def start(self):
        self.p.stdin.write("go\n")
        self.p.stdin.flush()

    def result(self):
        r = json.loads(self._until(lambda line: line.startswith("{")))  # some libraries print, too
        if r["failures"]:
            self.err.seek(0)
            raise RuntimeError(f"{r['failures']} files failed: {self.err.read()[:200].strip()}")
        return r

    def one_pass(self, mounts=None, meanwhile=None):
        """The first pass over fresh mounts begins with them: its time when the last mount command returned, its bytes and
        processor time before the first, so that nothing the mounts do beforehand is free.  `meanwhile` is called while the
        child reads."""
        def counters():
            return {**self.env.cg.counters(), **(mounts.requests() if mounts else {})}
        before, lead = counters(), 0
        if mounts and mounts.fresh:
            mounts.fresh = False
            before.update(mounts.before)
            lead = time.monotonic() - mounts.returned
        self.start()
        if meanwhile:
            meanwhile()
        r = self.result()
        after = counters()
        self.dev_before = before["dev_bytes"]
        self.consumed = r["bytes"]
        r["sec"] += lead
        r["first_s"] += lead
        return {**r, **{k: after[k] - before[k] for k in before}}

    def read_for(self, s):
        """(bytes taken from the device since the last pass began, bytes of them that are read ahead for the next epoch)"""
        if not s.mounted_by_ddpfs:
            return self.env.cg.counters()["dev_bytes"] - self.dev_before, 0
        self.env.cg.settle()
        return self.env.cg.counters()["dev_bytes"] - self.dev_before, s.ahead_bytes(self.consumed)

    def close(self):
        self.p.stdin.close()
        try:
            self.p.wait(30)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        self.p.stdout.close()
        self.err.close()


def c_reader(env, where, *options, threads=1):
    """reader.c over a directory, or over a list when `where` is a file name."""
    kind = "-d" if os.path.isdir(where) else "-l"
    return [env.tools.reader, "-t", str(threads), *map(str, options), kind, where]


def py_reader(env, kind, where):
    return [env.tools.python, f"{HERE}/loaders.py", "read", kind, where]


@contextlib.contextmanager
def reading(env, cmd, environ=None):
    child = Child(env, cmd, environ)
    try:
        yield child
    finally:
        child.close()


class Mounts:
    """The stores of a repetition while they are mounted."""

    def __init__(self, env, stores):
        self.env, self.stores, self.fresh = env, stores, True
        self.fuse = cgroup.FuseRequests() if any(s.mounted_by_ddpfs for s in stores) else None

    def mount(self):
        self.before = self.env.cg.counters()
        roots = [s.mount(self.env.cg) for s in self.stores]
        self.returned = time.monotonic()
        if self.fuse:
            self.fuse.watch([r for r, s in zip(roots, self.stores) if s.mounted_by_ddpfs])

    def requests(self):
        return self.fuse.counters() if self.fuse else {}

    def done(self):
        if self.fuse:
            self.fuse.done()
        for s in self.stores:
            s.umount()


@contextlib.contextmanager
def mounted(env, *stores):
    """Mounts and, at the end, unmounts, whatever happens."""
    mounts = Mounts(env, stores)
    try:
        mounts.mount()
        yield mounts
    finally:
        mounts.done()


def reader_command(env, s, how):
    """The command that reads store s.  A mount's directory is there before it is mounted."""
    if how == "direct":
        return c_reader(env, env.dataset.write_list("", [p.lstrip("/") for p in s.shards()]), "-D", threads=4)
    if how == "lib":
        return py_reader(env, s.lib, s.packed)
    if not s.listed:
        os.makedirs(s.mnt, exist_ok=True)
        if how == "torch":
            return py_reader(env, s.lib, s.mnt)
        return c_reader(env, s.mnt, "-p", 1 + WARM_PASSES, "-k", threads=int(how[1:]))
    root = env.dataset.path if s.name == "ext4" else s.mnt
    names = env.dataset.shuffled()
    if how == "torch":
        return py_reader(env, s.lib, env.dataset.write_list(root, names))
    return c_reader(env, env.dataset.write_list(root, names[::2]), "-p", 1 + WARM_PASSES, threads=int(how[1:]))


def warm_pass(env, s, child, mounts):
    """The first pass that needs nothing from the device."""
    for _ in range(WARM_PASSES):
        env.cg.settle()
        r = child.one_pass(mounts)
        if r["dev_bytes"] < 0.005 * r["bytes"]:
            break
    return r


def repetition(env, row):
    name, how = row.split(":")
    s = store(name, env.tools, env.dataset)
    with reading(env, reader_command(env, s, how), s.environ() if how == "torch" else None) as child:
        env.cg.recycle()
        with mounted(env, s) as mounts:
            r = {"cold": child.one_pass(mounts)}
            r["cold"]["dev_bytes"], r["cold"]["ahead_bytes"] = child.read_for(s)
            if how[0] == "c" and stays(name):
                r["warm"] = warm_pass(env, s, child, mounts)
            return r


def repeat(env, row, so_far, keep):
    """One more repetition of a row: {"row", "pack", "reps": [{"cold": {...}, "warm": {...}}, ...]}, or with "skipped" or
    "failed" and the reason."""
    name, how = row.split(":")
    res = so_far or {"row": row, "reps": []}
    if "skipped" in res or "failed" in res:
        return res
    try:
        if so_far is None:
            if how in ("torch", "lib"):
                env.tools.need_python("torch")
            res["pack"] = store(name, env.tools, env.dataset).prepare()
        r = repetition(env, row)
        if keep:
            res["reps"].append(r)
    except Skip as e:
        res["skipped"] = str(e)
    except (RuntimeError, OSError, ValueError, subprocess.CalledProcessError) as e:
        res["failed"] = str(e)
    return res


def median(reps, which, value):
    """(median, min, max) of value(pass) over the repetitions."""
    values = [value(r[which]) for r in reps]
    return statistics.median(values), min(values), max(values)
