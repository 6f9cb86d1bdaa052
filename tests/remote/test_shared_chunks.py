# SPDX-License-Identifier: Apache-2.0
"""order=chunk in a store with several ranks: what the log and `ddpfs doctor` advise keeps chunks apart, and costs less."""

import json
import os
import re

import pytest

from helpers import datasets, tools
from helpers.http_store import HttpStore
from helpers.pages import undisturbed
from mount import control

FILES, SIZE, WORLD = 8400, 8192, 2  # 65 MiB: less is soon there, and nothing is said
CHUNK = "order=chunk,chunk=512K,pool=4M,memory=32M"
WARNS = "takes a part of every chunk"
OPTIONS = re.compile(r"groups=\d+,redeal=\d+")


@pytest.fixture(scope="module")
def packed(build_dir, tmp_path_factory):
    del build_dir
    place = tmp_path_factory.mktemp("packed")
    datasets.write_tree(place / "source", classes=4, per_class=FILES // 4, sizes=(SIZE,))
    tools.mkshard("pack", place / "source", place / "train")
    return place / "train"


@pytest.fixture
def store(packed, scratch):
    with HttpStore(packed.parent, scratch) as one:
        yield one


@pytest.fixture
def url(store):
    return f"{store.url}/train"


def answers_for_shards(store):
    return [answer for answer in store.answers() if "/shard-" in answer[1]]


def epoch(mount, store, url, options):
    """Requests and bytes of an epoch of all ranks, and the logs of their mounts."""
    before, logs = len(answers_for_shards(store)), []
    for rank in range(WORLD):
        m = mount(url, f"rank={rank},world={WORLD},layout=flat,{options}")
        for name in sorted(name for name in os.listdir(m.path) if not name.startswith(".")):
            (m.path / name).read_bytes()
        m.unmount()
        logs.append(m.log())
    answers = answers_for_shards(store)[before:]
    return len(answers), sum(int(last) - int(first) + 1 for _, _, first, last in answers), logs


def test_what_is_advised_costs_less(url, store, mount):
    store.set(latency_ms=20)
    requests, size, (first, other) = epoch(mount, store, url, CHUNK)
    assert first.count(WARNS) == 1 and WARNS not in other
    advised = OPTIONS.search(first)[0]

    def measured(begin):
        begin()
        return epoch(mount, store, url, f"{CHUNK},{advised}")

    few_requests, small_size, logs = undisturbed(measured)
    assert not any(WARNS in log for log in logs)
    assert few_requests * 3 < requests and small_size * 1.25 < size, (requests, size, few_requests, small_size)


@pytest.mark.parametrize("options", ["rank=0,world=1", "rank=1,world=2", "rank=0,world=2,deal=block", "view=all",
                                     "rank=0,world=2,groups=2", "rank=0,world=2,order=full",
                                     "rank=0,world=2,tier={tier},tier_size=64M"])
def test_nothing_is_said_where_it_costs_nothing(options, scratch, url, mount):
    (scratch / "tier").mkdir()
    assert WARNS not in mount(url, f"{CHUNK},{options.format(tier=scratch / 'tier')}").log()


def test_nothing_is_said_of_a_disk(packed, mount):
    assert WARNS not in mount(packed, f"{CHUNK},rank=0,world=2").log()


def test_doctor_says_what_to_give(url, mount):
    m = mount(url, f"rank=1,world={WORLD},{CHUNK}")
    control.settled(m)
    found = json.loads(tools.ddpfs("doctor", "--json", m.path, check=False).stdout)["findings"]
    advice = [one["advice"] for one in found if one["level"] == "warning" and WARNS in one["text"]]
    assert len(advice) == 1 and f"groups={WORLD},redeal=1" in advice[0], found
