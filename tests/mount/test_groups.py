# SPDX-License-Identifier: Apache-2.0
"""groups=G,redeal=K: a rank keeps its files for K epochs, and all ranks together read the dataset."""

import json
import os

import pytest

from helpers import tools
from helpers.waiting import wait_until
from mount.control import ask, stats
from mount.test_flat import dealt


def listed(m, epoch):
    return (m.path / f".ddpfs/epoch/{epoch}.list").read_text().splitlines()


@pytest.mark.parametrize("rank, world, groups, warned", [
    (0, 6, 4, True), (1, 6, 4, False), (0, 3, 4, True), (0, 4, 4, False), (0, 8, 4, False), (0, 2, 4, False),
])
def test_groups_that_do_not_fit_the_world_are_warned_of(mount, pack, tree, rank, world, groups, warned):
    """Once a job: by the first rank."""
    m = mount(pack(tree[0]), f"rank={rank},world={world},groups={groups},order=full")
    assert m.log().count(f"groups={groups} does not fit world={world}") == warned, m.log()


@pytest.mark.parametrize("order", ["full", "chunk,chunk=64K"])
@pytest.mark.parametrize("layout", ["flat", "tree"])
def test_four_ranks_keep_their_files_for_three_epochs(mount, pack, tree, order, layout):
    dataset, files = pack(tree[0]), set(tree[1])
    ranks = [mount(dataset, f"rank={r},world=4,groups=4,redeal=3,order={order},layout={layout}") for r in range(4)]
    orders = [[listed(m, epoch) for m in ranks] for epoch in range(7)]
    sets = [[frozenset(paths) for paths in of_epoch] for of_epoch in orders]
    for of_epoch in sets:
        assert [len(paths) for paths in of_epoch] == [25] * 4 and set().union(*of_epoch) == files
    assert sets[0] == sets[1] == sets[2] and sets[3] == sets[4] == sets[5]
    assert all(a != b for a, b in zip(sets[0], sets[3])) and all(a != b for a, b in zip(sets[3], sets[6]))
    assert all(a != b for earlier, later in zip(orders, orders[1:]) for a, b in zip(earlier, later))


def test_ranks_of_a_host_share_a_group(mount, pack, tree):
    """world=4, groups=2: the names carry positions, whose group is the remainder."""
    dataset = pack(tree[0])
    for rank in range(4):
        steps = [step for step, _ in dealt(mount(dataset, f"rank={rank},world=4,groups=2,order=full").path)]
        assert len(steps) == 25 and {step % 2 for step in steps} == {rank // 2}


def test_what_a_rank_opens_is_its_progress(mount, pack, tree):
    """Rank 1 of 4 in 2 groups does not have the positions of rank 1 without groups."""
    m = mount(pack(tree[0]), "rank=1,world=4,groups=2,order=full,tail=short")
    for epoch in range(2):
        names = sorted(os.listdir(m.path))
        assert len(names) == 25 and all(name.startswith(f"{epoch:04}-") for name in names)
        for name in names:
            (m.path / name).read_bytes()
        wait_until(lambda: stats(m)["opened"] == 25, "all opens")


def test_a_state_goes_on_at_another_world(mount, pack, tree, scratch):
    dataset, files = pack(tree[0]), tree[1]
    first = [mount(dataset, f"rank={r},world=4,groups=4,redeal=2,order=full,tail=short,epoch=3") for r in range(4)]
    trained = [path for m in first for path in listed(m, 3)[:10]]
    state = ask(first[0], "state", turns=10, epoch=3)["state"]
    assert state["groups"] == [4, 2] and state["start"] == 40
    (scratch / "state").write_text(json.dumps(state))
    for world in [2, 3]:
        rest = [path for r in range(world) for path in listed(mount(dataset, f"rank={r},world={world},state={scratch}/state"), 3)]
        assert sorted(trained + rest) == sorted(files)


def test_the_identity_of_a_view_tells_groups(mount, pack, tree):
    dataset = pack(tree[0])
    common = "world=4,order=full,deal=stride"
    ids = [os.getxattr(mount(dataset, f"rank={rank},{common}{more}").path, "user.ddpfs.view") for rank, more in [
        (0, ""), (0, ",groups=1"), (0, ",groups=4"), (1, ",groups=4"), (0, ",groups=4,redeal=2")]]
    assert ids[0] == ids[1] and ids[2] == ids[3] and len(set(ids)) == 3


def test_the_statistics_name_groups(mount, pack, tree):
    m = mount(pack(tree[0]), "rank=0,world=4,groups=4,redeal=2,order=full")
    assert (stats(m)["groups"], stats(m)["redeal"], stats(m)["deal"]) == (4, 2, "stride")


@pytest.mark.parametrize("options, code, words", [
    ("rank=0,world=4,groups=0", 2, ["groups=0", "at least 1"]),
    ("rank=0,world=4,groups=4,redeal=0", 2, ["redeal=0", "at least 1"]),
    ("rank=0,world=4,groups=many", 2, ["groups=many", "whole number"]),
    ("rank=0,world=4,groups=101", 1, ["groups=101", "100 samples"]),
    ("rank=0,world=4,redeal=2", 1, ["redeal=2", "groups=G"]),
    ("rank=0,world=4,groups=4,order=torch", 1, ["groups=4", "order=torch", "order=full"]),
    ("rank=0,world=4,groups=4,deal=block", 1, ["groups=4", "deal=block", "deal=stride"]),
    ("view=all,groups=4", 2, ["groups=", "view=all"])])
def test_wrong_groups_get_one_line(pack, tree, scratch, options, code, words):
    (scratch / "mnt").mkdir()
    done = tools.ddpfs("mount", "-o", options, pack(tree[0]), scratch / "mnt", check=False)
    assert done.returncode == code and not done.stdout
    for word in words:
        assert word in done.stderr.splitlines()[0]
