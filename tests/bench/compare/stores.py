# SPDX-License-Identifier: Apache-2.0
"""The stores compared: each packs a dataset once and offers it to a reader.

A store's name says what it is: ext4 (loose files), erofs, squashfs, wds, mds, litdata, hf, shards (the raw shards) and
ddpfs[-bare][-full|-chunk|...][-resident|-watched].
"""
import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
ORDERS = ("full", "chunk", "torch", "none")
INODE = 1500  # bytes of kernel memory that a file in a mount takes at most, its names included
# Parts of the dataset that memory= has room for.  A rank of two reads half of it each epoch, three quarters in two
# epochs: with `watched` these stay, but not everything fits, so that opens must still be watched.
ROOM = {"resident": 1.2, "watched": 0.85}


def stays(name):
    """Whether what a reader has read through this store can be read again from memory."""
    return name == "ext4" or any(word in ROOM for word in name.split("-"))


class Skip(Exception):
    """Why something is left out."""


def quiet(cmd, **kw):
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    if p.returncode:
        raise RuntimeError(f"{' '.join(cmd)[:120]}: exit {p.returncode}: {p.stdout[-300:]}")
    return p.stdout


class Tools:
    """Programs of this run: the reader, ddpfs' own, the Python with the libraries."""

    def __init__(self, scratch, build, venv):
        self.reader = f"{scratch}/reader"
        quiet(["cc", "-O2", "-Wall", "-o", self.reader, f"{HERE}/reader.c", "-lxxhash", "-lpthread"])
        self.mkshard, self.ddpfs = f"{build}/tools/mkshard", f"{build}/tools/ddpfs"
        self.build = build
        self.python = f"{venv}/bin/python"

    def need_python(self, module):
        if not os.path.exists(self.python):
            raise Skip(f"no Python environment at {self.python}; --setup makes it")
        if subprocess.run([self.python, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec('{module}'))"],
                          stderr=subprocess.DEVNULL).returncode:
            raise Skip(f"Python package {module} is not installed; --setup installs it")

    def need(self, program):
        if not shutil.which(program):
            raise Skip(f"{program} is not installed; --setup installs it")


class Store:
    """Loose files."""

    lib = "torch"  # what loaders.py calls it
    listed = True  # the reader gets a list of paths; else it lists the root itself
    mounted_by_ddpfs = False

    def __init__(self, name, tools, dataset):
        self.name, self.tools, self.dataset = name, tools, dataset
        self.packed = f"{dataset.scratch}/packed/{dataset.name}-{self.form()}"
        self.mnt = f"{dataset.scratch}/mnt/{name}"

    def form(self):
        return self.name

    def prepare(self):
        """Packs once.  Returns {"pack_s", "size"} or None."""
        return None

    def _prepare(self, pack):
        note = self.packed + ".json"
        if not os.path.exists(note):
            os.makedirs(os.path.dirname(self.packed), exist_ok=True)
            quiet(["rm", "-rf", self.packed])
            t0 = time.monotonic()
            pack()
            os.sync()
            seconds = time.monotonic() - t0
            size = int(quiet(["du", "-sb", self.packed]).split()[0])
            with open(note, "w") as f:
                json.dump({"pack_s": seconds, "size": size}, f)
        with open(note) as f:
            return json.load(f)

    def mount(self, cg):
        """Returns the directory to read from."""
        return self.dataset.path

    def umount(self):
        pass

    def environ(self):
        """What a Python reader's environment needs."""
        return {}


class Image(Store):
    """A file system image, mounted by the kernel over a loop device whose I/O is direct: cached once."""

    make = {"squashfs": ["mksquashfs", "{src}", "{out}", "-noappend", "-no-progress", "-b", "128K", "-mem", "1G",
                         "-noI", "-noD", "-noF", "-noX"],
            "erofs": ["mkfs.erofs", "{out}", "{src}"]}
    loop = None

    def prepare(self):
        cmd = [x.format(src=self.dataset.path, out=self.packed) for x in self.make[self.name]]
        self.tools.need(cmd[0])
        with open("/proc/filesystems") as f:
            if self.name not in f.read().split():
                raise Skip(f"this kernel has no {self.name}")
        return self._prepare(lambda: quiet(cmd))

    def mount(self, cg):
        os.makedirs(self.mnt, exist_ok=True)
        self.loop = quiet(["losetup", "-f", "--show", "-r", "--direct-io=on", self.packed]).strip()
        cg.run("/daemon", ["mount", "-t", self.name, "-o", "ro", self.loop, self.mnt])
        return self.mnt

    def umount(self):
        if os.path.ismount(self.mnt):
            quiet(["umount", self.mnt])
        if self.loop:
            quiet(["losetup", "-d", self.loop])
            self.loop = None


class Library(Store):
    modules = {"wds": "webdataset", "mds": "streaming", "litdata": "litdata", "hf": "datasets"}

    @property
    def lib(self):
        return self.name

    def prepare(self):
        self.tools.need_python(self.modules[self.name])
        return self._prepare(lambda: quiet([self.tools.python, f"{HERE}/loaders.py", "pack", self.name,
                                            self.dataset.path, self.packed]))

    def mount(self, cg):
        return self.packed


class Ddpfs(Store):
    """A mount of rank 0 of 2, or of what `options` say."""

    lib = "view"
    listed = False
    mounted_by_ddpfs = True

    def __init__(self, name, tools, dataset, memory="512M", tag="", **options):
        self.words = name.split("-")
        super().__init__(name, tools, dataset)
        self.mnt += tag
        order = next((w for w in self.words if w in ORDERS), "full")
        self.options = {"rank": 0, "world": 2, "seed": 7, "order": order, "layout": "flat",
                        "log": f"{dataset.scratch}/ddpfs.log"}
        room = next((ROOM[w] for w in self.words if w in ROOM), None)
        everything = dataset.bytes + len(dataset.files) * INODE
        self.options["memory"] = int(room * everything) + (64 << 20) if room else memory
        self.options.update(options)

    def form(self):
        return "shards-bare" if "bare" in self.words else "shards-tar"

    def programs(self):
        return self.tools.mkshard, self.tools.ddpfs

    def prepare(self):
        for program in self.programs():
            if not os.path.exists(program):
                raise Skip(f"{program} is not built; meson setup {self.tools.build} && ninja -C {self.tools.build}")
        container = "bare" if "bare" in self.words else "tar"
        return self._prepare(lambda: quiet([self.tools.mkshard, "pack", f"--container={container}", self.dataset.path,
                                            self.packed]))

    def mount(self, cg):
        os.makedirs(self.mnt, exist_ok=True)
        options = ",".join(f"{k}={v}" for k, v in self.options.items() if v is not None)
        log = f"{self.dataset.scratch}/mount.log"
        with open(log, "w") as f:  # a file, no pipe: a daemon may keep it
            cmd = [self.tools.ddpfs, "mount", "-o", options, self.packed, self.mnt]
            p = subprocess.run(cmd, preexec_fn=cg.enter("/daemon"), stdin=subprocess.DEVNULL, stdout=f, stderr=f)
        if p.returncode:
            with open(log) as f:
                raise RuntimeError(f"{' '.join(cmd)}: exit {p.returncode}: {f.read()[-300:]}")
        return self.mnt

    def environ(self):
        """As `ddpfs exec` sets it: without, every open() of Python asks the daemon whether the file is a terminal."""
        for name in (f"{self.tools.build}/tools/libddpfs_interpose.so",):
            if os.path.exists(name):
                return {"LD_PRELOAD": name}
        return {}

    def stats(self):
        with open(f"{self.mnt}/.ddpfs/stats.json") as f:
            return json.load(f)

    def epoch_list(self, epoch):
        """Paths of this rank's files in the epoch's order."""
        with open(f"{self.mnt}/.ddpfs/epoch/{epoch}.list") as f:
            paths = f.read().splitlines()
        sizes = dict(self.dataset.files)
        missing = [p for p in paths if p not in sizes]
        if missing or not paths:
            raise RuntimeError(f"epoch/{epoch}.list names '{missing[0] if missing else ''}', not a file of the dataset")
        return paths

    def ahead_bytes(self, consumed):
        """Bytes read for later epochs when a reader has consumed these: not more than the window, and not more than was
        read beyond them."""
        stats = self.stats()
        return max(0, min(stats["window_bytes"], stats["read_bytes"] - stats["wasted_bytes"] - consumed))

    def umount(self):
        for _ in range(100):
            if not os.path.ismount(self.mnt):
                return
            if subprocess.run(["umount", self.mnt], stderr=subprocess.DEVNULL).returncode:
                time.sleep(0.1)  # a reader that is just ending keeps it busy
        quiet(["umount", "-l", self.mnt])


class Shards(Ddpfs):
    """The shards of the ddpfs rows as plain files, for reading them in sequence."""

    mounted_by_ddpfs = False

    def programs(self):
        return (self.tools.mkshard,)

    def mount(self, cg):
        return self.packed

    def umount(self):
        pass

    def shards(self):
        return sorted(f"{self.packed}/{n}" for n in os.listdir(self.packed) if n.startswith("shard-"))


class Stage(Shards):
    """libddpfs_stage over the same shards, with memory for all of the dataset."""

    lib = "stage"

    def environ(self):
        everything = self.dataset.bytes + len(self.dataset.files) * 2048  # the arena counts pages
        return {"DDPFS_STAGE_LIB": f"{self.tools.build}/gpu_stage/libddpfs_stage.so.0",
                "PYTHONPATH": f"{TOP}/gpu_stage/python", "PYTHONDONTWRITEBYTECODE": "1",
                "STAGE_DEAL": "block" if self.dataset.kind == "B" else "auto",
                "STAGE_MEMORY": str(int(ROOM["resident"] * 4 / 3 * everything) + (64 << 20))}


def store(name, tools, dataset, **options):
    kind = name.split("-")[0]
    cls = {"ext4": Store, "erofs": Image, "squashfs": Image, "ddpfs": Ddpfs, "shards": Shards, "stage": Stage}.get(kind, Library)
    if cls is Library and kind not in Library.modules:
        sys.exit(f"compare: no store '{name}'")
    return cls(name, tools, dataset, **options)
