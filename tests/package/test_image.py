# SPDX-License-Identifier: Apache-2.0
"""The container image of tools/kubernetes/Dockerfile without Docker: its steps in systems of debootstrap, then its programs by
chroot(2).  `tests/run image`; it needs the network, and takes minutes."""

import json
import os

import pytest

from helpers import dockerfile
from helpers.debian_root import DebianRoot, debian_system
from helpers.tools import ROOT
from package.life import NEVER

if os.environ.get("DDPFS_ROOTS") != "debootstrap":
    pytest.skip("the image is built by name: tests/run image", allow_module_level=True)

RECIPE = ROOT / "tools/kubernetes/Dockerfile"
SECONDS = 1800


@pytest.fixture(scope="module")
def image(package_work, tmp_path_factory):
    def system(name):
        release = name.removeprefix("debian:").removesuffix("-slim")
        return debian_system(release, "", package_work / f"slim-{release}", SECONDS)

    place = tmp_path_factory.mktemp("image")
    context = dockerfile.context(ROOT, RECIPE.with_name("Dockerfile.dockerignore"), place / "context")
    return dockerfile.Image(RECIPE, context, system, place, SECONDS)


def test_the_programs_of_the_image_pack_mount_read_and_unmount(image, scratch):
    said = DebianRoot(image.root, scratch).run(NEVER + """
ddpfs --version
never command -v cc
mkdir /tmp/source /tmp/mnt
echo one >/tmp/source/1
mkshard pack /tmp/source /tmp/dataset
ddpfs mount -o view=all /tmp/dataset /tmp/mnt
cat /tmp/mnt/1
ddpfs umount /tmp/mnt
never grep fuse.ddpfs /proc/self/mountinfo
""").stdout
    assert said.startswith("ddpfs ") and "\none\n" in said


KUBELET = """
import sys, time
sys.path.insert(0, "/opt/ddpfs-csi")
import grpc, csi_pb2 as csi, csi_pb2_grpc as services
channel = grpc.insecure_channel("unix:///tmp/csi.sock")
services.IdentityStub(channel).Probe(csi.ProbeRequest(), wait_for_ready=True, timeout=60)
node, target = services.NodeStub(channel), "/tmp/pods/images"
capability = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_READER_ONLY"})
node.NodePublishVolume(csi.NodePublishVolumeRequest(
    volume_id="v", target_path=target, volume_capability=capability, readonly=True,
    volume_context={"dataset": "/tmp/data/set", "view": "all", "csi.storage.k8s.io/ephemeral": "true"}), timeout=60)
print("volume:", open(target + "/1").read())
node.NodeUnpublishVolume(csi.NodeUnpublishVolumeRequest(volume_id="v", target_path=target), timeout=60)
"""


def test_the_driver_of_the_image_gives_a_volume(image, scratch):
    (scratch / "kubelet.py").write_text(KUBELET)
    said = DebianRoot(image.root, scratch).run(NEVER + """
mkdir /tmp/source /tmp/data /tmp/pods
echo one >/tmp/source/1
mkshard pack /tmp/source /tmp/data/set
ddpfs-csi --endpoint=unix:///tmp/csi.sock --node=n --directory=/tmp/servers --datasets=/tmp/data &
/opt/ddpfs-csi/venv/bin/python -B /run/host/kubelet.py
never grep fuse.ddpfs /proc/self/mountinfo
""", {"kubelet.py": scratch / "kubelet.py"}).stdout
    assert "volume: one\n" in said


def test_the_image_says_how_to_use_it(image, scratch):
    said = DebianRoot(image.root, scratch).run(" ".join(json.loads(image.command))).stdout
    assert said.startswith("Usage: ddpfs ")
