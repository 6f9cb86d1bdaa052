# SPDX-License-Identifier: Apache-2.0
"""Recognition through the kernel: torch's own DataLoader reads a tree of all files, and finds its files in the page cache."""

import glob
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from helpers import tools
from helpers.datasets import content
from helpers.waiting import wait_until
from mount import control

torch = pytest.importorskip("torch", reason="torch is not installed")

CLASSES, PER_CLASS = 20, 150

PAGE_COST = 4096 + 1490  # of a file of a page: what the server counts for it in resident_bytes

# With `gate` the reader of a file behind the first three batches waits until the server has read ahead the whole epoch: READs
# that come then are ones that no wait would have spared, on a machine of whatever speed.  What the kernel has taken back behind
# the reader is not read again in this epoch.
TRAINER = f'''
import json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PATIENCE_S = 120  # for what must come, however slow the machine

root, world, rank, seed, epochs, set_epoch, gate, times = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)

class Files(Dataset):
    def __init__(self):
        self.paths = [c + "/" + f for c in sorted(os.listdir(root)) for f in sorted(os.listdir(root + "/" + c))]
        self.early = set()
        self.wanted = set()
        self.there = not gate

    def __len__(self):
        return len(self.paths)

    def wait(self):
        end = time.monotonic() + PATIENCE_S
        while not self.there:
            with open(root + "/.ddpfs/stats.json") as file:
                stats = json.load(file)
            all_of_it = stats["resident_bytes"] >= len(self.wanted) * {PAGE_COST} or stats["lost"] and stats["idle"]
            self.there = stats["recognised"] != "nothing" and all_of_it
            if time.monotonic() > end:
                raise TimeoutError(f"{{len(self.wanted)}} files are not read ahead: {{stats}}")
            time.sleep(0.02)

    def __getitem__(self, index):
        if index not in self.early:
            self.wait()
        for _ in range(times):
            with open(root + "/" + self.paths[index], "rb", buffering=0) as file:
                size = len(file.read())
        return size

data = Files()
sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=seed)
for epoch in range(epochs):
    if set_epoch:
        sampler.set_epoch(epoch)
    order = list(sampler)
    data.early = set(order[:96]) if epoch == 0 else set()
    data.wanted |= set(order)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=2)
    print(sum(int(batch.sum()) for batch in loader), flush=True)
'''


def early_reads(stats):
    """READs that may reach the server: of the three batches before it knows the sampler, and of pages that the kernel took back, in
    two pieces at worst; a refetch takes 1,024 turns for lost without counting them."""
    return 96 + 2 * (stats["lost"] + 1024 * stats["refetches"])


# Loaders as people write them.  Each worker waits behind its first `early` opens until so many samplers are recognised and
# nothing is left to read ahead.
LOADERS = f'''
import json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

PATIENCE_S = 120
root, kind = sys.argv[1:]
torch.set_num_threads(1)

class Files(Dataset):
    def __init__(self, folder, early, samplers, wanted):
        self.paths = sorted(f"{{at}}/{{name}}" for at, _, names in os.walk(root + folder) for name in names)
        self.early, self.samplers, self.wanted = early, samplers, wanted

    def __len__(self):
        return len(self.paths)

    def wait(self):
        end = time.monotonic() + PATIENCE_S
        while True:
            with open(root + "/.ddpfs/stats.json") as file:
                stats = json.load(file)
            if len(stats["samplers"]) >= self.samplers and stats["recognise_queue"] == 0 and stats["idle"] and \\
                    (stats["resident_bytes"] >= self.wanted * {PAGE_COST} or stats["lost"]):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"{{self.wanted}} files are not read ahead: {{stats}}")
            time.sleep(0.02)

    def __getitem__(self, index):
        self.early -= 1
        if self.early == -1:
            self.wait()
        with open(self.paths[index], "rb", buffering=0) as file:
            return len(file.read())

def loader(data, **options):
    return DataLoader(data, batch_size=32, num_workers=2, **options)

torch.manual_seed(42)
if kind == "random":
    loaders = [loader(Files("", 48, 1, 3000), shuffle=True)]
elif kind == "unseeded":
    data = Files("", 300, 1, 3000)
    some = torch.Generator().manual_seed(0x1234500000000 + 20_000_000)  # of which 32 bits count
    loaders = [loader(data, sampler=RandomSampler(data, generator=some))]
elif kind == "ranks":
    data = Files("", 6, 1, 3000)
    loaders = [loader(data, sampler=DistributedSampler(data, num_replicas=8, rank=r, seed=17)) for r in range(8)]
else:
    data = Files("/train", 48, 1, 750)
    loaders = [loader(data, sampler=DistributedSampler(data, num_replicas=2, rank=1, seed=17))]
for epoch in range(2):
    for one in loaders:
        if kind not in ("random", "unseeded"):
            one.sampler.set_epoch(epoch)
    for batches in zip(*loaders):
        pass
    if kind == "validation":
        for batch in loader(Files("/val", 48, 2, 750 + 300)):
            pass
'''


# As DLIO reads (github.com/argonne-lcf/dlio_benchmark): files sorted by name over all directories, a contiguous part a process,
# batches of 16, two workers, each of which waits for the time that a step takes.
DLIO = '''
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset

root, rank, world, epochs, step_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
torch.set_num_threads(1)
paths = sorted((os.path.join(at, name) for at, _, names in os.walk(root) for name in names), key=os.path.basename)
part = -(-len(paths) // world)

class Files(Dataset):
    def __len__(self):
        return len(paths[rank * part:(rank + 1) * part])

    def __getitem__(self, index):
        with open(paths[rank * part + index], "rb", buffering=0) as file:
            return len(file.read())

for epoch in range(epochs):
    for batch in DataLoader(Files(), batch_size=16, num_workers=2):
        torch.sum(batch)
        if step_s:
            import time
            time.sleep(step_s)
'''


def write_classes(root, classes, files, folder=""):
    for c in range(classes):
        (root / folder / f"class_{c:02d}").mkdir(parents=True)
        for i in range(files):
            path = f"{folder}class_{c:02d}/item_{i:04d}.bin"
            (root / path).write_bytes(content(path, 3000 + i))


@pytest.fixture
def dataset(pack, scratch):
    write_classes(scratch / "tree", CLASSES, PER_CLASS)
    return pack(scratch / "tree")


def trainer(m, world, rank, seed, epochs, set_epoch=True, gate=False, times=1):
    argv = [sys.executable, "-W", "ignore", "-c", TRAINER, m.path, world, rank, seed, epochs, int(set_epoch), int(gate),
            times]
    return subprocess.Popen([str(arg) for arg in argv], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=tools.die_with_parent)


@pytest.fixture
def split(pack, scratch):
    write_classes(scratch / "split", 10, 150, "train/")
    write_classes(scratch / "split", 10, 30, "val/")
    return pack(scratch / "split")


def load(m, kind):
    tools.run([sys.executable, "-W", "ignore", "-c", LOADERS, m.path, kind])
    return recognised(m)


def train(*args, **options):
    job = trainer(*args, **options)
    out, err = job.communicate()
    assert job.returncode == 0, err
    return out.split()


def recognised(m):
    """The statistics once all opens are held against samplers."""
    while True:
        time.sleep(0.03)  # a snapshot lives for 20 ms
        stats = json.loads((m.path / ".ddpfs/stats.json").read_text())
        if stats["recognise_queue"] == 0:
            return stats


def test_a_distributed_sampler_is_read_ahead(mount, dataset):
    """All behind the first three batches, each later epoch before its first open.  What the kernel takes back is `lost`."""
    m = mount(dataset, "layout=tree,view=all,memory=256M")
    train(m, 2, 1, 17, 3, gate=True)
    stats = recognised(m)
    assert stats["recognised"].startswith("torch DistributedSampler, seed+epoch 19, rank 1 of 2")
    assert "recognised_note" not in stats
    assert stats["opens"] == 3 * CLASSES * PER_CLASS // 2
    # Twice: where the kernel takes back many pages, the budget shrinks and the engine drops some itself.
    assert stats["reads"] <= early_reads(stats), "a READ that reached the server behind the first three batches"
    assert stats["misses"] <= early_reads(stats)
    (sampler,) = stats["samplers"]
    assert sampler["epoch"] == 2 and sampler["repeated"] == 0 and sampler["after"] <= 96
    assert "recognised after" in m.log() and "set_epoch" not in m.log()
    said = tools.run([tools.tool("ddpfs"), "stat", m.path]).stdout
    assert "torch DistributedSampler, seed+epoch 19" in said
    assert [": epoch 2, " in line for line in said.splitlines() if line.startswith("sampler ")] == [True]


def test_a_trainer_that_opens_each_file_twice_is_read_ahead(mount, dataset):
    """A look at the header first.  An open that comes at once after another of the same file may be one event with it."""
    m = mount(dataset, "layout=tree,view=all,memory=256M")
    train(m, 2, 1, 17, 3, gate=True, times=2)
    stats = recognised(m)
    (sampler,) = stats["samplers"]
    assert sampler["text"].startswith("torch DistributedSampler, seed+epoch 19, rank 1 of 2"), sampler
    assert (sampler["epoch"], sampler["repeated"]) == (2, 0) and sampler["after"] <= 96, sampler
    assert "recognised_note" not in stats and "set_epoch" not in m.log()
    assert stats["reads"] <= early_reads(stats)


def test_a_random_sampler_after_a_manual_seed_is_read_ahead(mount, dataset):
    stats = load(mount(dataset, "layout=tree,view=all,memory=256M"), "random")
    (sampler,) = stats["samplers"]
    assert sampler["text"].startswith("torch RandomSampler") and "42" in sampler["text"], sampler
    assert (sampler["epoch"], sampler["repeated"]) == (1, 0), sampler
    assert stats["reads"] <= early_reads(stats)


def test_a_random_sampler_with_a_seed_that_nobody_knows_is_found(mount, dataset):
    """Only where threads were given for it.  The first of 2^32 seeds are tried first."""
    m = mount(dataset, "layout=tree,view=all,memory=256M,seed_search=2")
    stats = load(m, "unseeded")
    (sampler,) = stats["samplers"]
    assert "without a seed (this epoch's is " in m.log()
    assert "generator with seed" in sampler["text"], sampler  # the second epoch's
    assert (sampler["epoch"], sampler["repeated"]) == (1, 0), sampler
    search = stats["seed_search"]
    assert (search["running"], search["begun"], search["found"]) == (False, 1, 1) and search["cpu_s"] > 0
    assert stats["reads"] <= 600 + early_reads(stats)
    assert "seed_search" not in recognised(mount(dataset, "layout=tree,view=all"))


@pytest.mark.trainers  # test_recognise.c has the schedules
def test_eight_ranks_through_one_mount_are_read_ahead(mount, dataset):
    """Two workers each, step by step, as trainers that exchange gradients."""
    stats = load(mount(dataset, "layout=tree,view=all,memory=256M"), "ranks")
    (sampler,) = stats["samplers"]
    assert sampler["text"].startswith("torch DistributedSampler, seed+epoch 18"), sampler
    assert (sampler["world"], sampler["epoch"], sampler["repeated"]) == (1, 1, 0), sampler
    assert stats["reads"] <= early_reads(stats)


def test_training_and_validation_are_read_ahead(mount, split):
    """A DistributedSampler over train/, then all of val/ in order, and again."""
    stats = load(mount(split, "layout=tree,view=all,memory=256M"), "validation")
    samplers = {s["text"].partition(",")[0]: s for s in stats["samplers"]}
    assert len(samplers) == len(stats["samplers"]) == 2, stats["samplers"]
    distributed = samplers.pop("torch DistributedSampler")
    assert distributed["text"].startswith("torch DistributedSampler, seed+epoch 18, rank 1 of 2"), distributed
    assert "train/" in distributed["list"] and distributed["epoch"] == 1, distributed
    (ordered,) = samplers.values()
    assert "val/" in ordered["list"] and (ordered["epoch"], ordered["turns"]) == (1, 300), ordered
    assert stats["reads"] <= 96 + early_reads(stats)


@pytest.mark.parametrize("run", range(2))
def test_dlios_reader_is_recognised(mount, pack, scratch, run):
    """Two processes through one mount, whichever of them is faster, in each of two runs.  A directory has whichever files."""
    for i in range(3000):
        path = scratch / f"tree/train/{zlib.crc32(str(i).encode()) % 4}/img_{i:04d}_of_3000.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(path.name, 500))
    m = mount(pack(scratch / "tree"), "layout=tree,view=all,memory=256M")
    jobs = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", DLIO, m.path / "train", str(rank), "2", "2", "0.01"],
                             stderr=subprocess.PIPE, preexec_fn=tools.die_with_parent) for rank in range(2)]
    for job in jobs:
        _, err = job.communicate()
        assert job.returncode == 0, err
    stats = recognised(m)
    assert stats["samplers"] and all(s["text"].startswith("sorted") for s in stats["samplers"]), stats["samplers"]
    assert sum(s["opens"] for s in stats["samplers"]) >= 6000 * 0.6, stats["samplers"]


def test_a_shuffle_of_python_is_read_ahead(mount, dataset):
    """One generator that shuffles the trainer's list in place before each epoch."""
    m = mount(dataset, "layout=tree,view=all,memory=256M")
    paths, generator = sorted(m.path.glob("*/*")), random.Random(42)
    for epoch in range(3):
        generator.shuffle(paths)
        for i, path in enumerate(paths):
            path.read_bytes()
            if epoch < 2 and i == 96:  # the second epoch shows how the first one goes on
                wait_until(lambda: [s["epoch"] for s in recognised(m)["samplers"]] == [epoch])
    (sampler,) = recognised(m)["samplers"]
    assert sampler["text"].startswith("Python random.shuffle number 3 of seed 42, in place"), sampler
    assert sampler["epoch"] == 2 and sampler["opens"] >= 3 * len(paths) - 2 * 96, sampler


def test_a_shuffle_buffer_is_read_ahead(mount, dataset):
    """As tf.data's shuffle(SIZE): any file of the buffer, and the next one of the sorted list in its place."""
    m, size = mount(dataset, "layout=tree,view=all,memory=256M"), 40
    paths = sorted(m.path.glob("*/*"))
    for epoch in range(3):
        buffer, opened, later = [], 0, iter(paths)
        while opened < len(paths):
            buffer += itertools.islice(later, size - len(buffer))
            buffer.pop(random.randrange(len(buffer))).read_bytes()
            opened += 1
            if epoch == 0 and opened == 96:
                wait_until(lambda: recognised(m)["samplers"])
    stats = recognised(m)
    (sampler,) = stats["samplers"]
    assert sampler["text"].startswith("sorted order behind a shuffle buffer of about "), sampler
    assert stats["order_note"].startswith("recognised: sorted order behind a shuffle buffer"), stats["order_note"]
    assert sampler["epoch"] == 2 and sampler["opens"] >= 3 * len(paths) - 8, sampler
    assert stats["recognise_wrong"] == 0


@pytest.mark.parametrize(("order", "epoch", "world", "rank"), [("full", 5, 1, 0), ("chunk", 2, 2, 1)])
def test_an_order_of_ddpfs_itself_is_recognised(mount, dataset, order, epoch, world, rank):
    """A trainer that goes by a list of .ddpfs/epoch/, or by its rank's part of it, and goes on to the next."""
    m = mount(dataset, f"layout=tree,view=all,memory=256M,order={order}")
    lists = [(m.path / f".ddpfs/epoch/{e}.list").read_text().splitlines() for e in (epoch, epoch + 1)]
    assert len(lists[0]) == CLASSES * PER_CLASS
    part = f", rank {rank} of {world}" if world > 1 else ""
    for i, paths in enumerate(lists):
        for path in paths[rank::world]:
            (m.path / path).read_bytes()
        (sampler,) = recognised(m)["samplers"]
        assert sampler["text"] == f"ddpfs's own order, epoch {epoch + i}{part}", sampler
        assert (sampler["epoch"], sampler["turns"], sampler["repeated"]) == (i, len(paths) // world, 0), sampler


def test_top_and_ctl_tell_how_far_the_sampler_is(mount, dataset):
    """Not the mount's own order, which nobody goes by."""
    m = mount(dataset, "layout=tree,view=all,memory=256M,order=full")
    assert tools.ddpfs("ctl", m.path, "epoch").stdout.startswith("epoch 0: 0 of 3000 samples opened, advance=")
    for path in (m.path / ".ddpfs/epoch/5.list").read_text().splitlines()[0:600:2]:
        (m.path / path).read_bytes()
    (sampler,) = recognised(m)["samplers"]
    assert (sampler["turn"], sampler["turns"]) == (300, 1500), sampler
    said = "ddpfs's own order, epoch 5, rank 0 of 2"
    assert tools.ddpfs("ctl", m.path, "epoch").stdout == f"epoch 0: 300 of 1500, {said}\n"
    assert [s["text"] for s in control.ask(m, "epoch")["samplers"]] == [said]

    def top():
        (line,) = json.loads(tools.ddpfs("top", "--json", "-n", "1", "-d", "0.2", m.path).stdout)["mounts"]
        return line["state"] == "live" and line

    line = wait_until(top, "an answer in time")
    assert (line["epoch"], line["position"], line["turns"]) == (0, 300, 1500), line


def test_bytes_are_right_whoever_reads(mount, dataset, scratch):
    m = mount(dataset, "layout=tree,view=all,memory=16M")
    assert train(m, 1, 0, 3, 2) == train(type("plain", (), {"path": scratch / "tree"}), 1, 0, 3, 2)


def marked(m):
    """What `ddpfs top` says about wrong use of a mount."""
    text = tools.ddpfs("top", "--batch", "--count=1", "--delay=0.1", m.path).stdout
    return [line.removeprefix(f"! {m.path}: ") for line in text.splitlines() if line.startswith(f"! {m.path}: ")]


def test_a_forgotten_set_epoch_is_said_once(mount, dataset):
    m = mount(dataset, "layout=tree,view=all")
    train(m, 2, 0, 5, 3, set_epoch=False)
    stats = recognised(m)
    assert stats["samplers"][0]["repeated"] == 2
    assert "set_epoch" in stats["recognised_note"]
    assert m.log().count("call sampler.set_epoch(epoch)") == 1
    assert "set_epoch" in marked(m)[0]


@pytest.mark.trainers  # test_recognise.c has the schedules; here they are chance
def test_two_jobs_through_one_mount(mount, dataset):
    m = mount(dataset, "layout=tree,view=all")
    jobs = [trainer(m, 2, rank, seed, 1) for rank, seed in ((0, 100), (1, 200))]
    for job in jobs:
        _, err = job.communicate()
        assert job.returncode == 0, err
    samplers = recognised(m)["samplers"]
    assert {s["seed"]: s["first"] for s in samplers} == {100: 0, 200: 1}, samplers
    assert [s["world"] for s in samplers] == [2, 2], samplers


@pytest.mark.parametrize("layout", ["tree", "flat"])
def test_a_sampler_over_a_ranks_part_shards_twice(mount, dataset, layout):
    m = mount(dataset, f"layout={layout},view=rank,rank=0,world=2")
    if layout == "tree":
        train(m, 2, 1, 5, 1)
    else:
        names = sorted(os.listdir(m.path))
        for name in names[1::2]:
            with open(m.path / name, "rb") as file:
                file.read()
    stats = recognised(m)
    assert "view=all" in stats["recognised_note"] and stats["order_source"] == "recognised"
    assert m.log().count("shards this rank's part once more") == 1
    assert "view=all" in marked(m)[0]


@pytest.mark.parametrize("layout", ["tree", "flat"])
def test_a_reader_who_follows_the_listing_of_a_rank_has_the_mounts_own_order(mount, dataset, layout):
    m = mount(dataset, f"layout={layout},view=rank,rank=0,world=2")
    names = sorted(path for path in m.path.rglob("*") if path.is_file() and ".ddpfs" not in path.parts)
    for name in names[:600]:
        name.read_bytes()
    stats = recognised(m)
    assert [s["world"] for s in stats["samplers"]] == [1], stats["samplers"]
    assert (stats["order_source"], stats["order_note"]) == ("own", "own: the order of this mount")


@pytest.mark.parametrize("memory", ["12M", "256M"])
def test_a_random_sampler_over_a_ranks_part_is_recognised_in_each_epoch(mount, pack, scratch, memory):
    """And read ahead, whether all of it has room or not.  A class without a file of this rank shows one of another."""
    for c in range(61):
        path = scratch / f"tree/train/class_{c:02d}"
        path.mkdir(parents=True)
        for i in range(1 if c == 60 else 60):
            (path / f"{i:02d}.jpg").write_bytes(content(f"{c}/{i}", 12000 + i))
            (path / f"{i:02d}.json").write_bytes(b"{}")
    options = f"layout=tree,subdir=train,rank=0,world=2,fill_class=on,memory={memory}"
    m = mount(pack(scratch / "tree", "--sample=key"), options)
    torch.manual_seed(11)
    filled, epochs = 0, 3
    for epoch in range(epochs):
        files = sorted(p for p in (m.path / "train").glob("*/*") if p.suffix == ".jpg")
        filled += len(files) == 1801
        order = list(torch.utils.data.RandomSampler(files))
        for turn, i in enumerate(order):
            if turn >= 128 and turn % 64 == 0:
                wait_until(lambda: (s := recognised(m))["idle"] and s["samplers"], "reading ahead")
            assert files[i].read_bytes() == content(f"{int(files[i].parent.name[-2:])}/{int(files[i].stem)}",
                                                    12000 + int(files[i].stem))
        stats = recognised(m)
        (sampler,) = stats["samplers"]
        assert sampler["text"].startswith("torch RandomSampler after manual_seed(11)"), (epoch, stats)
        assert sampler["list"].startswith("the images of this rank's part") and sampler["after"] <= 128, sampler
        assert sampler["turns"] == len(files)
    assert filled > 0, "an epoch of another seed: the class with one file was this rank's in all of them"
    assert (stats["memory_bytes"] < sum(os.stat(path).st_size for path in files)) == (memory == "12M")
    assert stats["reads"] <= epochs * 128 + early_reads(stats), stats


def test_a_listing_between_does_not_end_what_is_followed(mount, dataset):
    """Half of a rank's tree was opened: from then on a listing shows the next epoch, but the trainer is still in this one."""
    m = mount(dataset, "layout=tree,rank=0,world=2,memory=256M")
    torch.manual_seed(5)
    for epoch in range(2):
        files = sorted(m.path.glob("*/*"))
        for turn, i in enumerate(torch.utils.data.RandomSampler(files)):
            if turn == 1000 and epoch == 0:
                assert os.listdir(m.path)
                assert sorted(m.path.glob("*/*")) != files
            files[i].read_bytes()
            if turn == 1400:
                (sampler,) = recognised(m)["samplers"]
                assert sampler["opens"] > 1300, sampler
        (sampler,) = recognised(m)["samplers"]
        assert sampler["text"].startswith("torch RandomSampler after manual_seed(5)") and sampler["turn"] == 1500, sampler


def test_seeds_are_tried_at_the_lowest_priority(mount, dataset, scratch):
    m = mount(dataset, "layout=tree,view=all,seed_search=2")
    for name in sorted(m.path.glob("*/*"), key=lambda path: zlib.crc32(str(path).encode()))[:700]:
        name.read_bytes()
    search = wait_until(lambda: (s := recognised(m)["seed_search"])["running"] and s, "a search")
    assert (search["begun"], search["found"]) == (1, 0)
    tasks = [task for task in glob.glob(f"/proc/{m.server_pid()}/task/*")
             if Path(task, "comm").read_text() == "seed-scan\n"]
    assert len(tasks) == 2
    for task in tasks:
        assert Path(task, "stat").read_text().rpartition(")")[2].split()[16] == "19"


def test_an_order_of_nobody_is_searched_at_idle_priority(mount, dataset):
    """And within a budget, which the counters tell."""
    m = mount(dataset, "layout=tree,view=all")
    for name in sorted(m.path.glob("*/*"), key=lambda path: zlib.crc32(str(path).encode()))[:700]:
        name.read_bytes()
    stats = recognised(m)
    assert stats["recognised"] == "nothing" and stats["recognise_unexplained"] == 700, stats
    assert stats["recognise_behind"] == 0
    assert 0 < stats["recognise_search_ns"] and stats["recognise_seeds"] > 0
    said = tools.ddpfs("stat", m.path).stdout
    assert re.search(r"nothing recognised after 700 opens, \d+% missed: run the trainer under `ddpfs exec`, ", said), said
    tasks = [int(os.path.basename(task)) for task in glob.glob(f"/proc/{m.server_pid()}/task/*")
             if Path(task, "comm").read_text() == "seed-search\n"]
    assert [os.sched_getscheduler(task) for task in tasks] == [os.SCHED_IDLE]


def test_what_nobody_knows_is_served(mount, dataset):
    m = mount(dataset, "layout=tree,view=all")
    for i in range(0, 3000, 7):
        name = f"class_{i * i * 31 % CLASSES:02d}/item_{i * i * 17 % PER_CLASS:04d}.bin"
        assert (m.path / name).read_bytes() == content(name, 3000 + int(name[-8:-4]))
    assert recognised(m)["recognised"] == "nothing"
    assert control.ask(m, "stat")["ok"]


def test_a_list_that_is_followed_is_not_looked_at_to_the_end(mount, pack, scratch):
    (scratch / "tree").mkdir()
    for i in range(4800):
        (scratch / f"tree/{i:04d}").write_bytes(b"")
    m = mount(pack(scratch / "tree"), "layout=flat,rank=0,world=1")
    names = sorted(os.listdir(m.path))

    def opens(some):
        for name in some:
            with open(m.path / name, "rb"):
                pass
        return recognised(m)["samplers"][0]["opens"]

    settled = opens(names[:4400])
    assert opens(names[4400:]) == settled
