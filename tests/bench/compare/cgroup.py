# SPDX-License-Identifier: Apache-2.0
"""Where everything is measured: one memory cgroup with two children, `reader` and `daemon`, and the kernel's counters.

On virtual machines that give free pages back to the host, touching them again costs microseconds a page: a cold pass
straight after dropping the caches measures the hypervisor.  So every process of a row lives in one cgroup of a fixed
size which is filled with the clean pages of a filler file before a cold pass: the pass then recycles memory the guest
owns, as steady training does, and pays for the reclaim, as steady training does.

Both versions of cgroups are served; with version 2 the controllers memory, cpu and io must be available at the root.
"""
import os
import subprocess
import time

ROOT = "/sys/fs/cgroup"
NAME = "ddpfs-bench"
TICKS = os.sysconf("SC_CLK_TCK")
OPCODES = {"lookup": 1, "getattr": 3, "open": 14, "read": 15, "ioctl": 39}


def _read(path):
    with open(path) as f:
        return f.read()


def _write(path, text):
    with open(path, "w") as f:
        f.write(str(text))


def _remove(directories):
    """Removes cgroups.  Those that an attempt before has removed may be among them."""
    for d in directories:
        if os.path.isdir(d):
            os.rmdir(d)


def _fields(path):
    return {k: int(v) for k, v in (line.split() for line in _read(path).splitlines())}


def disk_of(path):
    """("major:minor", sysfs directory) of the whole disk under path."""
    dev = os.stat(path).st_dev
    base = os.path.realpath(f"/sys/dev/block/{os.major(dev)}:{os.minor(dev)}")
    if os.path.exists(f"{base}/partition"):
        base = os.path.dirname(base)
    if not os.path.exists(f"{base}/dev"):
        raise SystemExit(f"compare: '{path}' is on no block device; give --scratch a folder on a disk")
    return _read(f"{base}/dev").strip(), base


class _V1:
    controllers = ("memory", "cpuacct", "blkio")

    def __init__(self, disk):
        self.disk = disk
        # The kernel counts a device's bytes per cgroup once some cgroup has a rule for it: this one holds nobody.
        os.makedirs(f"{ROOT}/blkio/{NAME}-rule", exist_ok=True)
        _write(f"{ROOT}/blkio/{NAME}-rule/blkio.throttle.read_bps_device", f"{disk} {10**13}")

    def dirs(self, sub=""):
        return [f"{ROOT}/{c}/{NAME}{sub}" for c in self.controllers]

    def make(self):
        for sub in ("", "/reader", "/daemon"):
            for d in self.dirs(sub):
                os.makedirs(d, exist_ok=True)

    def limit(self, size):
        _write(f"{ROOT}/memory/{NAME}/memory.limit_in_bytes", size)

    def throttle(self, bps, iops):
        for name, value in (("bps", bps), ("iops", iops)):
            _write(f"{ROOT}/blkio/{NAME}/blkio.throttle.read_{name}_device", f"{self.disk} {value}")

    def cpu(self, sub):
        return int(_read(f"{ROOT}/cpuacct/{NAME}{sub}/cpuacct.usage")) / 1e9

    def io(self):
        out = []
        for name in ("io_service_bytes", "io_serviced"):
            text = _read(f"{ROOT}/blkio/{NAME}/blkio.throttle.{name}_recursive")
            out += [int(line.split()[2]) for line in text.splitlines() if line.startswith(f"{self.disk} Read")] or [0]
        return out

    def memory(self, sub):
        d = f"{ROOT}/memory/{NAME}{sub}"
        stat = _fields(f"{d}/memory.stat")
        return {"total": int(_read(f"{d}/memory.usage_in_bytes")), "anon": stat["total_rss"],
                "file": stat["total_cache"], "kernel": int(_read(f"{d}/memory.kmem.usage_in_bytes"))}

    def done(self):
        for sub in ("/reader", "/daemon", ""):
            _remove(self.dirs(sub))
        _remove([f"{ROOT}/blkio/{NAME}-rule"])


class _V2:
    def __init__(self, disk):
        self.disk = disk

    def dirs(self, sub=""):
        return [f"{ROOT}/{NAME}{sub}"]

    def make(self):
        _write(f"{ROOT}/cgroup.subtree_control", "+memory +cpu +io")
        os.makedirs(f"{ROOT}/{NAME}", exist_ok=True)
        _write(f"{ROOT}/{NAME}/cgroup.subtree_control", "+memory +cpu +io")
        for sub in ("reader", "daemon"):
            os.makedirs(f"{ROOT}/{NAME}/{sub}", exist_ok=True)

    def limit(self, size):
        _write(f"{ROOT}/{NAME}/memory.max", size)

    def throttle(self, bps, iops):
        _write(f"{ROOT}/{NAME}/io.max", f"{self.disk} rbps={bps or 'max'} riops={iops or 'max'}")

    def cpu(self, sub):
        return _fields(f"{ROOT}/{NAME}{sub}/cpu.stat")["usage_usec"] / 1e6

    def io(self):
        for line in _read(f"{ROOT}/{NAME}/io.stat").splitlines():
            dev, *rest = line.split()
            if dev == self.disk:
                stat = dict(x.split("=") for x in rest)
                return [int(stat["rbytes"]), int(stat["rios"])]
        return [0, 0]

    def memory(self, sub):
        d = f"{ROOT}/{NAME}{sub}"
        stat = _fields(f"{d}/memory.stat")
        return {"total": int(_read(f"{d}/memory.current")), "anon": stat["anon"], "file": stat["file"],
                "kernel": stat.get("kernel", stat["slab"])}

    def done(self):
        for sub in ("/reader", "/daemon", ""):
            _remove(self.dirs(sub))


class Cgroup:
    def __init__(self, scratch, limit_bytes, filler):
        if os.geteuid() != 0:
            raise SystemExit("compare: needs root (cgroups, mounts, dropping caches)")
        self.disk, self.disk_sysfs = disk_of(scratch)
        unified = os.path.exists(f"{ROOT}/cgroup.controllers")
        self.version = 2 if unified else 1
        self._v = _V2(self.disk) if unified else _V1(self.disk)
        self._v.make()
        self._v.limit(limit_bytes)
        self._v.throttle(0, 0)
        self.limit_bytes, self.filler = limit_bytes, filler
        self.throttle, self.memory, self.directories = self._v.throttle, self._v.memory, self._v.dirs

    def enter(self, sub):
        """For preexec_fn: the child starts in /reader or /daemon."""
        def join():
            for d in self._v.dirs(sub):
                _write(f"{d}/cgroup.procs", os.getpid())
        return join

    def run(self, sub, cmd, **kw):
        return subprocess.run(cmd, check=True, preexec_fn=self.enter(sub), **kw)

    def counters(self):
        """Ever growing; the differences over a pass are what it took."""
        disk = _read(f"{self.disk_sysfs}/stat").split()
        cpu = [int(x) for x in _read("/proc/stat").splitlines()[0].split()[1:]]
        dev, requests = self._v.io()
        return {"dev_bytes": dev, "dev_requests": requests, "disk_bytes": int(disk[2]) * 512,
                "cpu": self._v.cpu(""), "cpu_daemon": self._v.cpu("/daemon"),
                "cpu_system": (sum(cpu[0:3]) + sum(cpu[5:7])) / TICKS}

    def resize(self, limit_bytes):
        self.drop()
        self._v.limit(limit_bytes)
        self.limit_bytes = limit_bytes

    def drop(self):
        os.sync()
        _write("/proc/sys/vm/drop_caches", 3)

    def recycle(self):
        """Cold: no page of the stores in memory, the cgroup full of the filler's."""
        self.drop()
        self.throttle(0, 0)
        count = self.limit_bytes // (1 << 20) + 64
        self.run("/reader", ["dd", f"if={self.filler}", "of=/dev/null", "bs=1M", f"count={count}", "status=none"])

    def forget_filler(self):
        """Its pages, as far as they have not been recycled, leave the page cache."""
        fd = os.open(self.filler, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    def settle(self, seconds=20):
        """Waits until this cgroup has read nothing for half a second."""
        end, before, quiet = time.monotonic() + seconds, None, 0
        while quiet < 5 and time.monotonic() < end:
            now = self._v.io()[0]
            quiet = quiet + 1 if now == before else 0
            before = now
            time.sleep(0.1)

    def done(self):
        for _ in range(50):  # a process that has just ended may still be counted
            try:
                return self._v.done()
            except OSError:
                time.sleep(0.1)


class FuseRequests:
    """Counts the requests that reach a mount's daemon: the kernel's fuse_request_send events, one trace instance for
    each kind, by the statistics of its ring buffer.  Nothing is read from it, so a small one serves any number.

    Making the instances takes tens of milliseconds, so they are there before the mount, whose number watch() fills in."""

    def __init__(self):
        top = next((d for d in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
                    if os.path.exists(f"{d}/events/fuse/fuse_request_send")), None)
        if top is None:
            subprocess.run(["mount", "-t", "tracefs", "none", "/sys/kernel/tracing"], stderr=subprocess.DEVNULL)
            top = "/sys/kernel/tracing"
        self.dirs = {}
        if not os.path.exists(f"{top}/events/fuse/fuse_request_send"):
            return
        for name in OPCODES:
            d = f"{top}/instances/{NAME}-{name}"
            os.makedirs(d, exist_ok=True)
            _write(f"{d}/events/fuse/fuse_request_send/enable", 0)
            _write(f"{d}/buffer_size_kb", 64)
            _write(f"{d}/trace", "")
            self.dirs[name] = d

    def watch(self, mounts):
        ours = " || ".join(f"connection == {os.minor(os.stat(m).st_dev)}" for m in mounts)
        for name, d in self.dirs.items():
            _write(f"{d}/events/fuse/fuse_request_send/filter", f"opcode == {OPCODES[name]} && ({ours})")
            _write(f"{d}/events/fuse/fuse_request_send/enable", 1)

    def counters(self):
        return {f"fuse_{name}": self._count(d) for name, d in self.dirs.items()}

    def _count(self, d):
        total = 0
        for cpu in os.listdir(f"{d}/per_cpu"):
            for line in _read(f"{d}/per_cpu/{cpu}/stats").splitlines():
                key, _, value = line.partition(":")
                if key in ("entries", "overrun", "dropped events"):
                    total += int(value)
        return total

    def done(self):
        for d in self.dirs.values():
            _write(f"{d}/events/fuse/fuse_request_send/enable", 0)
            os.rmdir(d)
        self.dirs = {}
