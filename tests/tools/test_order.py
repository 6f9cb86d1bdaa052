# SPDX-License-Identifier: Apache-2.0
"""`ddpfs order`: what the ranks will see, printed without a mount."""

import array
import fcntl
import json
import math
import subprocess
import termios
import time

import pytest

from helpers import tools
from helpers.terminal import OnTerminal

CLASSES, PER_CLASS = 5, 21
N = CLASSES * PER_CLASS


@pytest.fixture
def dataset(build_dir, scratch):
    """The index of 105 samples of 4 KiB in 5 classes, packed shuffled; it needs no shards to be looked at."""
    tools.run([build_dir / "tests" / "shard" / "make_index", scratch / "dataset", CLASSES, PER_CLASS, 4096, "shuffled"])
    return scratch / "dataset"


def names():
    return [f"class_{c:04d}/item_{i:06d}.bin" for c in range(CLASSES) for i in range(PER_CLASS)]


def order(dataset, options="", *args):
    """[(position, rank, path)] as printed."""
    out = tools.ddpfs("order", dataset, *(["-o", options] if options else []), *args).stdout
    return [(int(p), int(r), path) for p, r, path in (line.split("\t") for line in out.splitlines())]


def test_lists_every_sample_once_in_global_order(dataset):
    for mode in ["auto", "full", "chunk", "torch", "none"]:
        for world in [1, 2, 3, 16]:
            lines = order(dataset, f"order={mode},world={world},tail=short")
            assert [p for p, _, _ in lines] == list(range(N))
            assert [r for _, r, _ in lines] == [p % world for p in range(N)]
            assert sorted(path for _, _, path in lines) == names()


def test_padding_repeats_the_first_ones(dataset):
    lines = order(dataset, "order=full,world=4")
    assert len(lines) == math.ceil(N / 4) * 4
    assert [path for _, _, path in lines[N:]] == [path for _, _, path in lines[:len(lines) - N]]


@pytest.mark.parametrize("deal", ["stride", "block"])
def test_a_rank_gets_its_part_of_the_whole(dataset, deal):
    whole = order(dataset, f"order=chunk,chunk=16K,deal={deal},world=4,seed=3,epoch=2")
    for rank in range(4):
        part = order(dataset, f"order=chunk,chunk=16K,deal={deal},world=4,rank={rank},seed=3,epoch=2")
        assert part == [line for line in whole if line[1] == rank]


def test_torch_order_is_that_of_randperm(dataset):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    perm = torch.randperm(N, generator=torch.Generator().manual_seed(9)).tolist()
    assert [path for _, _, path in order(dataset, "order=torch,seed=7,epoch=2")] == [names()[i] for i in perm]


def test_where_agrees_with_the_list(dataset):
    options = "order=full,world=3,seed=1"
    ranks = {r: order(dataset, f"{options},rank={r}") for r in range(3)}
    for position, rank, path in order(dataset, options)[:N:10]:
        at = json.loads(tools.ddpfs("order", dataset, "-o", options, "--json", "--where", path).stdout)
        assert (at["position"], at["rank"], at["path"]) == (position, rank, path)
        assert ranks[rank][at["step"]] == (position, rank, path)
        said = tools.ddpfs("order", dataset, "-o", options, "--where", path).stdout
        assert said == f"epoch 0: position {position}, rank {rank} of 3, step {at['step']} of 35\n"


def test_json_and_null_say_the_same(dataset):
    lines = order(dataset, "order=full,world=2")
    objects = [json.loads(line) for line in tools.ddpfs("order", dataset, "-o", "order=full,world=2", "--json")
               .stdout.splitlines()]
    assert [(o["position"], o["rank"], o["path"]) for o in objects] == lines
    assert [o["path"] for o in objects[:N]] == [names()[o["sample"]] for o in objects[:N]]
    null = tools.ddpfs("order", dataset, "-o", "order=full,world=2", "-0").stdout
    assert null.split("\0")[:-1] == ["\t".join(map(str, line)) for line in lines]


def test_limit(dataset):
    assert order(dataset, "order=full", "--limit", "7") == order(dataset, "order=full")[:7]
    assert order(dataset, "order=full", "--limit", "0") == []


def test_start_leaves_out_what_was_trained(dataset):
    whole = order(dataset, "order=full,world=4,tail=short")
    rest = order(dataset, "order=full,world=3,start=40,tail=short")
    assert [(p, path) for p, _, path in rest] == [(p, path) for p, _, path in whole[40:]]


def test_state_file_continues_a_job(dataset, scratch):
    state = {"version": 1, "dataset": json.loads(tools.mkshard("info", "--json", dataset).stdout)["identity"],
             "order": "full", "deal": "stride", "seed": 5, "epoch": 2, "start": 60, "tail": "short"}
    (scratch / "state").write_text(json.dumps(state))
    rest = order(dataset, f"state={scratch}/state,world=2")
    assert rest == order(dataset, "order=full,seed=5,epoch=2,start=60,tail=short,world=2")
    wrong = tools.ddpfs("order", dataset, "-o", f"state={scratch}/state,seed=6", check=False)
    assert wrong.returncode == 1 and "seed=6" in wrong.stderr and "seed=5" in wrong.stderr


@pytest.mark.parametrize("options, code, word", [
    ("rank=3,world=3", 2, "rank=3"),
    ("rank=0", 2, "world is missing"),
    ("world=0", 2, "world=0"),
    ("order=random", 2, "full, chunk, torch or none"),
    ("subdir=nowhere", 1, "nowhere"),
    ("start=106", 1, "start=106"),
    ("deal=block,start=5", 1, "give state="),
    ("deal=block,start=5,past=2x4", 1, "adds up to 4"),
    ("colour=red", 2, "colour"),
    ("state=/nonexistent/state", 1, "/nonexistent/state"),
])
def test_wrong_options_get_one_line(dataset, options, code, word):
    done = tools.ddpfs("order", dataset, "-o", options, check=False)
    assert done.returncode == code
    assert done.stdout == ""
    assert word in done.stderr.splitlines()[0]
    assert code == 2 or len(done.stderr.splitlines()) == 1


def test_where_says_why_not(dataset):
    for path, word in [("class_0001", "is a directory"), ("class_0001/none.bin", "holds no")]:
        done = tools.ddpfs("order", dataset, "--where", path, check=False)
        assert done.returncode == 1 and word in done.stderr
    first = order(dataset, "order=full")[0][2]
    done = tools.ddpfs("order", dataset, "-o", "order=full,start=1", "--where", first, check=False)
    assert done.returncode == 1 and "start=1" in done.stderr and "dropped" not in done.stderr


def test_blocks_resume_with_past(dataset):
    """4 ranks stop after 40 samples; 3 go on: each remaining sample once, none of the others."""
    first = order(dataset, "order=chunk,chunk=16K,deal=block,world=4,tail=short")[:40]
    rest = order(dataset, "order=chunk,chunk=16K,deal=block,world=3,tail=short,past=4x40")
    assert [p for p, _, _ in rest] == list(range(40, N))
    assert sorted(path for _, _, path in first + rest) == names()


def test_groups_change_who_reads_and_not_what_comes(dataset):
    """The sample of a position does not depend on the world.  Neighbouring ranks read one group."""
    whole = order(dataset, "order=full,groups=4,redeal=2,tail=short")
    for world in [2, 3, 4, 8]:
        lines = order(dataset, f"order=full,groups=4,redeal=2,tail=short,world={world}")
        assert [(p, path) for p, _, path in lines] == [(p, path) for p, _, path in whole]
        for rank in range(world):
            part = order(dataset, f"order=full,groups=4,redeal=2,tail=short,world={world},rank={rank}")
            assert part == [line for line in lines if line[1] == rank]
            where = tools.ddpfs("order", dataset, "-o", f"order=full,groups=4,redeal=2,tail=short,world={world}",
                                "--where", part[3][2]).stdout
            assert f"position {part[3][0]}, rank {rank} of {world}, step 3 of" in where
            if world in [4, 8]:
                assert {p % 4 for p, _, _ in part} == {rank * 4 // world}
    assert sorted(path for _, _, path in whole) == names()


def test_a_bar_shows_how_far_it_is(build_dir, scratch):
    """Standard output is a pipe that is not read for a while, and standard error is a terminal."""
    tools.run([build_dir / "tests/shard/make_index", scratch / "many", 10, 1000, 4096, "shuffled"])
    with OnTerminal([tools.tool("ddpfs"), "order", scratch / "many"], stdout=subprocess.PIPE, text=True) as ran:
        waiting = array.array("i", [0])
        while waiting[0] < 65536:  # the pipe is full
            assert ran.process.poll() is None
            fcntl.ioctl(ran.process.stdout, termios.FIONREAD, waiting)
            time.sleep(0.01)
        time.sleep(0.2)  # the bar is drawn ten times a second
        assert len(ran.process.stdout.read().splitlines()) == 10_000
        assert ran.wait() == 0
    assert "listing [" in ran.text and " of 10000" in ran.text
