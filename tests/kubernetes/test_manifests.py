# SPDX-License-Identifier: Apache-2.0
"""The CSI driver's chart, example and image: rendered by Helm's own library, fit for Kubernetes' schema and the driver."""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from helpers import tools

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

PLACE = tools.ROOT / "tools" / "kubernetes"
ALL_VALUES = {"stores": ["s3://bucket/sets"], "storesSecret": "keys", "options": "s3_region=eu-west-1,timeout=30",
              "datasets": ["/data", "/scratch/sets"], "driverName": "other.ddpfs",
              "kubeletDirectory": "/var/data/kubelet", "nodeSelector": {"gpu": "yes"},
              "imagePullSecrets": [{"name": "pull"}], "lookupPods": True}
HELM = """
import json, sys
import helm_python, kubernetes_validate, yaml
chart, values = json.load(sys.stdin)
found = helm_python.lint(chart, values, strict=True)
assert not found["errors"] and all(m["severity"] < 2 for m in found["messages"]), found
with helm_python.Chart.load(chart) as loaded:
    loaded.validate_schema(values)
    rendered = loaded.render(values, name="ddpfs", namespace="kube-system")
documents = [d for text in rendered.values() for d in yaml.safe_load_all(text) if d]
for document in documents:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
print(json.dumps(documents))
"""


def with_packages(code, given):
    """What `code` says to `given`; it needs packages."""
    done = tools.run([sys.executable, "-c", code], input=json.dumps(given), check=False)
    if "No module named" in done.stderr:
        pytest.skip(f"not installed (tests/requirements-kubernetes.txt): {done.stderr.splitlines()[-1].split()[-1]}")
    return done


def render(values):
    done = with_packages(HELM, [str(PLACE / "chart"), values])
    assert done.returncode == 0, done.stderr
    return {document["kind"]: document for document in json.loads(done.stdout)}


@pytest.mark.parametrize("values", [{}, ALL_VALUES], ids=["defaults", "all"])
def test_the_chart_renders_to_what_kubernetes_and_the_driver_take(values):
    rendered = render(values)
    pod = rendered["DaemonSet"]["spec"]["template"]["spec"]
    driver, registrar = pod["containers"]
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    places = {mount["mountPath"]: mount for mount in driver["volumeMounts"]}
    assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} == set(volumes)
    assert driver["command"][0] == "ddpfs-csi"
    a = runpy.run_path(str(PLACE / "csi" / "ddpfs-csi"))["parse"]([*driver["command"][1:], "--node=n"])
    assert a.supervise and a.name == rendered["CSIDriver"]["metadata"]["name"] == values.get("driverName", "csi.ddpfs")
    # Datasets have one path in the driver and on the node; mounts of the node reach the driver, and its own the node.
    for directory in a.datasets:
        assert places[directory]["readOnly"] and places[directory]["mountPropagation"] == "HostToContainer"
        assert volumes[places[directory]["name"]] == directory
    kubelet = values.get("kubeletDirectory", "/var/lib/kubelet")
    for path in f"{kubelet}/pods", os.path.dirname(a.directory):
        assert places[path]["mountPropagation"] == "Bidirectional" and volumes[places[path]["name"]] == path
    assert driver["securityContext"]["privileged"]
    # One socket, by the names that driver, registrar and kubelet have for it.
    assert a.endpoint == "unix:///csi/csi.sock" and "--csi-address=/csi/csi.sock" in registrar["args"]
    assert f"--kubelet-registration-path={volumes['socket']}/csi.sock" in registrar["args"]
    assert volumes["socket"] == f"{kubelet}/plugins/{a.name}"
    spec = rendered["CSIDriver"]["spec"]
    assert spec["podInfoOnMount"] and not spec["attachRequired"] and spec["volumeLifecycleModes"] == ["Ephemeral"]


def test_the_driver_gets_pods_only_if_the_administrator_says_so():
    rendered = render({"lookupPods": True})
    pod = rendered["DaemonSet"]["spec"]["template"]["spec"]
    account, role, binding = (rendered[kind] for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"))
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod["serviceAccountName"],
                                    "namespace": account["metadata"]["namespace"]}]
    assert account["metadata"]["name"] == pod["serviceAccountName"] and pod["automountServiceAccountToken"]
    rendered = render({})
    assert set(rendered) == {"CSIDriver", "DaemonSet"}
    assert not rendered["DaemonSet"]["spec"]["template"]["spec"]["automountServiceAccountToken"]


@pytest.mark.parametrize("values", [
    {"datasets": []}, {"datasets": ["relative"]}, {"datasets": ["/a,b"]}, {"stores": ["file:///"]},
    {"memoryMax": "much"}, {"serversMax": 0}, {"lookupPods": "yes"}, {"dataset": ["/data"]}, {"driverName": "UPPER"}])
def test_values_that_are_wrong_are_refused(values):
    done = with_packages(HELM, [str(PLACE / "chart"), values])
    assert done.returncode != 0 and "AssertionError" in done.stderr + done.stdout and next(iter(values)) in done.stderr


def test_the_chart_is_of_this_version():
    chart = yaml.safe_load((PLACE / "chart" / "Chart.yaml").read_text())
    version = re.search(r"^  version: '(.*)',$", (tools.ROOT / "meson.build").read_text(), re.M)[1]
    assert chart["appVersion"] == version


def test_the_examples_volume_is_one_that_the_driver_gives(kubelet, dataset):
    pod = yaml.safe_load((PLACE / "job-csi.yaml").read_text())["spec"]["template"]["spec"]
    [volume] = pod["volumes"]
    attributes = volume["csi"]["volumeAttributes"]
    assert all(isinstance(value, str) for value in attributes.values()), "the API takes strings alone"
    kubelet.start()
    target = kubelet.publish("train-csi-0-x7k2p", **{**attributes, "dataset": dataset[0]})
    assert len([path for path in target.rglob("*") if path.is_file()]) == len(dataset[1])


def test_the_image_has_what_the_driver_needs():
    """The Dockerfile copies and installs files that there are; compilers stay in its first stage."""
    text = (PLACE / "Dockerfile").read_text()
    for path in re.findall(r"tools/[\w./-]+", text.split("\nFROM", 1)[1]):
        assert (tools.ROOT / path).exists(), path
    last = text.rsplit("\nFROM ", 1)[1]
    assert "tools/package" not in last and "pip" not in last and not re.search(r"\bgcc|build-essential|-dev\b", last)


def test_hadolint():
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not installed (tests/requirements-kubernetes.txt)")
    done = tools.run([program, PLACE / "Dockerfile"], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
