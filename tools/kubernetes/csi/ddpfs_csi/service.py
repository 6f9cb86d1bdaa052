# SPDX-License-Identifier: Apache-2.0
"""The identity and node services of CSI: requests are checked here, and failures become gRPC status codes."""

import contextlib
import os

import grpc

import csi_pb2 as csi
import csi_pb2_grpc
from ddpfs_csi.attributes import asks_api_server, resolve
from ddpfs_csi.failure import Failure, invalid
from ddpfs_csi.servers import DEAD, FINE

MODES = csi.VolumeCapability.AccessMode
# A volume is read-only, whatever its mode says.  The kubelet asks for SINGLE_NODE_WRITER for every inline volume.
READERS = MODES.SINGLE_NODE_WRITER, MODES.SINGLE_NODE_READER_ONLY, MODES.MULTI_NODE_READER_ONLY


@contextlib.contextmanager
def status(context):
    try:
        yield
    except Failure as failure:
        context.abort(grpc.StatusCode[failure.code], failure.text)
    except OSError as error:
        context.abort(grpc.StatusCode.INTERNAL, str(error))


def need(request, *fields):
    for field in fields:
        if not getattr(request, field):
            raise invalid(f"{field} is missing")


def need_path(request, field):
    need(request, "volume_id", field)
    path = getattr(request, field)
    if not path.startswith("/") or "\0" in path or os.path.normpath(path) == "/":
        raise invalid(f"{field}: '{path}' is no absolute path of a volume")


def check_capability(request):
    if not request.HasField("volume_capability"):
        raise invalid("volume_capability is missing")
    capability = request.volume_capability
    kind = capability.WhichOneof("access_type")
    if not kind:
        raise invalid("volume_capability: access_type is missing")
    if kind != "mount":
        raise invalid("volume_capability: a dataset is no block device")
    if capability.mount.fs_type not in ("", "ddpfs"):
        raise invalid(f"volume_capability: fs_type: '{capability.mount.fs_type}' is not ddpfs")
    if [flag for flag in capability.mount.mount_flags if flag != "ro"]:
        raise invalid("volume_capability: mount_flags: options stand in volumeAttributes")
    mode = capability.access_mode.mode
    if mode == MODES.UNKNOWN:
        raise invalid("volume_capability: access_mode is missing")
    if mode not in READERS:
        raise Failure("FAILED_PRECONDITION", f"volume_capability: {MODES.Mode.Name(mode)}: a dataset is read-only")


class Identity(csi_pb2_grpc.IdentityServicer):
    def __init__(self, name, version):
        self._name, self._version = name, version

    def GetPluginInfo(self, request, context):
        return csi.GetPluginInfoResponse(name=self._name, vendor_version=self._version)

    def GetPluginCapabilities(self, request, context):
        return csi.GetPluginCapabilitiesResponse()

    def Probe(self, request, context):
        with status(context):
            if not os.path.exists("/dev/fuse"):
                raise Failure("FAILED_PRECONDITION", "there is no /dev/fuse: load the node's fuse module, and let the "
                              "driver's container be privileged")
        response = csi.ProbeResponse()
        response.ready.value = True
        return response


class Node(csi_pb2_grpc.NodeServicer):
    def __init__(self, node, servers, policy, find_pod):
        self._node, self._servers, self._policy, self._find_pod = node, servers, policy, find_pod

    def _is_fine(self, target):
        found = self._servers.condition(target)
        return found is not None and found[0] == FINE

    def NodePublishVolume(self, request, context):
        with status(context):
            need_path(request, "target_path")
            check_capability(request)
            # The kubelet asks for each volume again and again.  A volume keeps its rank, whatever happens to the pod's
            # annotations or the API server.
            if asks_api_server(request.volume_context) and self._is_fine(request.target_path):
                return csi.NodePublishVolumeResponse()
            dataset, options = resolve(request.volume_context, self._policy, self._find_pod)
            self._servers.publish(dataset, options, request.target_path)
        return csi.NodePublishVolumeResponse()

    def NodeUnpublishVolume(self, request, context):
        with status(context):
            need_path(request, "target_path")
            self._servers.unpublish(request.target_path)
        return csi.NodeUnpublishVolumeResponse()

    def NodeGetVolumeStats(self, request, context):
        response = csi.NodeGetVolumeStatsResponse()
        with status(context):
            need_path(request, "volume_path")
            found = self._servers.condition(request.volume_path)
            if not found:
                raise Failure("NOT_FOUND", f"there is no volume on '{request.volume_path}'")
            state, said = found
            response.volume_condition.abnormal = state != FINE
            if state == FINE:
                size, blocks, free, files, free_files = said
                response.volume_condition.message = "the server answers"
                response.usage.add(unit=csi.VolumeUsage.BYTES, total=size * blocks, used=size * (blocks - free),
                                   available=size * free)
                response.usage.add(unit=csi.VolumeUsage.INODES, total=files, used=files - free_files,
                                   available=free_files)
            else:
                advice = ": the pod needs a new container" if state == DEAD else ""
                response.volume_condition.message = said + advice
        return response

    def NodeGetCapabilities(self, request, context):
        rpc = csi.NodeServiceCapability.RPC
        return csi.NodeGetCapabilitiesResponse(capabilities=[
            csi.NodeServiceCapability(rpc=rpc(type=kind)) for kind in (rpc.GET_VOLUME_STATS, rpc.VOLUME_CONDITION)])

    def NodeGetInfo(self, request, context):
        return csi.NodeGetInfoResponse(node_id=self._node)
