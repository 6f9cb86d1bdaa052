# SPDX-License-Identifier: Apache-2.0
"""ddpfs.mounted(): a mount for the length of a block, whatever ends it, and the state that a checkpoint keeps."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from helpers import mounts, tools  # noqa: E402

PYTHON = str(tools.ROOT / "gpu_stage" / "python")
sys.path.insert(0, PYTHON)
import ddpfs  # noqa: E402


@pytest.fixture(autouse=True)
def programs(build_dir, monkeypatch, scratch):
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    monkeypatch.setenv("DDPFS_PROGRAM", tools.tool("ddpfs"))
    monkeypatch.setenv("PYTHONPATH", PYTHON)
    monkeypatch.setenv("TMPDIR", str(scratch))  # for mountpoints of their own
    monkeypatch.setattr("tempfile.tempdir", str(scratch))


@pytest.fixture
def dataset(pack, tree):
    """100 samples."""
    return pack(tree[0])


def steps(place):
    return [int(name.split("-")[1]) for name in sorted(os.listdir(place))]


def wait_unmounted(place):
    while mounts.is_mounted(place):
        time.sleep(0.01)


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("kind", [None, ValueError, KeyboardInterrupt, SystemExit, Stopped])
def test_unmounted_whatever_ends_the_block(dataset, kind):
    place = None
    try:
        with ddpfs.mounted(dataset, rank=0, world=2) as place:
            assert steps(place) == list(range(0, 100, 2))
            if kind:
                raise kind
    except BaseException as error:
        assert type(error) is kind
    assert place and not mounts.is_mounted(place) and not place.exists()


def test_a_block_that_changes_directory(dataset, scratch, monkeypatch):
    (scratch / "here").mkdir()
    monkeypatch.chdir(scratch)
    with ddpfs.mounted(dataset, view="all", mountpoint="here") as place:
        os.chdir("/")
        assert len(list(place.rglob("*.bin"))) == 100
    assert not mounts.is_mounted(scratch / "here")


def test_a_value_with_quotes_commas_and_backslashes(dataset, scratch):
    log = scratch / 'a "log", with \\ and "'
    with ddpfs.mounted(dataset, view="all", log=log):
        assert log.exists()


def test_switches(dataset):
    with ddpfs.mounted(dataset, rank=0, world=1, layout="tree", fill_class=True, allow_other=True) as place:
        assert (place.stat().st_mode & 0o005) and len(list(place.rglob("*.bin"))) == 100
    with ddpfs.mounted(dataset, view="all", fill_class=False, allow_other=False):
        pass


def test_unmounted_while_a_file_is_open(dataset):
    with ddpfs.mounted(dataset, view="all") as place:
        file = open(place / "class_00/item_0003.bin", "rb")
    assert not mounts.is_mounted(place)
    assert len(file.read()) == 512, "who has it open reads on"
    file.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_unmounted_when_the_process_is_killed(dataset, scratch, number):
    place = scratch / "mnt"
    place.mkdir()
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(f"""
        import os, time, ddpfs
        with ddpfs.mounted({str(dataset)!r}, rank=0, world=1, mountpoint={str(place)!r}) as place:
            print(len(os.listdir(place)), flush=True)
            time.sleep(1000)
        """)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "100\n"
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    wait_unmounted(place)


def run(script):
    return tools.run([sys.executable, "-c", textwrap.dedent(script)]).stdout


def test_a_forked_child_does_not_unmount(dataset):
    """It leaves its parent's block too, when an exception unwinds it."""
    assert run(f"""
        import os, sys, ddpfs
        with ddpfs.mounted({str(dataset)!r}, rank=0, world=1) as place:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)
            print(len(os.listdir(place)))
        """) == "100\n"


def test_a_mount_of_somebody_else_is_left_alone(dataset, mount):
    other = mount(dataset, "view=all")
    with pytest.raises(RuntimeError, match="already"):
        with ddpfs.mounted(dataset, rank=0, world=1, mountpoint=other.path):
            pass
    assert mounts.is_mounted(other.path)


def test_set_epoch(dataset):
    with ddpfs.mounted(dataset, rank=0, world=1, seed=3) as place:
        assert place.epoch == 0
        place.set_epoch(5)
        assert place.epoch == 5 and all(name.startswith("0005-") for name in os.listdir(place))


def test_a_state_goes_on_with_another_number_of_ranks(dataset):
    with ddpfs.mounted(dataset, rank=1, world=4, seed=9, order="full") as place:
        first = [set(os.listdir(place))]
        state = place.state(0, 10)
        whole = json.loads(state)
        assert (whole["epoch"], whole["start"], whole["seed"]) == (0, 40, 9)
        assert json.loads(place.state(2, 25))["epoch"] == 3, "all of an epoch is the beginning of the next"
    left = []
    for rank in range(3):
        with ddpfs.mounted(dataset, rank=rank, world=3, tail="pad", state=state) as place:
            assert place.epoch == 0
            left += steps(place)
    assert sorted(left) == list(range(40, 100)) and len(first[0]) == 25
    with pytest.raises(RuntimeError, match="seed"):
        with ddpfs.mounted(dataset, rank=0, world=3, seed=8, state=state):
            pass


def test_under_exec_the_mount_is_in_the_environment(dataset, scratch):
    done = tools.run([tools.tool("ddpfs"), "exec", "-q", "-o", "rank=1,world=2,start=10", dataset, scratch / "mnt", "--",
                      sys.executable, "-c", "import os, ddpfs; m = ddpfs.Mount(os.environ['DDPFS_MOUNT']); "
                      "print(m.epoch, m.state(0, 4))"])
    epoch, state = done.stdout.split(" ", 1)
    assert epoch == "0" and json.loads(state)["start"] == 18


@pytest.mark.trainers
def test_spawned_ranks_mount_their_own(dataset, scratch):
    """torch.multiprocessing.spawn: the rank is the first argument, too late for a launcher's variables."""
    pytest.importorskip("torch", reason="torch is not installed")
    (scratch / "spawned.py").write_text(textwrap.dedent(f"""
        import json, os, time
        import ddpfs
        import torch.multiprocessing as mp

        def train(rank, world):
            with ddpfs.mounted({str(dataset)!r}, rank=rank, world=world) as place:
                with open(f"{scratch}/{{rank}}.part", "w") as f:
                    json.dump([str(place), os.listdir(place)], f)
                os.rename(f"{scratch}/{{rank}}.part", f"{scratch}/{{rank}}.json")
                while rank == 0 or not os.path.exists("{scratch}/0.json"):
                    time.sleep(0.01)
                raise RuntimeError("rank 1 fails")  # upon which torch ends rank 0 by SIGTERM

        if __name__ == "__main__":
            mp.spawn(train, args=(2,), nprocs=2)
        """))
    done = tools.run([sys.executable, scratch / "spawned.py"], check=False)
    assert "rank 1 fails" in done.stderr
    ranks = [json.loads((scratch / f"{rank}.json").read_text()) for rank in range(2)]
    assert len(set(ranks[0][1] + ranks[1][1])) == 100
    for place, _ in ranks:
        wait_unmounted(place)


@pytest.mark.parametrize("state, error", [({}, ValueError), ("", ValueError), (7, TypeError)])
def test_no_state_at_all_says_what_to_give(dataset, state, error):
    with pytest.raises(error, match="give the text that Mount.state\\(\\) gave, or None"):
        with ddpfs.mounted(dataset, rank=0, world=2, state=state):
            pass


def test_a_state_read_with_json_is_one_too(dataset):
    with ddpfs.mounted(dataset, rank=0, world=2) as place:
        state = place.state(0, 2)
    with ddpfs.mounted(dataset, rank=0, world=2, state=json.loads(state)) as place:
        assert place.state(0, 0) == state


def test_all_files_have_no_state(dataset):
    with ddpfs.mounted(dataset, view="all") as place:
        with pytest.raises(RuntimeError, match="own sampler goes on"):
            place.state(0, 2)
    with pytest.raises(RuntimeError, match="state= is for rank views"):
        with ddpfs.mounted(dataset, view="all", state="{}"):
            pass
