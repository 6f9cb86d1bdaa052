# SPDX-License-Identifier: Apache-2.0
"""A PyTorch dataset whose files nobody can tell: each worker lists them for itself, and C code opens them.  What its
indices mean is learned from what is opened, and from then on the sampler's draws are in memory before they are opened."""

import json
import random
import sys
import textwrap
from array import array

import pytest

from helpers import tools
from helpers.waiting import wait_until

sys.path.insert(0, str(tools.ROOT / "gpu_stage" / "python"))
from ddpfs.index_files import numbered  # noqa: E402
from ddpfs.mount import Mount  # noqa: E402

pytest.importorskip("torch", reason="torch is not installed")
COUNT, BATCH, FIRST = 2000, 8, 400  # files; files of a batch; files that are opened before the trainer looks
# The server is killed: never; after each epoch; once it has found a list, before it is announced; never, and the dataset
# numbers its files in an order of its own.
NEVER, EPOCHS, FOUND, OWN = range(4)

# After its first opens in an epoch the trainer is slow until the server knows its order and has read what fits.  It goes
# on drawing meanwhile, because it compares its draws with those of its copy when it draws.  If the indices are known, it
# waits after the first batch: that is too few opens to learn anything.
TRAINER = """
    import ctypes, json, os, random, signal, sys, time
    import numpy
    from torch.utils.data import DataLoader, Dataset, Sampler, Subset, random_split

    mount, size, workers, kills, waits, left, subsets = sys.argv[1], *map(int, sys.argv[2:])
    libc = ctypes.CDLL(None)
    names = []  # of this process: the copy of the trainer has none

    def stats():
        with open(os.path.join(mount, ".ddpfs/stats.json")) as file:
            return json.load(file)

    class InC(Dataset):
        def __len__(self):
            return size

        def __getitem__(self, i):
            if not names:
                names.extend(sorted(os.path.join(d, n) for d, _, files in os.walk(mount) for n in files))
                if kills == OWN:
                    random.Random(7).shuffle(names)
            fd = libc.open(names[i].encode(), os.O_RDONLY)
            read = os.read(fd, 1 << 16)
            os.close(fd)
            return len(read)

    class Own(Sampler):
        def __iter__(self):
            return iter(numpy.random.permutation(len(data)))

        def __len__(self):
            return len(data)

    def kill_server():
        pid = stats()["server_pid"]
        os.kill(pid, signal.SIGKILL)
        while stats()["server_pid"] == pid:
            time.sleep(0.01)

    if kills == FOUND:
        from _ddpfs_exec.index_files import Search

        go_on, dead = Search.go_on, []

        def go_on_until_found(search, *draws):
            go_on(search, *draws)
            if search.root and not dead:
                kill_server()
                dead.append(True)

        Search.go_on = go_on_until_found

    data = InC()
    if subsets > 0:
        data = random_split(data, [0.8, 0.2])[0]
    if subsets > 1:
        data = Subset(data, numpy.random.permutation(len(data))[1:])
    loader = DataLoader(data, batch_size=BATCH, sampler=Own(), num_workers=workers, persistent_workers=workers > 0)
    for _ in range(left):
        for _ in zip(range(2), loader):
            time.sleep(1)
    for epoch in range(2):
        begun, noted, seen = stats(), None, 0
        for sizes in loader:
            seen += len(sizes)
            known = epoch > 0 and waits and not kills
            for _ in range(0 if noted else 3000 if known else 10 if seen >= FIRST else 0):
                now = stats()
                if now["order_source"] == "announced" and now["idle"] and not now["recognise_queue"] or not waits:
                    noted = now
                    break
                time.sleep(0.02)
        while True:  # until all opens are counted: they are, a moment after they were made
            end = stats()
            time.sleep(0.5)
            if stats()["opens"] == end["opens"]:
                break
        print(json.dumps({"announced": sum(one["entries"] for one in noted["announced"]),
                          "first": noted["misses"] - begun["misses"], "restarts": end["restarts"],
                          **{key: end[key] - noted[key] for key in ("opens", "misses", "lost", "orders_dropped")}}))
        if kills == EPOCHS:
            kill_server()
    """


@pytest.fixture
def train(pack, scratch):
    for i in range(COUNT):
        path = scratch / "tree" / f"class_{i % 10}" / f"{i:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(i).randbytes(500 + i))
    dataset = pack(scratch / "tree")
    (scratch / "mnt").mkdir()
    (scratch / "train.py").write_text(f"BATCH, FIRST, EPOCHS, FOUND, OWN = {BATCH}, {FIRST}, {EPOCHS}, {FOUND}, {OWN}\n" + textwrap.dedent(TRAINER))

    def run(size, workers, kills=NEVER, waits=True, left=0, subsets=0):
        done = tools.ddpfs("exec", "-q", "-o", "view=all,memory=256M", dataset, scratch / "mnt", "--", sys.executable, "-W",
                           "ignore", scratch / "train.py", scratch / "mnt", size, workers, kills, int(waits), left,
                           subsets)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_are_learned_once_for_all_epochs(train, workers):
    def whole():
        epochs = train(COUNT, workers)
        return not any(one["lost"] for one in epochs) and epochs

    first, second = wait_until(whole, "a run in which the kernel takes nothing back")
    for epoch in first, second:
        assert epoch["misses"] < 0.01 * COUNT and epoch["orders_dropped"] == 0
    assert first["announced"] > COUNT // 2 and first["opens"] > COUNT // 3
    assert second["announced"] == COUNT and second["opens"] >= COUNT - 5 * BATCH * max(workers, 1)


@pytest.mark.parametrize("kills", [EPOCHS, FOUND])
def test_a_server_that_was_replaced_learns_them_again(train, kills):
    epochs = train(COUNT, 2, kills=kills)
    for epoch in epochs:
        assert COUNT // 2 < epoch["announced"] <= COUNT
    assert epochs[-1]["restarts"] > 0


def test_loops_that_are_left_early_are_no_proof_that_files_are_not_found(train):
    for epoch in train(COUNT, 0, left=2):
        assert epoch["announced"] > COUNT // 2


def test_trainers_share_what_the_server_has_found(mount, pack, scratch):
    for i in range(COUNT):
        (scratch / "shared" / f"class_{i % 10}").mkdir(parents=True, exist_ok=True)
        (scratch / "shared" / f"class_{i % 10}" / f"{i:05d}.bin").write_bytes(b"x")
    place = mount(pack(scratch / "shared"), "layout=tree,view=all,memory=64M").path
    names = sorted(place.rglob("*.bin"))
    order = random.Random(1).sample(range(COUNT), 400)
    for i in order:
        names[i].read_bytes()
    drawn, trainers = array("q", order), [Mount(place) for _ in range(9)]  # more than there are tables
    wait_until(lambda: trainers[0]._learn(drawn, COUNT)["found"], "the opens tell the list")
    tables = [trainer._learn(drawn, COUNT)["table"] for trainer in trainers]
    for i, table in enumerate(tables):
        assert trainers[i].follow(drawn, list=f"rank{i}", files=numbered(place, table)) == len(order)


def test_the_first_files_of_a_list_are_learned(train):
    for epoch in train(COUNT * 2 // 3, 0):
        assert epoch["announced"] > COUNT // 3


@pytest.mark.parametrize("subsets", [1, 2])
def test_a_subset_is_announced_by_the_indices_of_the_whole(train, subsets):
    def whole():
        epochs = train(COUNT, 0, subsets=subsets)
        return not any(one["lost"] for one in epochs) and epochs

    first, second = wait_until(whole, "a run in which the kernel takes nothing back")
    for epoch in first, second:
        assert epoch["misses"] < 0.01 * COUNT and epoch["orders_dropped"] == 0
    assert first["announced"] > COUNT // 2
    assert second["announced"] == COUNT * 8 // 10 - (subsets - 1)


def test_files_in_an_order_of_their_own_are_not_announced(train):
    assert [epoch["announced"] for epoch in train(COUNT, 2, waits=False, kills=OWN)] == [0, 0]
