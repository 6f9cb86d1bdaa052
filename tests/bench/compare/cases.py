# SPDX-License-Identifier: Apache-2.0
"""The bars that are not a row of the table: each case takes the environment and returns table.Check objects."""
import contextlib
import os
import random
import statistics
import subprocess
import sys
import threading
import time

import measure
import replacement
from measure import c_reader, mounted, reading
from stores import TOP, store
from table import Check, gbps

MIB = 1 << 20
DEMAND = 0.85
DELAY_ENVIRON = "DDPFS_TEST_READ_DELAY_US"


def _ddpfs(env, name, **options):
    s = store(name, env.tools, env.dataset, **options)
    s.prepare()
    return s


def _orders(env):
    return ("full",) if env.dataset.kind == "A" else ("full", "chunk")


def _cold(env, s, *options, cmd=None):
    """One cold pass of the C reader, 1 thread, over store s."""
    os.makedirs(s.mnt, exist_ok=True)
    with reading(env, cmd or c_reader(env, s.mnt, *options)) as child:
        env.cg.recycle()
        with mounted(env, s) as mounts:
            return child.one_pass(mounts)


def _median(values):
    return statistics.median(list(values))


def _bandwidth(env, name, **options):
    """bytes/s of one cold mount and one reader thread: the measured bandwidth that a demand is a part of."""
    _cold(env, _ddpfs(env, name, **options))  # warm-up
    return 1e9 * _median(gbps(_cold(env, _ddpfs(env, name, **options))) for _ in range(env.reps))


# --- a reader that computes ------------------------------------------------------------------------------------------

def demand85(env):
    """Misses after the first window: READ requests from the moment on when a window's bytes were asked for."""
    out = []
    for order in _orders(env):
        name, window = f"ddpfs-{order}", 256 * MIB
        rate = DEMAND * _bandwidth(env, name, memory=window)
        shares, early = [], []
        for _ in range(env.reps):
            s = _ddpfs(env, name, memory=window)
            with reading(env, c_reader(env, s.mnt, "-r", rate)) as child:
                env.cg.recycle()
                with mounted(env, s) as mounts:
                    before = mounts.requests()["fuse_read"]
                    child.start()
                    time.sleep(min(window, env.dataset.bytes / 8) / rate)
                    first = mounts.requests()["fuse_read"]
                    r = child.result()
                    shares.append((mounts.requests()["fuse_read"] - first) / r["files"])
                    early.append(first - before)
        out.append(Check(f"order={order}: READs per open after the first window, reader demands {rate / 1e6:.0f} MB/s",
                         _median(shares), "<=", 0.005, f"max {max(shares):.4f}, {_median(early):.0f} before"))
    return out


def boundaries(env):
    """5 epochs one after the other, listing each: waiting is what they took longer than the computing demanded."""
    out = []
    for order in _orders(env):
        name = f"ddpfs-{order}"
        rate = DEMAND * _bandwidth(env, name)
        s = _ddpfs(env, name)
        with reading(env, c_reader(env, s.mnt, "-c", "-p", 5, "-r", rate)) as child:
            env.cg.recycle()
            with mounted(env, s):
                child.start()
                passes = [child.result() for _ in range(5)]
        sec = sum(p["sec"] for p in passes)
        waited = 1 - sum(p["ideal_s"] for p in passes) / sec
        gaps = [p["gap_ms"] / p["batch_ms"] for p in passes[1:]]
        out.append(Check(f"order={order}: share of the time waited, 5 epochs", waited, "<=", 0.01,
                         f"{rate / 1e6:.0f} MB/s demanded"))
        out.append(Check(f"order={order}: longest gap at a boundary / median batch time", max(gaps), "<=", 2,
                         f"batch {passes[0]['batch_ms']:.2f} ms, listing {1e3 * max(p['list_s'] for p in passes[1:]):.1f} ms"))
    return out


def first_sample(env):
    """From the mount command's return to the first file of the listing read."""
    out = []
    for order in _orders(env):
        times = []
        for _ in range(max(env.reps, 5)):
            s = _ddpfs(env, f"ddpfs-{order}")
            env.cg.recycle()
            with mounted(env, s):
                t0 = time.monotonic()
                with os.scandir(s.mnt) as entries:
                    path = next(entries).path
                    with open(path, "rb") as f:
                        f.read()
                times.append(1e3 * (time.monotonic() - t0))
        out.append(Check(f"order={order}: first sample after mount returns, ms", _median(times), "<=", 50,
                         f"max {max(times):.1f}"))
    return out


def python(env):
    """open() and read() of resident files in Python, against the same on warm loose files."""
    rates = {}
    for name in ("ext4", f"ddpfs-{_orders(env)[-1]}-resident"):
        s = store(name, env.tools, env.dataset)
        s.prepare()
        where = s.mnt
        if name == "ext4":
            where = env.dataset.write_list(env.dataset.path, env.dataset.shuffled()[::2])
        else:
            os.makedirs(where, exist_ok=True)
        runs = []
        for _ in range(env.reps + 1):
            with reading(env, [sys.executable, f"{measure.HERE}/loaders.py", "read", "plain", where], s.environ()) as child:
                env.cg.recycle()
                with mounted(env, s):
                    for _ in range(1 + measure.WARM_PASSES):
                        r = child.one_pass()
                        env.cg.settle()
                        if r["dev_bytes"] < 0.005 * r["bytes"]:
                            break
                runs.append(gbps(r))
        rates[s.form()] = _median(runs[1:])
    ours, theirs = rates["shards-tar"], rates["ext4"]
    return [Check("open(path, 'rb').read() in Python, resident / warm ext4", ours / theirs, ">=", 0.75,
                  f"{ours:.3f} / {theirs:.3f} GB/s")]


# --- stores that are slow ----------------------------------------------------------------------------------------------

def delay20ms(env):
    out = []
    for order in _orders(env):
        s = _ddpfs(env, f"ddpfs-{order}", memory="512M")
        seconds = {}
        for delay_us in (0, 20_000):
            with _environ(DELAY_ENVIRON, str(delay_us or "")):
                runs = [_cold(env, s) for _ in range(env.reps + 1)][1:]
            if min(r["first_s"] for r in runs) < delay_us / 1e6:
                raise RuntimeError(f"the mount does not delay its reads: it does not know {DELAY_ENVIRON}")
            seconds[delay_us] = _median(r["sec"] for r in runs)
        out.append(Check(f"order={order}: epoch with every read answered after 20 ms / without",
                         seconds[20_000] / seconds[0], "<=", 1.10, f"{seconds[20_000]:.2f} / {seconds[0]:.2f} s"))
    return out


@contextlib.contextmanager
def _environ(name, value):
    old = os.environ.pop(name, None)
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if old is not None:
            os.environ[name] = old


def limited(env):
    """A store that answers 500 requests a second: order=chunk against webdataset."""
    rates = {}
    env.tools.need_python("webdataset")
    for row in ("ddpfs-chunk:c1", "wds:lib"):
        name, how = row.split(":")
        s = store(name, env.tools, env.dataset)
        s.prepare()
        runs = []
        for _ in range(env.reps):
            with reading(env, measure.reader_command(env, s, how)) as child:
                env.cg.recycle()
                env.cg.throttle(0, 500)
                try:
                    with mounted(env, s) as mounts:
                        r = child.one_pass(mounts)
                finally:
                    env.cg.throttle(0, 0)
            runs.append(r["files"] / r["sec"])
        rates[name] = _median(runs)
    return [Check("500 requests/s: order=chunk / webdataset", rates["ddpfs-chunk"] / rates["wds"], ">=", 1.0,
                  f"{rates['ddpfs-chunk']:.0f} / {rates['wds']:.0f} files/s")]


def deal_block(env):
    """8 ranks as if on separate hosts, one after the other, each from a cold cache."""
    read = delivered = 0
    for rank in range(8):
        s = _ddpfs(env, "ddpfs-chunk", world=8, rank=rank, deal="block", memory="64M")
        with reading(env, c_reader(env, s.mnt)) as child:
            env.cg.recycle()
            env.cg.throttle(0, 500)
            try:
                with mounted(env, s) as mounts:
                    r = child.one_pass(mounts)
                    device, ahead = child.read_for(s)
            finally:
                env.cg.throttle(0, 0)
        read += device
        delivered += r["bytes"] + ahead
    return [Check("deal=block, order=chunk, 8 ranks, 500 requests/s: bytes read / delivered", read / delivered, "<=", 1.3)]


# --- orders that are not ours, several mounts -------------------------------------------------------------------------

def foreign(env):
    """A permutation that ddpfs does not know, through a tree that shows every file."""
    names = env.dataset.shuffled()
    random.Random(99).shuffle(names)
    names = names[::2]
    rates = {}
    for what, sub in (("ext4", ""), ("mount", ""), ("unwatched", "/.ddpfs/all")):
        runs = []
        for rep in range(env.reps + 1):
            if what == "ext4":
                s, root = store("ext4", env.tools, env.dataset), env.dataset.path
            else:
                s = _ddpfs(env, "ddpfs-full", rank=None, world=None, view="all", layout="tree")
                root = s.mnt + sub
            runs.append(gbps(_cold(env, s, cmd=c_reader(env, env.dataset.write_list(root, names)))))
        rates[what] = _median(runs[1:])
    return [Check("an order that ddpfs does not know, cold / loose ext4", rates["mount"] / rates["ext4"], ">=", 0.9,
                  f"{rates['mount']:.3f} / {rates['ext4']:.3f} GB/s"),
            Check("the same / on demand (.ddpfs/all)", rates["mount"] / rates["unwatched"], ">=", 1.0)]


def foreign_torch(env):
    """PyTorch with 2 workers and samplers that ddpfs cannot know, over a tree of all files, beside the same on loose
    files.  Cold and second epochs of pairs, taken in turn in the same memory cgroup."""
    everything = env.dataset.bytes + len(env.dataset.files) * 1500
    needed = (int(1.25 * everything) >> 20) + 64 + 1024  # the budget that holds all, and PyTorch's three processes
    if env.cg.limit_bytes < needed * MIB:
        raise RuntimeError(f"foreign-torch holds the dataset in memory: give --limit {needed} or more")
    names = [name for name, _ in env.dataset.files]
    out = []
    for kind in ("numpy", "weighted"):
        for what, part, bars in (("fits", 1.25, (1.4, 0.95)), ("is 4 times the budget", 0.25, (0.9, None))):
            ratios, cpus, again = [[], []], [], []
            for rep in range(env.reps + 1):
                rates, cpu = [], []
                for mount in (False, True):
                    s = store("ext4", env.tools, env.dataset)
                    root, environ = env.dataset.path, {}
                    if mount:
                        s = _ddpfs(env, "ddpfs-full", rank=None, world=None, view="all", layout="tree",
                                   memory=int(part * everything) + (64 * MIB if part > 1 else 0))
                        root, environ = s.mnt, s.environ()
                        os.makedirs(s.mnt, exist_ok=True)
                    listed = env.dataset.write_list(root, names, f"list-{kind}-{mount}")
                    with reading(env, measure.py_reader(env, kind, listed), environ) as child:
                        env.cg.recycle()
                        with mounted(env, s) as mounts:
                            passes = [child.one_pass(mounts), child.one_pass()]
                    rates.append([gbps(r) for r in passes])
                    cpu.append(1e6 * passes[0]["cpu"] / passes[0]["files"])
                    again.append(passes[0]["again"] / passes[0]["files"])
                if rep:  # the first round is discarded
                    for epoch in (0, 1):
                        ratios[epoch].append(rates[1][epoch] / rates[0][epoch])
                    cpus.append(cpu)
            note = "processor us a file, ext4 and mount: " + ", ".join(f"{_median(c):.0f}" for c in zip(*cpus))
            if any(again):
                note += f"; {_median(again):.0%} of epoch 1 had been drawn before: in memory on ext4"
            for epoch, bar in enumerate(bars):
                if bar:
                    out.append(Check(f"{kind}, the dataset {what}, epoch {epoch + 1} / loose ext4",
                                     _median(ratios[epoch]), ">=", bar, note))
    return out


# --- orders that are not ours, but known ------------------------------------------------------------------------------

def _announced(env, s, paths):
    """One cold pass of the C reader over the paths, which are announced first, within the time."""
    listed = env.dataset.write_list(s.mnt, paths, "list-announced")
    os.makedirs(s.mnt, exist_ok=True)
    with reading(env, c_reader(env, listed)) as child:
        env.cg.recycle()
        with mounted(env, s) as mounts:
            env.cg.run("/daemon", [s.tools.ddpfs, "ctl", s.mnt, "follow", listed], stdout=subprocess.DEVNULL)
            return child.one_pass(mounts)


def announced(env):
    """The files of a rank in ddpfs's own order: through the rank's mount, and announced to a mount of all files.  The
    latter also over a store that answers each read after 20 ms."""
    out = []
    for order in _orders(env):
        own = _ddpfs(env, f"ddpfs-{order}", memory="512M")
        told = _ddpfs(env, f"ddpfs-{order}", tag="-announced", rank=None, world=None, view="all", layout="tree",
                      memory="512M")
        with mounted(env, own):
            paths = own.epoch_list(0)
        seconds = {"own": [], "": [], "20000": []}
        for _ in range(env.reps + 1):  # the first round is discarded
            seconds["own"].append(_cold(env, own)["sec"])
            for delay_us in ("", "20000"):
                with _environ(DELAY_ENVIRON, delay_us):
                    seconds[delay_us].append(_announced(env, told, paths)["sec"])
        ours, now, late = (_median(runs[1:]) for runs in seconds.values())
        out.append(Check(f"order={order}, announced / the same as ddpfs's own order, cold", ours / now, ">=", 0.97,
                         f"{now:.2f} / {ours:.2f} s"))
        out.append(Check(f"order={order}, announced: epoch with every read answered after 20 ms / without", late / now,
                         "<=", 1.10, f"{late:.2f} / {now:.2f} s"))
    return out


FIRST_WINDOW = 1024  # opens: the first announcement of gpu_stage/python/ddpfs/sampler_copy.py


class _Known:
    """What a mount has counted when it knows its order, and since then."""

    def __init__(self, store, source):
        self.store, self.source, self.at = store, source, None

    def wait(self):
        """Waits, while the trainer reads, until the mount says that it knows the order."""
        end = time.monotonic() + 60
        while self.at is None and time.monotonic() < end:
            stats = self.store.stats()
            if stats["order_source"] == self.source:
                self.at = stats
            time.sleep(0.01)
        if self.at is None:
            raise RuntimeError(f"the order is not {self.source}, but {stats['order_source']}: {stats['order_note']}")

    def wait_for_opens(self, n):
        """Waits for so many opens more, and counts from there."""
        self.wait()
        end, known = time.monotonic() + 60, self.at["opens"]
        while self.at["opens"] - known < n and time.monotonic() < end:
            time.sleep(0.01)
            self.at = self.store.stats()

    def missed_since(self):
        stats = self.store.stats()
        return (stats["misses"] - self.at["misses"]) / (stats["opens"] - self.at["opens"])


def known_torch(env):
    """PyTorch with 2 workers over a tree of all files, beside the same on loose files: a sampler that is recognised
    (DistributedSampler), and one that the hook of `ddpfs exec` announces (numpy's, without a seed)."""
    names = [name for name, _ in env.dataset.files]
    bar = 2.5 if env.dataset.kind == "B" else None
    out = []
    for what, kind in (("recognised", "torch"), ("announced", "numpy")):
        ratios, missed = [[], []], []
        for rep in range(env.reps + 1):
            loose = None
            for s in (store("ext4", env.tools, env.dataset),
                      _ddpfs(env, "ddpfs-full", rank=None, world=None, view="all", layout="tree", memory="512M")):
                root, environ = env.dataset.path, {}
                if s.mounted_by_ddpfs:
                    root, environ = s.mnt, {**s.environ(), "DDPFS_MOUNT": s.mnt, "DDPFS_VIEW": "all"}
                    if what == "announced":
                        environ["PYTHONPATH"] = f"{TOP}/gpu_stage/python/exec"
                    os.makedirs(s.mnt, exist_ok=True)
                listed = env.dataset.write_list(root, names, f"list-{what}-{s.name}")
                with reading(env, measure.py_reader(env, kind, listed), environ) as child:
                    env.cg.recycle()
                    with mounted(env, s) as mounts:
                        if loose is None:
                            loose = gbps(child.one_pass(mounts))
                            continue
                        known = _Known(s, what)
                        passes = [child.one_pass(mounts, known.wait)]
                        missed.append(known.missed_since())
                        passes.append(child.one_pass())
                if rep:  # the first round is discarded
                    for epoch in (0, 1):
                        ratios[epoch].append(gbps(passes[epoch]) / loose)
        for epoch in (0, 1):
            out.append(Check(f"{what}, PyTorch, memory=512M, epoch {epoch + 1} / loose ext4 cold", _median(ratios[epoch]),
                             ">=", bar))
        out.append(Check(f"{what}, PyTorch: opens that miss once the order is known", _median(missed[1:]), "<=", 0.01))
    return out


def announced_samplers(env):
    """PyTorch with 2 and 4 workers over a tree of all files, with samplers that only the hook of `ddpfs exec` can tell:
    weighted, bucketed batches, a generator of its own (numpy's).  Opens that miss after the first window."""
    names = [name for name, _ in env.dataset.files]
    first = min(FIRST_WINDOW, len(names) // 10)
    out = []
    for kind, what in (("weighted", "weighted"), ("bucketed", "bucketed batches"), ("numpy", "own generator")):
        for workers in (2, 4):
            missed, at_first = [], []
            for _ in range(env.reps):
                s = _ddpfs(env, "ddpfs-full", rank=None, world=None, view="all", layout="tree", memory="512M")
                os.makedirs(s.mnt, exist_ok=True)
                listed = env.dataset.write_list(s.mnt, names, f"list-{kind}")
                environ = {**s.environ(), "DDPFS_MOUNT": s.mnt, "DDPFS_VIEW": "all", "LOADER_WORKERS": str(workers),
                           "PYTHONPATH": f"{TOP}/gpu_stage/python/exec"}
                with reading(env, measure.py_reader(env, kind, listed), environ) as child:
                    env.cg.recycle()
                    with mounted(env, s) as mounts:
                        known = _Known(s, "announced")
                        child.one_pass(mounts, lambda: known.wait_for_opens(first))
                        missed.append(known.missed_since())
                        at_first.append(known.at["misses"])
            out.append(Check(f"{what}, {workers} workers: opens that miss after the first window", _median(missed), "<=",
                             0.01 if env.dataset.kind == "B" else 0.005,
                             f"{_median(at_first):.0f} misses before; runs: {', '.join(f'{m:.2%}' for m in missed)}"))
    return out


@contextlib.contextmanager
def _two_ranks(env, *options, **mount_options):
    """Both ranks' mounts of one host, each with a waiting reader.  Yields (children, mounts)."""
    pair = [_ddpfs(env, "ddpfs-full", tag=f"-rank{r}", rank=r, **mount_options) for r in (0, 1)]
    for s in pair:
        os.makedirs(s.mnt, exist_ok=True)
    with reading(env, c_reader(env, pair[0].mnt, *options)) as a, reading(env, c_reader(env, pair[1].mnt, *options)) as b:
        env.cg.recycle()
        with mounted(env, *pair) as mounts:
            yield (a, b), mounts


def _side_by_side(children, mounts):
    """Both readers at once; their times begin with the fresh mounts, as in Child.one_pass."""
    lead = time.monotonic() - mounts.returned if mounts.fresh else 0
    mounts.fresh = False
    for c in children:
        c.start()
    return [{**r, "sec": r["sec"] + lead} for r in [c.result() for c in children]]


def two_ranks(env):
    alone = _bandwidth(env, "ddpfs-full")
    sums = []
    for _ in range(env.reps):
        with _two_ranks(env) as (children, mounts):
            passes = _side_by_side(children, mounts)
        sums.append(sum(p["bytes"] for p in passes) / max(p["sec"] for p in passes))
    with _two_ranks(env, "-x") as (children, mounts):
        ours = sum(p["sum"] for p in _side_by_side(children, mounts)) % 2**64
    everything = env.dataset.write_list(env.dataset.path, env.dataset.shuffled())
    with reading(env, c_reader(env, everything, "-x", threads=2)) as child:
        source = child.one_pass()["sum"]
    return [Check("two ranks' mounts side by side, the sum / one alone", _median(sums) / alone, ">=", 0.9,
                  f"{_median(sums) / 1e9:.3f} / {alone / 1e9:.3f} GB/s"),
            Check("both ranks' contents differ from the source files (1 = yes)", int(ours != source), "<=", 0)]


def shared_memory(env):
    """The dataset is 0.8x of the memory there is; both ranks read 4 epochs."""
    old = env.cg.limit_bytes
    overhead = 320 * MIB  # readers, daemons, inodes
    env.cg.resize(int(env.dataset.bytes / 0.8) + overhead)
    try:
        with _two_ranks(env, "-p", 4, memory=int(env.dataset.bytes / 0.8)) as (children, mounts):
            shares = []
            env.cg.forget_filler()  # no time is measured here, and the kernel would recycle the shards' pages as gladly
            for _ in range(4):
                before = env.cg.counters()["dev_bytes"]
                _side_by_side(children, mounts)
                env.cg.settle()
                shares.append((env.cg.counters()["dev_bytes"] - before) / env.dataset.bytes)
            held = env.cg.memory("")["file"] / env.dataset.bytes
    finally:
        env.cg.resize(old)
    return [Check("epochs after the first: bytes from disk / dataset, both ranks", max(shares[1:]), "<=", 0.01,
                  "each epoch: " + " ".join(f"{s:.3f}" for s in shares)),
            Check("page cache of the host / dataset at the end", held, "<=", 1.1)]


# --- memory -------------------------------------------------------------------------------------------------------------

def partial_memory(env):
    """Two epochs of the whole dataset against farthest-next-use and LRU on pages, computed for the same order."""
    out = []
    sizes = dict(env.dataset.files)
    for percent in (25, 50, 75):
        capacity = env.dataset.bytes * percent // 100
        s = _ddpfs(env, "ddpfs-full", rank=0, world=1, memory=capacity)
        os.makedirs(s.mnt, exist_ok=True)
        with reading(env, c_reader(env, s.mnt, "-p", 2)) as child:
            env.cg.drop()
            with _watched_memory(env.cg) as watch, mounted(env, s) as mounts:
                passes = [child.one_pass(mounts) for _ in range(2)]
                # The engine knows that a third epoch follows.
                trace = [s.epoch_list(epoch) for epoch in range(3)]
        disk = sum(p["dev_bytes"] for p in passes)
        best = replacement.belady(trace, sizes, capacity, epochs=2)
        lru = replacement.lru(trace[:2], sizes, capacity)
        out.append(Check(f"memory={percent}% of the data: disk bytes of 2 epochs / farthest next use", disk / best, "<=",
                         1.05, f"LRU would be {lru / best:.2f}"))
        out.append(Check(f"memory={percent}%: most memory taken - memory=, MiB", (watch.peak - capacity) / MIB, "<=", 64))
    return out


class _Memory(threading.Thread):
    """The most that pages, slab and the daemon took together, in /daemon and the kernel's share of /reader."""

    def __init__(self, cg):
        super().__init__(daemon=True)
        self.cg, self.stop, self.peak = cg, threading.Event(), 0
        self.base = self.now(0)

    def now(self, base=None):
        base = self.base if base is None else base
        reader = self.cg.memory("/reader")
        return self.cg.memory("/daemon")["total"] + reader["kernel"] + reader["file"] - base

    def run(self):
        while not self.stop.wait(0.05):
            self.peak = max(self.peak, self.now())


@contextlib.contextmanager
def _watched_memory(cg):
    watch = _Memory(cg)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop.set()
        watch.join()


def memory_bound(env):
    """10 epochs: what the mount holds, everything counted, against memory=."""
    memory, epochs = 256 * MIB, 10
    s = _ddpfs(env, "ddpfs-full" if env.dataset.kind == "A" else "ddpfs-chunk", memory=memory)
    os.makedirs(s.mnt, exist_ok=True)
    with reading(env, c_reader(env, s.mnt, "-p", epochs)) as child:
        env.cg.drop()
        with _watched_memory(env.cg) as watch, mounted(env, s):
            after = []
            for _ in range(epochs):
                child.one_pass()
                env.cg.settle()
                after.append(watch.now())
    return [Check("most memory over 10 epochs (pages, slab, process) - memory=, MiB", (watch.peak - memory) / MIB, "<=", 64,
                  f"memory={memory // MIB} MiB"),
            Check("growth from epoch 2 to 10, MiB", (after[-1] - after[1]) / MIB, "<=", 8,
                  "after each, MiB: " + " ".join(f"{a / MIB:.0f}" for a in after))]


# --- the library in place of the mount ------------------------------------------------------------------------------------

def stage(env):
    """libddpfs_stage beside other loaders, samples a second: nothing cached, and a later pass with the data in memory."""
    order = _orders(env)[-1]
    rows = ["stage:lib", f"ddpfs-{order}-resident:c1", "wds:lib", "mds:lib", "litdata:lib", "ext4:torch"]
    rates = {row: {"cold": [], "warm": []} for row in rows}
    for rep in range(env.reps + 1):
        for row in rows:
            name, how = row.split(":")
            s = store(name, env.tools, env.dataset)
            s.prepare()
            with reading(env, measure.reader_command(env, s, how), None if how == "c1" else s.environ()) as child:
                env.cg.recycle()
                with mounted(env, s) as mounts:
                    passes = [child.one_pass(mounts)]
                    for _ in range(measure.WARM_PASSES):
                        env.cg.settle()
                        passes.append(child.one_pass(mounts))
                        if passes[-1]["dev_bytes"] < 0.005 * passes[-1]["bytes"]:
                            break
            if rep:
                for which, r in (("cold", passes[0]), ("warm", passes[-1])):
                    rates[row][which].append(r["files"] / r["sec"])
    out = []
    for which, bars in (("cold", {"litdata:lib": 2 if env.dataset.kind == "B" else None}),
                        ("warm", {row: 1.2 if row.startswith("ddpfs") else 2 for row in rows[1:]})):
        ours = _median(rates["stage:lib"][which])
        for row in rows[1:]:
            theirs = _median(rates[row][which])
            note = f"{ours:.0f} / {theirs:.0f} samples/s"
            out.append(Check(f"libddpfs_stage / {row}, {which}", ours / theirs, ">=", bars.get(row), note))
    return out


CASES = {"demand85": demand85, "delay20ms": delay20ms, "boundaries": boundaries, "foreign": foreign, "foreign-torch": foreign_torch,
         "announced": announced, "known-torch": known_torch, "announced-samplers": announced_samplers,
         "two-ranks": two_ranks, "shared-memory": shared_memory, "partial-memory": partial_memory,
         "deal-block": deal_block, "limited": limited, "memory-bound": memory_bound, "first-sample": first_sample, "python": python,
         "stage": stage}


def run(name, env):
    """A case that cannot be run says why, in place of its figures."""
    try:
        return CASES[name](env)
    except Exception as e:  # noqa: BLE001: the other cases go on
        return [Check(f"{name}: {type(e).__name__}: {str(e)[:300]}", None, "<=", 0)]
