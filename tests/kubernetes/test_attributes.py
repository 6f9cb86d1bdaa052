# SPDX-License-Identifier: Apache-2.0
"""What pods may write into volumeAttributes: attributes.py of the driver by itself."""

import re
import sys

import pytest

from helpers import tools

sys.path.insert(0, str(tools.ROOT / "tools" / "kubernetes" / "csi"))
from ddpfs_csi import attributes  # noqa: E402
from ddpfs_csi.attributes import Policy, resolve  # noqa: E402
from ddpfs_csi.failure import Failure  # noqa: E402

POD = "csi.storage.k8s.io/pod.name"


@pytest.fixture
def policy(tmp_path):
    (tmp_path / "data" / "images").mkdir(parents=True)
    return Policy(roots=(str(tmp_path / "data"),), stores=("s3://bucket/sets",), memory_max="8G")


@pytest.fixture
def images(tmp_path, policy):
    return str(tmp_path / "data" / "images")


def refusal(given, policy):
    with pytest.raises(Failure) as caught:
        resolve(given, policy)
    return caught.value.code


def test_every_option_for_pods_is_one_of_ddpfs_mount(build_dir):
    known = set(re.findall(r"^  ([a-z0-9_]+)[= ]", tools.ddpfs("mount", "--help").stdout, re.M))
    assert set(attributes.OPTIONS) - known == set()


@pytest.mark.parametrize("name", [
    "state", "quarantine", "log", "control", "log_level", "debug", "s3_profile", "s3_credentials", "s3_endpoint",
    "s3_region", "s3_anonymous", "threads", "seed_search", "timeout", "watchdog", "allow_other", "noexec", "unheard_of",
    "", "Memory"])
def test_options_that_reach_the_node_are_refused(name, policy, images):
    assert refusal({"dataset": images, "view": "all", name: "1"}, policy) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("name, value", [
    ("subdir", "train,log=/etc/passwd"), ("subdir", "train\\,log=/etc/passwd"), ("subdir", "train\nx"),
    ("subdir", "../other"), ("subdir", "a/../b"), ("subdir", ""), ("seed", "1,state=/etc/shadow"), ("seed", "-1"),
    ("seed", "1\n"), ("view", "ALL"), ("memory", "many"), ("uid", "root"), ("umask", "8"), ("order", "torch,debug"),
    ("past", "4x2,debug"), ("world", "2 ")])
def test_values_that_are_no_values_are_refused(name, value, policy, images):
    assert refusal({"dataset": images, "view": "all", name: value}, policy) == "INVALID_ARGUMENT"


def test_what_is_allowed_becomes_options(policy, images):
    given = {"dataset": images, "view": "all", "subdir": "train/cats and dogs", "memory": "512M", "past": "4x20+8x3",
             "csi.storage.k8s.io/serviceAccount.tokens": "{a: b, c}"}
    assert resolve(given, policy) == (images, {"view": "all", "subdir": "train/cats and dogs", "memory": "512M",
                                               "past": "4x20+8x3"})


def test_memory_is_bounded_and_has_a_default(policy, images):
    assert resolve({"dataset": images}, policy)[1] == {"memory": "8G"}
    assert resolve({"dataset": images, "memory": "8192M"}, policy)[1] == {"memory": "8192M"}
    assert refusal({"dataset": images, "memory": "9G"}, policy) == "INVALID_ARGUMENT"
    assert refusal({"dataset": images, "memory": "8589934593"}, policy) == "INVALID_ARGUMENT"


def test_only_datasets_of_the_roots(policy, images, tmp_path):
    (tmp_path / "data2").mkdir()
    (tmp_path / "data" / "out").symlink_to("/etc")
    (tmp_path / "data" / "in").symlink_to("images")
    assert resolve({"dataset": str(tmp_path / "data" / "in")}, policy)[0] == images
    for path in "/etc", str(tmp_path / "data2"), f"{images}/../../data2", str(tmp_path / "data" / "out"):
        assert refusal({"dataset": path}, policy) == "PERMISSION_DENIED", path
    assert refusal({"dataset": f"{images}2"}, policy) == "NOT_FOUND"
    for path in "images", "", "-f", f"{images},debug", f"{images}\n":
        assert refusal({"dataset": path}, policy) == "INVALID_ARGUMENT", path
    assert refusal({}, policy) == "INVALID_ARGUMENT"


def test_a_link_into_a_path_that_is_no_option_is_refused(policy, tmp_path):
    (tmp_path / "data" / "a,b").mkdir()
    (tmp_path / "data" / "link").symlink_to("a,b")
    assert refusal({"dataset": str(tmp_path / "data" / "link")}, policy) == "INVALID_ARGUMENT"


def test_only_datasets_of_the_stores(policy):
    for address in "s3://bucket/sets", "s3://bucket/sets/images":
        assert resolve({"dataset": address}, policy)[0] == address
    for address in ("s3://bucket/sets2", "s3://other/sets", "http://bucket/sets", "https://s3://bucket/sets"):
        assert refusal({"dataset": address}, policy) == "PERMISSION_DENIED", address
    for address in ("s3://bucket/sets/../private", "s3://bucket/sets/..", "s3://bucket/sets/./x",
                    "s3://user@bucket/sets", "s3://bucket/sets?x", "s3://bucket/sets/%2e%2e/private",
                    "s3://bucket/sets,debug"):
        assert refusal({"dataset": address}, policy) == "INVALID_ARGUMENT", address


@pytest.mark.parametrize("rank, pod, more, expected", [
    ("job-index", "train-3-x7k2p", {}, "3"),
    ("job-index", "set-worker-0-12-bcdfg", {}, "12"),
    ("ordinal", "train-5", {}, "5"),
    ("ordinal", "train-1-worker-6", {}, "6"),
    ("job-index", "train-2-x7k2p", {"podRanks": "8", "localRank": "3"}, "19"),
    ("ordinal", "train-2", {"podRanks": "8"}, "16"),
    ("4", "anything", {}, "4"),
])
def test_rank_of_a_pod(rank, pod, more, expected, policy, images):
    assert resolve({"dataset": images, "rank": rank, "world": "64", POD: pod, **more}, policy)[1]["rank"] == expected


def test_the_ranks_of_the_manual_are_values():
    text = (tools.ROOT / "tools" / "kubernetes" / "README.md").read_text()
    found = re.findall(r"(rank|world): ([a-z]+:[^`\s]+|\"[0-9]+\")", text)
    assert len(found) >= 12
    for name, value in found:
        assert re.fullmatch(attributes.OPTIONS[name], value.strip('"')), value


@pytest.mark.parametrize("given", [
    {"rank": "job-index", "world": "4", POD: "train-x7k2p"},
    {"rank": "job-index", "world": "4", POD: "train-3"},
    {"rank": "ordinal", "world": "4", POD: "train-3-x7k2p"},
    {"rank": "ordinal", "world": "4"},
    {"rank": "ordinal", "world": "4", POD: "train-4"},
    {"rank": "ordinal", POD: "train-4"},
    {"rank": "4", "world": "4"},
    {"world": "4"},
    {"rank": "0", "world": "4", "podRanks": "2"},
    {"rank": "ordinal", "world": "8", POD: "train-1", "podRanks": "2", "localRank": "2"},
])
def test_a_rank_that_is_none_is_refused(given, policy, images):
    assert refusal({"dataset": images, **given}, policy) == "INVALID_ARGUMENT"
