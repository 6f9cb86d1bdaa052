# SPDX-License-Identifier: Apache-2.0
"""The CSI driver as a process of its own, and the kubelet's side of its socket."""

import functools
import os
import shutil
import signal
import subprocess
import sys

import pytest

from helpers import mounts, tools
from helpers.api_server import TOKEN, FakeApiServer
from helpers.waiting import PATIENCE_S

# Else gRPC starts its threads anew in a child that has not called exec yet.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
PLACE = tools.ROOT / "tools" / "kubernetes" / "csi"


@pytest.fixture(scope="session")
def messages(tmp_path_factory):
    """The directory with the Python code of csi.proto."""
    for module in "grpc", "grpc_tools":
        pytest.importorskip(module, reason="grpcio and grpcio-tools are not installed (tests/requirements.txt)")
    place = tmp_path_factory.mktemp("csi")
    tools.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PLACE}", f"--python_out={place}",
               f"--grpc_python_out={place}", PLACE / "csi.proto"])
    sys.path.insert(0, str(place))
    return place


class Patient:
    """A stub whose calls do not wait for ever, so that a driver that hangs fails its test."""

    def __init__(self, stub):
        self._stub = stub

    def __getattr__(self, name):
        return functools.partial(getattr(self._stub, name), timeout=PATIENCE_S)


class Kubelet:
    """Starts the driver and calls it as the kubelet does.  Datasets are allowed in `datasets`."""

    def __init__(self, scratch, messages):
        import grpc

        import csi_pb2
        import csi_pb2_grpc

        self.grpc, self.csi, self._services = grpc, csi_pb2, csi_pb2_grpc
        self.servers = scratch / "servers"
        self.datasets = scratch / "datasets"
        self.datasets.mkdir()
        self.program = PLACE / "ddpfs-csi"
        self.environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(messages), os.environ.get("PYTHONPATH")])),
                            "PYTHONDONTWRITEBYTECODE": 1, "PATH": f"{os.path.dirname(sys.executable)}:"
                            + os.environ["PATH"], "CSI_ENDPOINT": f"unix://{scratch}/csi.sock", "NODE_NAME": "node-7"}
        self.process = None
        self._scratch, self._options, self._channel = scratch, (), None

    def start(self, *options):
        self._options = options
        environment = {**os.environ, **{name: str(value) for name, value in self.environment.items()}}
        program = [] if "--program" in options else ["--program", tools.tool("ddpfs")]
        self.log = self._scratch / "driver.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "--directory", self.servers, "--datasets", self.datasets, "--log",
                 self._scratch / "servers.log", *program, *options], env=environment, stderr=log)
        # A channel of before a restart would wait longer and longer between two tries.
        self._channel = self.grpc.insecure_channel(self.environment["CSI_ENDPOINT"],
                                                   options=[("grpc.use_local_subchannel_pool", 1)])
        self.identity = Patient(self._services.IdentityStub(self._channel))
        self.node = Patient(self._services.NodeStub(self._channel))
        self.identity.Probe(self.csi.ProbeRequest(), wait_for_ready=True)

    def end(self, number=signal.SIGTERM):
        self._channel.close()
        self.process.send_signal(number)
        self.process.wait(timeout=PATIENCE_S)

    def restart(self, number):
        self.end(number)
        self.start(*self._options)

    def target(self, pod):
        """Where the volume of `pod` goes; its directory is there, it is not."""
        path = self._scratch / "kubelet" / "pods" / pod / "volumes" / "mount"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def request(self, pod, attributes, **changes):
        csi = self.csi
        mode = csi.VolumeCapability.AccessMode
        capability = csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume(),
                                          access_mode=mode(mode=mode.SINGLE_NODE_WRITER))
        context = {"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": pod,
                   "csi.storage.k8s.io/pod.namespace": "team", "csi.storage.k8s.io/pod.uid": f"uid-of-{pod}",
                   **{k: str(v) for k, v in attributes.items()}}
        fields = {"volume_id": f"csi-{pod}", "target_path": str(self.target(pod)), "volume_capability": capability,
                  "readonly": True, "volume_context": context, **changes}
        return csi.NodePublishVolumeRequest(**{k: v for k, v in fields.items() if v is not None})

    def publish(self, pod, **attributes):
        """Publishes, and returns the target."""
        self.node.NodePublishVolume(self.request(pod, attributes))
        return self.target(pod)

    def unpublish(self, pod):
        self.node.NodeUnpublishVolume(self.csi.NodeUnpublishVolumeRequest(
            volume_id=f"csi-{pod}", target_path=str(self.target(pod))))

    def stats(self, pod):
        return self.node.NodeGetVolumeStats(self.csi.NodeGetVolumeStatsRequest(
            volume_id=f"csi-{pod}", volume_path=str(self.target(pod))))

    def refusal(self, call, *arguments, **attributes):
        """(name of the status code, text) of a call that must fail."""
        with pytest.raises(self.grpc.RpcError) as caught:
            call(*arguments, **attributes)
        return caught.value.code().name, caught.value.details()

    def mounted(self):
        """The mountpoints of the servers."""
        return [path for path, _, _ in mounts.mounts_below(self.servers)]

    def close(self):
        if self.process and self.process.poll() is None:
            self.end()
        mounts.force_unmount(self._scratch)


@pytest.fixture
def kubelet(build_dir, scratch, messages):
    if os.geteuid() != 0:
        pytest.skip("the driver mounts: root is needed")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse on this machine")
    one = Kubelet(scratch, messages)
    yield one
    one.close()
    if one.process:
        # What it says is for a person who looks at a failed test.
        print(one.log.read_text())


@pytest.fixture
def api(scratch):
    """A fake of the cluster's API server."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    one = FakeApiServer(scratch / "account")
    yield one
    one.close()


@pytest.fixture
def cluster(api, kubelet):
    """The kubelet, whose driver asks `api`."""
    kubelet.environment.update(api.environment)
    kubelet.start("--service-account", api.account)
    yield kubelet
    assert TOKEN not in kubelet.log.read_text()


@pytest.fixture
def dataset(kubelet, scratch, tree):
    """(path of a dataset that pods may have, {path: bytes})."""
    path = kubelet.datasets / "images.ddpfs"
    tools.mkshard("pack", tree[0], path)
    return path, tree[1]
