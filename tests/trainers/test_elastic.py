# SPDX-License-Identifier: Apache-2.0
"""A job that is killed and goes on with another number of ranks trains each remaining sample exactly once."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from helpers import tools
from trainers.elastic_rank import BATCH
from trainers.launch import ENV, HERE

PYTHON = str(tools.ROOT / "gpu_stage" / "python")


class Job:
    """`world` ranks under `ddpfs exec`, by the one command line of all starts.  The test is launcher, all-reduce and fate."""

    def __init__(self, dataset, scratch, options, world):
        self.checkpoint = scratch / "checkpoint"
        argv = [tools.tool("ddpfs"), "exec", "-q", "-o", f"{options},state=-{self.checkpoint}/data.json", dataset,
                scratch / "mnt", "--", sys.executable, HERE / "elastic_rank.py", self.checkpoint]
        self.ranks = [subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world),
                                            "DDPFS_PROGRAM": tools.tool("ddpfs")},
                                       preexec_fn=tools.die_with_parent)
                      for rank in range(world)]
        self.batches = []  # one list of paths for each step that all ranks made together
        self.loaded = []   # what was read for the next one
        self.epochs = set()
        self.training = self.ranks

    def line(self, rank):
        """What the rank says next; one that ended instead fails the test."""
        text = rank.stdout.readline()
        assert text, f"rank {self.ranks.index(rank)} of {len(self.ranks)} ended: {rank.wait()}, after {len(self.batches)} steps"
        return json.loads(text)

    def load(self):
        """Every rank reads its next batch.  False when none has any; with tail=short some end a batch earlier."""
        said = [(rank, self.line(rank)) for rank in self.training]
        self.training = [rank for rank, what in said if what != "end"]
        self.loaded = [path for _, what in said if what != "end" for path in what[1]]
        self.epochs |= {what[0] for _, what in said if what != "end"}
        return bool(self.training)

    def train(self):
        self.batches.append(self.loaded)
        for rank in self.training:
            print("go", file=rank.stdin, flush=True)

    def save(self, wait=True):
        print("save", len(self.batches), file=self.ranks[0].stdin, flush=True)
        if wait:
            assert self.line(self.ranks[0]) == "saved"

    def kill(self):
        for rank in self.ranks:
            rank.kill()

    def close(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()
            rank.stdout.close()

    def saved(self):
        """Steps of this run that the checkpoint holds: 0 when it is none of this run's."""
        if not self.checkpoint.is_symlink():
            return 0
        _, batches, pid = os.readlink(self.checkpoint).rsplit(".", 2)
        return int(batches) if int(pid) == self.ranks[0].pid else 0


@pytest.fixture
def job(dataset, scratch):
    (scratch / "mnt").mkdir()
    made = []

    def start(options, world):
        made.append(Job(dataset, scratch, options, world))
        return made[-1]

    yield start
    for started in made:
        started.close()


@pytest.fixture
def dataset(pack, tree):
    """100 samples."""
    return pack(tree[0])


# Where a run is killed: after how many trained steps, and in the midst of what.
LOADED, TRAINED, SAVING = "a batch loaded", "a batch trained", "a checkpoint begun"


def killed_run(run, steps, moment, save_every=2):
    """Trains, saves every other step, dies.  Returns the paths that its last checkpoint counts as trained."""
    while run.load():
        if len(run.batches) == steps and moment == LOADED:
            break
        if len(run.batches) and len(run.batches) % save_every == 0 and run.saved() != len(run.batches):
            run.save()
        run.train()
        if len(run.batches) == steps and moment != LOADED:
            assert run.load()
            if moment == SAVING:
                run.save(wait=False)  # it may come to it or not
            break
    run.kill()
    run.close()
    return list(itertools.chain(*run.batches[:run.saved()]))


@pytest.mark.parametrize("options", ["order=full,tail=short", "order=chunk,deal=block,chunk=64K,pool=256K,tail=short",
                                     "order=torch,tail=short"])
@pytest.mark.parametrize("moment", [LOADED, TRAINED, SAVING])
def test_each_sample_once_over_4_3_2_ranks(tree, job, options, moment):
    trained = []
    for world, steps in (4, 3), (3, 1), (3, 4), (2, 3):
        trained += killed_run(job(f"seed=5,{options}", world), steps, moment)
    last = job(f"seed=5,{options}", 2)
    if moment != SAVING:
        assert 0 < len(trained) < 100, "checkpoints were written, and something is left"
    while last.load():
        last.train()
    assert last.epochs == {0}
    trained += itertools.chain(*last.batches)
    assert Counter(trained) == Counter(list(tree[1])), "each sample exactly once"


def test_padding_comes_at_the_very_end_only(tree, job):
    """tail=pad as DistributedSampler: the last run fills up from its own front, the killed ones trained each sample once."""
    trained = killed_run(job("seed=1", 4), 3, TRAINED)
    assert len(trained) == len(set(trained)) == 2 * BATCH * 4
    last = job("seed=1", 3)
    while last.load():
        last.train()
    rest = list(itertools.chain(*last.batches))
    assert Counter(trained + list(set(rest))) == Counter(list(tree[1]))
    assert len(rest) == 78 and len(set(rest)) == 76


def test_after_a_complete_epoch_comes_the_next(tree, job):
    def whole_epoch(world):
        run = job("seed=2,tail=short", world)
        while run.load():
            run.train()
        run.save()
        run.close()
        assert Counter(itertools.chain(*run.batches)) == Counter(list(tree[1]))
        return run.epochs

    assert [whole_epoch(world) for world in (4, 3)] == [{0}, {1}]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# torchrun itself: an agent a node, all on this host

# The ranks' addresses in a store that outlives them are found by the next ranks too: torch 2.13 shares the rendezvous' store by
# default, and gloo then connects to ports of the dead.
STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Agents:
    """torchrun --nnodes=MIN:MAX, one agent and one rank a node; agent 0 keeps the rendezvous."""

    def __init__(self, n, minimum, argv, scratch, environments):
        endpoint = f"127.0.0.1:{free_port()}"
        self.logs = [scratch / f"agent{i}.log" for i in range(n)]
        self.processes = []
        for i in range(n):
            with open(self.logs[i], "wb") as log:
                self.processes.append(subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run", f"--nnodes={minimum}:{n}", "--nproc-per-node=1",
                     "--max-restarts=20", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=elastic",
                     f"--rdzv-conf=last_call_timeout=3,is_host={int(i == 0)}", f"--local-addr=127.0.0.{i + 1}",
                     "--monitor-interval=0.1",
                     "--no-python", *map(str, argv)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=tools.die_with_parent,
                    env={**os.environ, **{k: str(v) for k, v in ENV.items()}, **STORE, **environments[i]}))

    def said(self):
        return "".join(f"--- agent {i}\n{log.read_text(errors='replace')}" for i, log in enumerate(self.logs))

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


@pytest.mark.trainers
def test_torchrun_loses_nodes_and_ranks(tree, dataset, scratch):
    """W 4 -> 4 -> 3 -> 2: a rank is killed and restarted by its agent, then a node goes, and another one."""
    pytest.importorskip("torch", reason="torch is not installed")
    (scratch / "mnt").mkdir()
    notes = scratch / "notes"
    notes.mkdir()
    fates = [{}, {"DIE": "4:2:rank"}, {"DIE": "4:3:node"}, {"DIE": "3:2:node"}]
    agents = Agents(4, 2, [tools.tool("ddpfs"), "exec", "-o", f"seed=5,order=full,tail=pad,state=-{scratch}/checkpoint/data.json",
                           dataset, scratch / "mnt", "--", sys.executable, HERE / "elastic_train.py", scratch / "checkpoint",
                           notes], scratch,
                    [{"PYTHONPATH": PYTHON, "DDPFS_PROGRAM": tools.tool("ddpfs"), **fate} for fate in fates])
    try:
        codes = [process.wait() for process in agents.processes]
    finally:
        agents.close()
    assert codes == [0, 0, -signal.SIGKILL, -signal.SIGKILL], agents.said()
    runs = read_runs(notes)
    kept = [run for run in runs if run["kept"]]
    assert {run["world"] for run in runs} == {4, 3, 2}, runs
    assert len(runs) >= 4 and runs[-1]["world"] == 2
    assert [run["start"] for run in kept] == sorted({run["start"] for run in kept})
    trained = Counter(path for run in kept for path in run["kept"])
    assert set(trained) == set(tree[1])
    extra = sum(trained.values()) - len(trained)
    assert extra <= 1, "only the padding of the last two ranks may repeat a sample"


def read_runs(notes):
    """Each run as its ranks wrote it down, in the order of starts: start (steps), world, and kept, the paths of the batches
    that a checkpoint holds from which the next run went on (of the last run: all)."""
    runs = {}
    for path in notes.iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("]")]
        run_id, world, start = lines[0]
        run = runs.setdefault(run_id, {"id": run_id, "world": world, "start": start, "ranks": []})
        assert (run["world"], run["start"]) == (world, start), "ranks of one run disagree"
        run["ranks"].append(lines[1:])
    ordered = [runs[run_id] for run_id in sorted(runs)]
    for run, after in zip(ordered, [*ordered[1:], None]):
        # steps = start + turns * world: how many of each rank's samples the next run counts as trained.
        turns = (after["start"] - run["start"]) // run["world"] if after else None
        run["kept"] = [path for rank in run["ranks"] for path in list(itertools.chain(*rank))[:turns]]
    return ordered
