# SPDX-License-Identifier: Apache-2.0
"""Ranks that annotations, labels and variables of a pod tell: the driver asks an API server that the test plays."""

import socket
import sys

import pytest

from helpers import tools
from helpers.api_server import HOST, TOKEN, field, make_certificate, variable

sys.path.insert(0, str(tools.ROOT / "tools" / "kubernetes" / "csi"))
from ddpfs_csi import pod_numbers  # noqa: E402
from ddpfs_csi.api_server import ApiServer  # noqa: E402
from ddpfs_csi.attributes import Policy, resolve  # noqa: E402
from ddpfs_csi.failure import Failure  # noqa: E402

INDEX = "batch.kubernetes.io/job-completion-index"
LEADER = "leaderworkerset.sigs.k8s.io"


def failure_of(call, *arguments):
    with pytest.raises(Failure) as caught:
        call(*arguments)
    return caught.value.code, caught.value.text


@pytest.fixture
def asker(api, monkeypatch):
    for name, value in api.environment.items():
        monkeypatch.setenv(name, str(value))
    return ApiServer(api.account, timeout_s=30)


@pytest.fixture
def volume(api, asker, tmp_path):
    """volume(rank=..., ...) -> (rank, world) of the volume of pod team/a."""
    (tmp_path / "data").mkdir()

    def options(**attributes):
        pod = {"namespace": "team", "name": "a", "uid": "uid-of-a"}
        given = {"dataset": str(tmp_path / "data"), **attributes,
                 **{f"csi.storage.k8s.io/pod.{name}": value for name, value in pod.items()}}
        found = resolve(given, Policy((str(tmp_path / "data"),)), asker.find_pod)[1]
        return found["rank"], found["world"]
    return options


# What stands in the pod


@pytest.mark.parametrize("pod, attributes, expected", [
    ({"annotations": {"rank": "3", "x.y/world": "8"}}, {"rank": "annotation:rank", "world": "annotation:x.y/world"},
     ("3", "8")),
    ({"labels": {INDEX: "2"}}, {"rank": f"label:{INDEX}", "world": "4"}, ("2", "4")),
    ({"labels": {"apps.kubernetes.io/pod-index": "0"}}, {"rank": "label:apps.kubernetes.io/pod-index", "world": "1"},
     ("0", "1")),
    ({"labels": {f"{LEADER}/worker-index": "1"}, "annotations": {f"{LEADER}/size": "2"}},
     {"rank": f"label:{LEADER}/worker-index", "world": f"annotation:{LEADER}/size"}, ("1", "2")),
    ({"env": [variable("RANK", "5"), variable("WORLD_SIZE", "6")]}, {"rank": "env:RANK", "world": "env:WORLD_SIZE"},
     ("5", "6")),
    ({"annotations": {INDEX: "7"}, "env": [variable("PET_NODE_RANK", **field(f"metadata.annotations['{INDEX}']"))]},
     {"rank": "env:PET_NODE_RANK", "world": "8"}, ("7", "8")),
    ({"labels": {"index": "7"}, "env": [variable("RANK", **field("metadata.labels['index']"))]},
     {"rank": "env:RANK", "world": "8"}, ("7", "8")),
    ({"env": [variable("RANK", "1"), variable("RANK", "2")]}, {"rank": "env:RANK", "world": "3"}, ("2", "3")),
    ({"labels": {INDEX: "2"}}, {"rank": f"label:{INDEX}", "world": "32", "podRanks": "8", "localRank": "3"},
     ("19", "32")),
    ({"annotations": {"world": "8"}}, {"rank": "6", "world": "annotation:world"}, ("6", "8")),
    ({"annotations": {"rank": "007"}}, {"rank": "annotation:rank", "world": "8"}, ("7", "8")),
])
def test_a_number_of_the_pod(api, volume, pod, attributes, expected):
    api.add("a", **pod)
    assert volume(**attributes) == expected
    assert api.paths == ["/api/v1/namespaces/team/pods/a"], "one question for both numbers"


def test_the_name_tells_the_rank_and_an_annotation_the_world(api, asker, tmp_path):
    api.add("train-3", annotations={"world": "8"})
    given = {f"csi.storage.k8s.io/pod.{k}": v
             for k, v in (("namespace", "team"), ("name", "train-3"), ("uid", "uid-of-train-3"))}
    found = resolve({"dataset": str(tmp_path), "rank": "ordinal", "world": "annotation:world", **given},
                    Policy((str(tmp_path),)), asker.find_pod)[1]
    assert found == {"rank": "3", "world": "8"}


@pytest.mark.parametrize("source, named", [
    ("annotation:example.com/rank", "annotation 'example.com/rank'"), ("label:rank", "label 'rank'"),
    ("env:RANK", "variable 'RANK'"),
])
@pytest.mark.parametrize("empty", [None, {}], ids=["left out", "empty"])
def test_a_key_that_the_pod_lacks_is_named(api, volume, source, named, empty):
    api.add("a", annotations=empty, labels=empty)
    for attributes in {"rank": source, "world": "4"}, {"rank": "0", "world": source}:
        code, text = failure_of(lambda given=attributes: volume(**given))
        assert code == "INVALID_ARGUMENT" and named in text and "pod 'team/a'" in text


@pytest.mark.parametrize("value", ["", "-1", "1.0", " 1", "1\n", "0x1", "1e1", "one", "1000000000", "٣", "$(OTHER)"])
def test_what_is_no_number_is_refused_and_not_told(api, volume, value):
    api.add("a", annotations={"rank": value}, env=[variable("RANK", value)])
    for source in "annotation:rank", "env:RANK":
        code, text = failure_of(lambda given=source: volume(rank=given, world="999999999"))
        assert code == "INVALID_ARGUMENT" and source in text
    api.add("a", annotations={"rank": "password"})
    assert "password" not in failure_of(lambda: volume(rank="annotation:rank", world="4"))[1]


def test_a_rank_that_the_world_does_not_have_is_refused(api, volume):
    api.add("a", annotations={"rank": "4", "world": "4", "none": "0"})
    for world in "annotation:world", "annotation:none", "4":
        code, text = failure_of(lambda given=world: volume(rank="annotation:rank", world=given))
        assert code == "INVALID_ARGUMENT" and "rank 4" in text
    assert failure_of(lambda: volume(rank="annotation:world", world="8", podRanks="2"))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("source, named", [
    ({"secretKeyRef": {"name": "s", "key": "k"}}, "secretKeyRef"),
    ({"configMapKeyRef": {"name": "s", "key": "k"}}, "configMapKeyRef"),
    ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef"),
    (field("status.podIP"), "fieldRef status.podIP"),
    (field("metadata.name"), "fieldRef metadata.name"),
    (field("metadata.annotations['a']x"), "fieldRef metadata.annotations['a']x"),
])
def test_a_variable_that_comes_from_elsewhere_is_refused_by_name(api, volume, source, named):
    api.add("a", annotations={"a": "1"}, env=[variable("RANK", **source)])
    code, text = failure_of(lambda: volume(rank="env:RANK", world="4"))
    assert code == "INVALID_ARGUMENT" and named in text and "'RANK'" in text


def test_containers_must_agree_on_a_variable(api, volume):
    pod = api.add("a", env=[variable("RANK", "1")])
    pod["spec"]["containers"] += [{"name": "logger"}, {"name": "second", "env": [variable("RANK", "1")]}]
    assert volume(rank="env:RANK", world="4") == ("1", "4")
    pod["spec"]["containers"][2]["env"] = [variable("RANK", "2")]
    code, text = failure_of(lambda: volume(rank="env:RANK", world="4"))
    assert code == "INVALID_ARGUMENT" and "trainer, second" in text


@pytest.mark.parametrize("source", [
    "annotation:", "annotation:a b", "annotation:a/b/c", "annotation:a,debug", "label:-a", "label:a-", "env:1A",
    "env:A=B", "env:", "annotations:a", "secret:a", "label:" + "a" * 64, "annotation:a\n", "env:A\\"])
def test_a_source_that_is_none_is_refused_before_the_api_is_asked(api, volume, source):
    assert not pod_numbers.is_source(source)
    assert failure_of(lambda: volume(rank=source, world="4"))[0] == "INVALID_ARGUMENT"
    assert api.paths == []


# The API server


def test_a_pod_of_another_uid_is_not_taken(api, asker):
    api.add("a", uid="new")
    code, text = failure_of(asker.find_pod, "team", "a", "old")
    assert code == "NOT_FOUND" and "new" in text and "old" in text
    assert asker.find_pod("team", "a", "new")["metadata"]["name"] == "a"


def test_a_kubelet_that_does_not_tell_the_pod_is_explained(api, asker):
    told = {"namespace": "team", "name": "a", "uid": "uid-of-a"}
    for missing in told:
        code, text = failure_of(asker.find_pod, *{**told, missing: ""}.values())
        assert code == "FAILED_PRECONDITION" and "podInfoOnMount" in text
    assert api.paths == []


@pytest.mark.parametrize("status, code, words", [
    (401, "PERMISSION_DENIED", "lookupPods"), (403, "PERMISSION_DENIED", "lookupPods"), (404, "NOT_FOUND", "team/a"),
    (429, "UNAVAILABLE", "429"), (500, "UNAVAILABLE", "500"), (503, "UNAVAILABLE", "503"), (302, "UNAVAILABLE", "302")])
def test_answers_of_the_api_server_become_codes_of_csi(api, asker, status, code, words):
    api.status = status
    found, text = failure_of(asker.find_pod, "team", "a", "uid-of-a")
    assert found == code and words in text and TOKEN not in text


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'"pod"', b'{"metadata": null}', b"\xff"])
def test_an_answer_that_is_no_pod_is_refused(api, asker, body):
    api.body = body
    assert failure_of(asker.find_pod, "team", "a", "uid-of-a")[0] == "UNAVAILABLE"


def test_an_api_server_that_does_not_answer_is_given_up(api):
    api.silent.set()
    code, text = failure_of(lambda: ask(api, timeout_s=0.2))
    assert code == "UNAVAILABLE" and "timed out" in text and api.paths


def ask(api, timeout_s=30):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in api.environment.items():
            patch.setenv(name, str(value))
        return ApiServer(api.account, timeout_s).find_pod("team", "a", "uid-of-a")


def test_an_api_server_that_is_not_there(api):
    with socket.socket() as bound:  # nobody listens on its port
        bound.bind((HOST, 0))
        api.environment["KUBERNETES_SERVICE_PORT"] = bound.getsockname()[1]
        code, text = failure_of(ask, api)
    assert code == "UNAVAILABLE" and "refused" in text


def test_the_token_goes_to_no_other_server(api, scratch):
    """Another CA's certificate, and one for another name."""
    (api.account / "ca.crt").write_bytes((make_certificate(scratch / "other") / "ca.crt").read_bytes())
    assert failure_of(ask, api)[0] == "UNAVAILABLE" and api.paths == []


def test_the_certificate_must_be_for_the_servers_name(api):
    api.environment["KUBERNETES_SERVICE_HOST"] = "localhost"
    code, text = failure_of(ask, api)
    assert code == "UNAVAILABLE" and "localhost" in text and api.paths == []


def test_a_driver_without_a_service_account_says_what_it_needs(api):
    for file, content_ in ("ca.crt", b""), ("token", b"two words\n"), ("token", b"line\nline"), ("token", b""), \
            ("token", "größe".encode()):
        before = (api.account / file).read_bytes()
        (api.account / file).write_bytes(content_)
        code, text = failure_of(ask, api)
        assert code == "FAILED_PRECONDITION" and "lookupPods" in text
        assert not content_ or content_.decode() not in text
        (api.account / file).write_bytes(before)
    api.token_file.unlink()
    code, text = failure_of(ask, api)
    assert code == "FAILED_PRECONDITION" and "lookupPods" in text and str(api.token_file) in text
    api.environment["KUBERNETES_SERVICE_HOST"] = ""
    code, text = failure_of(ask, api)
    assert code == "FAILED_PRECONDITION" and "KUBERNETES_SERVICE_HOST" in text


def test_a_token_that_was_renewed_is_read_again(api, asker):
    api.add("a")
    api.token_file.write_text("old")
    assert failure_of(asker.find_pod, "team", "a", "uid-of-a")[0] == "PERMISSION_DENIED"
    api.token_file.write_text(TOKEN)
    assert asker.find_pod("team", "a", "uid-of-a")
