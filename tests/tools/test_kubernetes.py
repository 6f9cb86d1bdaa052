# SPDX-License-Identifier: Apache-2.0
"""tools/kubernetes: the manifests name options and paths that there are, and the sidecar's mount reaches its trainer.

No cluster is asked: the schema is Kubernetes' own, where the package that holds it is installed; propagation is the kernel's."""

import json
import os
import re
import shlex
import sys

import pytest

from helpers import datasets, tools

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

MANIFESTS = sorted((tools.ROOT / "tools" / "kubernetes").glob("*.yaml"))
VALIDATE = """
import json, sys, kubernetes_validate
for document in json.load(sys.stdin):
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
"""


def documents(path):
    return list(yaml.safe_load_all(path.read_text()))


def pod_spec(name):
    return next(d for d in documents(tools.ROOT / "tools/kubernetes" / name) if d["kind"] == "Job")["spec"]["template"]["spec"]


def test_there_are_manifests():
    assert [path.name for path in MANIFESTS] == ["fuse-device-plugin.yaml", "job-csi.yaml", "job-exec.yaml",
                                                  "job-sidecar.yaml"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest_fits_the_schema(path):
    done = tools.run([sys.executable, "-c", VALIDATE], input=json.dumps(documents(path)), check=False)
    if "No module named 'kubernetes_validate'" in done.stderr:
        pytest.skip("kubernetes-validate is not installed (tests/requirements-kubernetes.txt)")
    assert done.returncode == 0, done.stderr.splitlines()[-10:]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_what_a_manifest_mounts_it_has(path):
    """Every volumeMount has its volume, every resource limit for ddpfs its request."""
    for document in documents(path):
        if document["kind"] == "Service":
            continue
        spec = document["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        containers = spec["containers"] + spec.get("initContainers", [])
        assert {m["name"] for c in containers for m in c["volumeMounts"]} == volumes
        assert all(c["resources"]["limits"]["memory"] for c in containers)


def test_propagation_and_privilege():
    spec = pod_spec("job-sidecar.yaml")
    server, trainer = spec["initContainers"][0], spec["containers"][0]
    place = {c["name"]: next(m for m in c["volumeMounts"] if m["name"] == "mounts") for c in (server, trainer)}
    assert place["ddpfs"]["mountPropagation"] == "Bidirectional" and server["securityContext"]["privileged"]
    assert place["trainer"]["mountPropagation"] == "HostToContainer"
    assert server["restartPolicy"] == "Always", "an init container that is none would never let the trainer start"
    assert not trainer["securityContext"]["allowPrivilegeEscalation"]


def test_no_manifest_mounts_over_all_of_mnt():
    for manifest in sorted((tools.ROOT / "tools/kubernetes").rglob("*.yaml")):
        assert not re.search(r"/mnt/?[\"']?$", manifest.read_text(), re.MULTILINE), manifest


def test_job_exec_runs(build_dir, scratch):
    """The container's command line from `ddpfs` on, as one rank."""
    source = scratch / "source"
    datasets.write_tree(source / "train")  # the sub-directory that the manifest deals
    tools.mkshard("pack", source, scratch / "images.ddpfs")
    (scratch / "mnt").mkdir()
    words = pod_spec("job-exec.yaml")["containers"][0]["command"]
    words = words[words.index("ddpfs") + 1:words.index("--")]
    paths = {"/data/images.ddpfs": str(scratch / "images.ddpfs"), "/mnt/ddpfs": str(scratch / "mnt")}
    done = tools.ddpfs(*(paths.get(word, word) for word in words), "--", "ls", scratch / "mnt",
                       env={"RANK": 1, "WORLD_SIZE": 2})
    assert len(done.stdout.split()) == 50


def test_a_sidecars_mount_reaches_an_unprivileged_trainer(private, tree, pack):
    """Containers are mount namespaces: the sidecar's is a peer of the host's for its volume, the trainer's a slave, made
    before anything is mounted."""
    files, dataset = tree[1], pack(tree[0])
    command = pod_spec("job-sidecar.yaml")["initContainers"][0]["command"]
    assert command[:2] == ["sh", "-c"]
    server = command[2].replace("/mounts/", "volume/").replace("/data/images.ddpfs", str(dataset))
    assert f"exec ddpfs mount -f -o view=all,allow_other,memory=8G {dataset} volume/data" in server
    done = private.run(f"""
        mkdir volume
        mount -t tmpfs -o mode=755 host volume
        mount --make-rshared volume
        mkfifo go done
        unshare -m --propagation slave sh -c '
            read -r _ <go
            $nobody sh -c "find volume/data -type f | wc -l; cat volume/data/*/* | wc -c; touch volume/data/x 2>/dev/null || echo read-only"
            echo >done' &
        PATH={os.path.dirname(tools.tool('ddpfs'))}:$PATH unshare -m --propagation unchanged sh -c {shlex.quote(server)} &
        sidecar=$!
        until test -e volume/data/.ddpfs/stats.json; do sleep 0.01; done
        echo >go
        read -r _ <done
        kill $sidecar
        wait $sidecar
        grep -c ' {private.directory}/volume/data ' /proc/self/mountinfo || echo unmounted
        umount -l volume
        """.replace("$nobody", "setpriv --reuid=65534 --regid=65534 --clear-groups"))
    assert done.stdout.split() == [str(len(files)), str(sum(map(len, files.values()))), "read-only", "0", "unmounted"]
