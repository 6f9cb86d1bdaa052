# SPDX-License-Identifier: Apache-2.0
"""The CSI node driver, called over its socket as the kubelet calls it, with real mounts."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers import mounts, tools
from helpers.api_server import variable
from helpers.waiting import wait_until


def content(place):
    """{path: bytes} below a directory."""
    return {str(path.relative_to(place)): path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}


def pids_of(mountpoint):
    """(supervisor, server) of a mount."""
    server = tools.stat_json(mountpoint)["server_pid"]
    return int(Path(f"/proc/{server}/stat").read_text().rsplit(") ", 1)[1].split()[1]), server


def children(parent):
    """Process ids of the children of a process, zombies included."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if int(stat.read_text().rsplit(") ", 1)[1].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def wait_for_end(*pids):
    wait_until(lambda: not any(mounts.is_alive(pid) for pid in pids), "the end of the server")


# Identity, and what the node says of itself


def test_identity_and_node(kubelet):
    kubelet.start()
    csi, version = kubelet.csi, tools.ddpfs("--version").stdout.split()[-1]
    info = kubelet.identity.GetPluginInfo(csi.GetPluginInfoRequest())
    assert (info.name, info.vendor_version) == ("csi.ddpfs", version)
    assert kubelet.identity.Probe(csi.ProbeRequest()).ready.value
    kubelet.identity.GetPluginCapabilities(csi.GetPluginCapabilitiesRequest())
    node = kubelet.node.NodeGetInfo(csi.NodeGetInfoRequest())
    assert node.node_id == "node-7" and node.max_volumes_per_node == 0
    kinds = [c.rpc.type for c in kubelet.node.NodeGetCapabilities(csi.NodeGetCapabilitiesRequest()).capabilities]
    rpc = csi.NodeServiceCapability.RPC
    assert sorted(kinds) == [rpc.GET_VOLUME_STATS, rpc.VOLUME_CONDITION]


def test_a_method_that_the_driver_lacks_is_unimplemented(kubelet):
    kubelet.start()
    call = kubelet._channel.unary_unary("/csi.v1.Node/NodeStageVolume", request_serializer=lambda _: b"",
                                        response_deserializer=bytes)
    assert kubelet.refusal(call, None)[0] == "UNIMPLEMENTED"


def test_the_socket_is_for_root_alone(kubelet, scratch):
    kubelet.start()
    assert (scratch / "csi.sock").stat().st_mode & 0o077 == 0


# Requests that are wrong


def test_requests_with_missing_or_wrong_fields(kubelet, dataset):
    kubelet.start()
    csi, node = kubelet.csi, kubelet.node
    mount, mode = csi.VolumeCapability.MountVolume, csi.VolumeCapability.AccessMode
    reader = mode(mode=mode.SINGLE_NODE_READER_ONLY)
    attributes = {"dataset": dataset[0], "view": "all"}
    for changes in (
        {"volume_id": None}, {"target_path": None}, {"target_path": "relative/mount"}, {"target_path": "/"},
        {"volume_capability": None},
        {"volume_capability": csi.VolumeCapability(access_mode=reader)},
        {"volume_capability": csi.VolumeCapability(mount=mount())},
        {"volume_capability": csi.VolumeCapability(mount=mount(), access_mode=mode())},
        {"volume_capability": csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume(), access_mode=reader)},
        {"volume_capability": csi.VolumeCapability(mount=mount(fs_type="ext4"), access_mode=reader)},
        {"volume_capability": csi.VolumeCapability(mount=mount(mount_flags=["log=/etc/x"]), access_mode=reader)},
        {"volume_context": {}},
    ):
        request = kubelet.request("a", attributes, **changes)
        assert kubelet.refusal(node.NodePublishVolume, request)[0] == "INVALID_ARGUMENT", changes
    for request in csi.NodeUnpublishVolumeRequest(volume_id="a"), csi.NodeUnpublishVolumeRequest(target_path="/tmp/a"):
        assert kubelet.refusal(node.NodeUnpublishVolume, request)[0] == "INVALID_ARGUMENT"
    for request in csi.NodeGetVolumeStatsRequest(volume_id="a"), csi.NodeGetVolumeStatsRequest(volume_path="/tmp/a"):
        assert kubelet.refusal(node.NodeGetVolumeStats, request)[0] == "INVALID_ARGUMENT"
    assert kubelet.mounted() == []


def test_modes_that_write_exceed_what_a_dataset_can(kubelet, dataset):
    kubelet.start()
    csi = kubelet.csi
    mode = csi.VolumeCapability.AccessMode
    for writes in mode.MULTI_NODE_SINGLE_WRITER, mode.MULTI_NODE_MULTI_WRITER, mode.SINGLE_NODE_MULTI_WRITER:
        capability = csi.VolumeCapability(mount=csi.VolumeCapability.MountVolume(), access_mode=mode(mode=writes))
        request = kubelet.request("a", {"dataset": dataset[0], "view": "all"}, volume_capability=capability)
        assert kubelet.refusal(kubelet.node.NodePublishVolume, request)[0] == "FAILED_PRECONDITION"


def test_attributes_that_are_not_for_pods_mount_nothing(kubelet, dataset, scratch):
    kubelet.start()
    for name, value in ("log", scratch / "x"), ("state", "/etc/passwd"), ("subdir", f"train,log={scratch}/x"):
        code, text = kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], view="all", **{name: value})
        assert code == "INVALID_ARGUMENT" and name in text
    assert kubelet.refusal(kubelet.publish, "a", dataset="/etc")[0] == "PERMISSION_DENIED"
    assert kubelet.mounted() == [] and not (scratch / "x").exists()


def test_what_ddpfs_says_of_a_dataset_reaches_the_pod(kubelet):
    kubelet.start()
    code, text = kubelet.refusal(kubelet.publish, "a", dataset=kubelet.datasets / "gone", view="all")
    assert code == "NOT_FOUND" and f"there is no dataset '{kubelet.datasets}/gone' on this node" in text
    (kubelet.datasets / "empty").mkdir()
    code, text = kubelet.refusal(kubelet.publish, "a", dataset=kubelet.datasets / "empty", view="all")
    assert code == "INTERNAL" and "not a dataset" in text and "mkshard pack" in text
    assert kubelet.mounted() == [] and os.listdir(kubelet.servers) == []
    assert not kubelet.target("a").exists()


def test_a_view_that_nobody_chose_is_explained(kubelet, dataset):
    kubelet.start()
    code, text = kubelet.refusal(kubelet.publish, "a", dataset=dataset[0])
    assert code == "INVALID_ARGUMENT" and "rank and world are missing" in text


# Volumes


def test_a_volume_shows_the_dataset_and_goes_without_a_trace(kubelet, dataset):
    kubelet.start()
    target = kubelet.publish("a", dataset=dataset[0], view="all")
    assert content(target) == dataset[1]
    pids = pids_of(target)
    kubelet.unpublish("a")
    assert not target.exists() and kubelet.mounted() == [] and os.listdir(kubelet.servers) == []
    wait_for_end(*pids)


def test_a_volume_is_read_only_and_without_devices_and_setuid(kubelet, dataset):
    kubelet.start()
    for pod, readonly in ("a", True), ("b", False):  # a pod that leaves readOnly out gets no more
        kubelet.node.NodePublishVolume(kubelet.request(pod, {"dataset": dataset[0], "view": "all"}, readonly=readonly))
        with pytest.raises(OSError, match="Read-only file system"):
            (kubelet.target(pod) / "new").write_text("x")
        line = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines()
                    if f" {kubelet.target(pod)} " in line)
        assert {"ro", "nosuid", "nodev"} <= set(line.split()[5].split(","))


def test_a_pod_of_another_user_reads(kubelet, dataset, scratch):
    kubelet.start()
    target = kubelet.publish("a", dataset=dataset[0], view="all")
    for path in (*target.parents,):
        if path.is_relative_to(scratch):
            os.chmod(path, 0o755)
    done = tools.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "find", target, "-type", "f"])
    assert len(done.stdout.splitlines()) == len(dataset[1])


def test_publishing_again_changes_nothing(kubelet, dataset):
    kubelet.start()
    target = kubelet.publish("a", dataset=dataset[0], view="all")
    before = mounts.mounts_below(target), pids_of(target)
    kubelet.publish("a", dataset=dataset[0], view="all")
    assert (mounts.mounts_below(target), pids_of(target)) == before
    assert len(before[0]) == 1


def test_publishing_something_else_on_a_target_is_refused(kubelet, dataset):
    kubelet.start()
    target = kubelet.publish("a", dataset=dataset[0], view="all")
    assert kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], view="all", memory="1G")[0] == "ALREADY_EXISTS"
    assert content(target) == dataset[1] and len(kubelet.mounted()) == 1


def test_what_is_mounted_by_somebody_else_stays(kubelet, dataset):
    kubelet.start()
    target = kubelet.target("a")
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "other", target], check=True)
    assert kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], view="all")[0] == "INTERNAL"
    assert kubelet.refusal(kubelet.unpublish, "a")[0] == "INTERNAL"
    assert kubelet.refusal(kubelet.stats, "a")[0] == "NOT_FOUND"
    assert mounts.is_mounted(target) and kubelet.mounted() == []


def test_unpublishing_again_and_what_never_was(kubelet, dataset):
    kubelet.start()
    kubelet.publish("a", dataset=dataset[0], view="all")
    for pod in "a", "a", "never":
        kubelet.unpublish(pod)
    kubelet.target("directory").mkdir()  # made by a publish that was cut off
    kubelet.unpublish("directory")
    assert not kubelet.target("directory").exists()


def test_a_target_path_with_odd_characters(kubelet, dataset):
    kubelet.start()
    names = "with blank", "tab\tnew\nline", "\\040 \\", "-o", "quo'te\"s$(x)`x`;", "größe 数据", "a,b:c=d"
    targets = [kubelet.publish(name, dataset=dataset[0], view="all") for name in names]
    assert all(content(target) == dataset[1] for target in targets) and len(kubelet.mounted()) == 1
    for name in names:
        kubelet.publish(name, dataset=dataset[0], view="all")
        assert not kubelet.stats(name).volume_condition.abnormal
        kubelet.unpublish(name)
    assert not any(target.exists() for target in targets) and kubelet.mounted() == []


def test_a_kubelet_directory_that_is_a_link(kubelet, dataset, scratch):
    kubelet.start()
    (scratch / "elsewhere").mkdir()
    (scratch / "kubelet").symlink_to("elsewhere")
    target = kubelet.publish("a", dataset=dataset[0], view="all")
    kubelet.publish("a", dataset=dataset[0], view="all")
    assert len(mounts.mounts_below(target)) == 1
    kubelet.unpublish("a")
    assert not target.exists() and kubelet.mounted() == []


def test_a_dataset_whose_path_has_odd_characters(kubelet, tree):
    kubelet.start()
    path = kubelet.datasets / "größe of 'all\" $(x)"
    tools.mkshard("pack", tree[0], path)
    assert content(kubelet.publish("a", dataset=path, view="all")) == tree[1]


# Servers


def test_pods_that_ask_for_the_same_share_a_server(kubelet, dataset):
    kubelet.start()
    a, b = (kubelet.publish(pod, dataset=dataset[0], view="all", memory="1G") for pod in "ab")
    pids = pids_of(a)
    assert pids_of(b) == pids and len(kubelet.mounted()) == 1
    kubelet.unpublish("a")
    assert content(b) == dataset[1]
    kubelet.unpublish("b")
    assert kubelet.mounted() == []
    wait_for_end(*pids)


def test_other_options_are_another_server(kubelet, dataset):
    kubelet.start()
    a = kubelet.publish("a", dataset=dataset[0], view="all")
    b = kubelet.publish("b", dataset=dataset[0], view="all", memory="1G")
    assert len(kubelet.mounted()) == 2 and pids_of(a) != pids_of(b)
    kubelet.unpublish("a")
    assert len(kubelet.mounted()) == 1 and content(b) == dataset[1]


def test_pods_of_an_indexed_job_share_the_files_among_them(kubelet, dataset):
    kubelet.start()
    names = []
    for pod in "train-0-x7k2p", "train-1-bcdfg":
        target = kubelet.publish(pod, dataset=dataset[0], rank="job-index", world=2, layout="tree", tail="drop")
        names.append({str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()})
    assert names[0] | names[1] == set(dataset[1]) and not names[0] & names[1]


def test_ranks_of_a_job_share_a_server(kubelet, dataset):
    kubelet.start()
    targets = [kubelet.publish(f"train-{rank}-x7k2p", dataset=dataset[0], rank=rank, world=3) for rank in range(3)]
    assert len(kubelet.mounted()) == 1 and len({pids_of(target) for target in targets}) == 1
    for rank, target in enumerate(targets):
        stats = tools.stat_json(target)
        assert (stats["rank"], stats["world"], stats["opened"]) == (rank, 3, 0)
    for name in os.listdir(targets[1]):
        (targets[1] / name).read_bytes()
    os.listdir(targets[1])
    assert [tools.stat_json(target)["epoch"] for target in targets] == [0, 1, 0]
    pids = pids_of(targets[0])
    for rank in range(3):
        kubelet.publish(f"train-{rank}-x7k2p", dataset=dataset[0], rank=rank, world=3)  # again
        assert len(mounts.mounts_below(targets[rank])) == 1
        kubelet.unpublish(f"train-{rank}-x7k2p")
    assert kubelet.mounted() == []
    wait_for_end(*pids)


def test_a_rank_begins_anew_with_its_next_pod(kubelet, dataset):
    kubelet.start()

    def publish(pod, rank):
        return kubelet.publish(pod, dataset=dataset[0], rank=rank, world=2, epoch=3)

    def read_epoch(target):
        for name in os.listdir(target):
            (target / name).read_bytes()

    zero, one = publish("zero", 0), publish("one", 1)
    first = os.listdir(one)
    for target in zero, one, one:
        read_epoch(target)
    os.listdir(one), os.listdir(zero)
    assert [tools.stat_json(target)["epoch"] for target in (zero, one)] == [4, 5]
    read_epoch(one)
    publish("one", 1)  # the kubelet asks again
    other = publish("other", 1)  # a pod that reads the same rank
    assert tools.stat_json(other)["epoch"] == 5
    kubelet.unpublish("zero")
    left = next(kubelet.servers.iterdir())
    assert tools.stat_json(left)["epoch"] == 5, "a rank without a pod does not hold back the others"
    publish("zero", 0)
    kubelet.unpublish("one")
    kubelet.unpublish("other")
    next_pod = publish("next", 1)
    stats = tools.stat_json(next_pod)
    assert (stats["epoch"], stats["opened"]) == (3, 0)
    assert os.listdir(next_pod) == first
    assert [tools.stat_json(target)["epoch"] for target in (zero, next_pod)] == [3, 3]


def test_another_rank_on_a_target_is_refused(kubelet, dataset):
    kubelet.start()
    target = kubelet.publish("a", dataset=dataset[0], rank=0, world=2)
    assert kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], rank=1, world=2)[0] == "ALREADY_EXISTS"
    assert tools.stat_json(target)["rank"] == 0 and len(kubelet.mounted()) == 1


def test_ranks_of_a_job_that_one_server_cannot_show(kubelet, dataset):
    kubelet.start()
    targets = [kubelet.publish(f"a{rank}", dataset=dataset[0], rank=rank, world=257) for rank in range(2)]
    assert len(kubelet.mounted()) == 2
    assert [tools.stat_json(target)["rank"] for target in targets] == [0, 1]


def test_a_rank_outlives_a_kill_of_its_server(kubelet, dataset):
    kubelet.start()
    target = kubelet.publish("a", dataset=dataset[0], rank=1, world=2)
    before, server = os.listdir(target), pids_of(target)[1]
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: pids_of(target)[1] != server, "a successor")
    assert os.listdir(target) == before and tools.stat_json(target)["rank"] == 1


def test_many_calls_at_once_make_one_server(kubelet, dataset):
    kubelet.start()
    pods = [f"pod{n}" for n in range(8)]
    with ThreadPoolExecutor(len(pods)) as pool:
        targets = list(pool.map(lambda pod: kubelet.publish(pod, dataset=dataset[0], view="all"), pods))
        assert len(kubelet.mounted()) == 1 and len({pids_of(t) for t in targets}) == 1
        list(pool.map(kubelet.unpublish, pods))
    assert kubelet.mounted() == []


def test_administrators_options_and_bounds(kubelet, dataset, scratch):
    kubelet.start("--memory-max", "512M", "--servers-max", "1", "--options", "seed=7,umask=0222")
    target = kubelet.publish("a", dataset=dataset[0], view="all", seed=3)
    assert all(path.stat().st_mode & 0o222 == 0 for path in target.rglob("*"))
    code, _ = kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], view="all", seed=3, memory="513M")
    assert code == "INVALID_ARGUMENT"
    kubelet.publish("a", dataset=dataset[0], view="all", seed=3, memory="512M")  # the default is the bound
    code, text = kubelet.refusal(kubelet.publish, "b", dataset=dataset[0], view="all", memory="256M")
    assert code == "RESOURCE_EXHAUSTED" and "1 servers" in text
    kubelet.publish("b", dataset=dataset[0], view="all", seed=3)  # shares the one
    assert (scratch / "servers.log").exists()


def test_many_calls_at_once_do_not_exceed_the_servers_of_a_node(kubelet, dataset):
    kubelet.start("--servers-max", "2")

    def publish(n):
        try:
            return kubelet.publish(f"pod{n}", dataset=dataset[0], view="all", seed=n)
        except kubelet.grpc.RpcError as error:
            return error.code().name

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(publish, range(6)))
    assert len(kubelet.mounted()) == 2 and answers.count("RESOURCE_EXHAUSTED") == 4, answers


def test_dead_servers_are_none_of_the_servers_of_a_node(kubelet, dataset):
    kubelet.start("--servers-max", "1")
    mounts.kill_with_supervisor(*pids_of(kubelet.publish("a", dataset=dataset[0], view="all", seed=1)))
    assert content(kubelet.publish("b", dataset=dataset[0], view="all", seed=2)) == dataset[1]
    assert kubelet.refusal(kubelet.publish, "c", dataset=dataset[0], view="all", seed=3)[0] == "RESOURCE_EXHAUSTED"


# A driver that ends


def test_a_driver_that_is_killed_leaves_its_volumes(kubelet, dataset):
    kubelet.start()
    a = kubelet.publish("a", dataset=dataset[0], view="all")
    pids = pids_of(a)
    kubelet.restart(signal.SIGKILL)
    assert content(a) == dataset[1]
    b = kubelet.publish("b", dataset=dataset[0], view="all")
    kubelet.publish("a", dataset=dataset[0], view="all")
    assert pids_of(a) == pids_of(b) == pids
    assert kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], view="all", seed=1)[0] == "ALREADY_EXISTS"
    kubelet.restart(signal.SIGTERM)
    for pod in "ab":
        kubelet.unpublish(pod)
    assert kubelet.mounted() == []
    wait_for_end(*pids)


def test_a_server_that_no_volume_shows_ends_when_the_driver_starts(kubelet, dataset):
    """The driver was killed between the mount and the bind mount."""
    kubelet.start()
    target = kubelet.publish("a", dataset=dataset[0], view="all")
    pids = pids_of(target)
    kubelet.end(signal.SIGKILL)
    subprocess.run(["umount", target], check=True)
    kubelet.start()
    assert kubelet.mounted() == [] and os.listdir(kubelet.servers) == []
    wait_for_end(*pids)


def test_a_new_driver_with_other_options_gives_its_pods_a_new_server(kubelet, dataset):
    """A new container has no server of the old one, but the kubelet's directory still has the dead mounts."""
    kubelet.start("--memory-max", "512M")
    a = kubelet.publish("a", dataset=dataset[0], view="all")
    pids = pids_of(a)
    kubelet.end()
    kubelet.start("--memory-max", "256M")
    assert kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], view="all")[0] == "ALREADY_EXISTS", "it lives"
    mounts.kill_with_supervisor(*pids)
    assert content(kubelet.publish("a", dataset=dataset[0], view="all")) == dataset[1]
    assert len(kubelet.mounted()) == 1 and len(mounts.mounts_below(a)) == 1
    kubelet.unpublish("a")
    assert kubelet.mounted() == []


def test_a_supervised_driver_starts_again_and_its_servers_live_on(kubelet, dataset):
    kubelet.start("--supervise")
    target = kubelet.publish("a", dataset=dataset[0], view="all")
    pids = pids_of(target)
    [driver] = children(kubelet.process.pid)
    os.kill(driver, signal.SIGKILL)
    wait_until(lambda: children(kubelet.process.pid) not in ([driver], []), "another driver")
    kubelet.identity.Probe(kubelet.csi.ProbeRequest(), wait_for_ready=True)
    assert pids_of(target) == pids and content(target) == dataset[1]
    kubelet.unpublish("a")
    kubelet.end()
    assert kubelet.process.returncode == 0


def test_a_driver_that_cannot_work_says_why(kubelet):
    for options, words in ((["--program", "/nonexistent"], "/nonexistent --version"),
                           (["--memory-max", "much"], "--memory-max")):
        done = tools.run([kubelet.program, "--supervise", "--endpoint", "unix:///nowhere.sock", "--node", "n",
                          "--datasets", "/d", "--directory", kubelet.servers, *options], check=False,
                         env=kubelet.environment)
        assert done.returncode == 2 and words in done.stderr


# Ranks that the API server tells (test_pod_numbers.py has its answers)


def test_pods_of_a_pytorchjob_share_the_files_among_them(api, cluster, dataset):
    names = []
    for rank, pod in enumerate(("train-master-0", "train-worker-0")):
        api.add(pod, env=[variable("WORLD_SIZE", "2"), variable("RANK", str(rank))])
        target = cluster.publish(pod, dataset=dataset[0], rank="env:RANK", world="env:WORLD_SIZE", layout="tree",
                                 tail="drop")
        stats = tools.stat_json(target)
        assert (stats["rank"], stats["world"]) == (rank, 2)
        names.append(set(content(target)))
    assert names[0] | names[1] == set(dataset[1]) and not names[0] & names[1]
    for pod in "train-master-0", "train-worker-0":
        cluster.unpublish(pod)
    assert cluster.mounted() == []


def test_a_volume_keeps_its_rank_until_its_server_dies(api, cluster, dataset):
    pod = api.add("a", annotations={"rank": "0"})
    attributes = {"dataset": dataset[0], "rank": "annotation:rank", "world": 2}
    target = cluster.publish("a", **attributes)
    pids, asked = pids_of(target), len(api.paths)
    pod["metadata"]["annotations"]["rank"] = "1"
    api.status = 503
    cluster.publish("a", **attributes)
    cluster.restart(signal.SIGKILL)
    cluster.publish("a", **attributes)
    assert pids_of(target) == pids and len(api.paths) == asked
    mounts.kill_with_supervisor(*pids)
    wait_for_end(*pids)
    assert cluster.refusal(cluster.publish, "a", **attributes)[0] == "UNAVAILABLE"
    api.status = None
    cluster.publish("a", **attributes)
    assert tools.stat_json(target)["rank"] == 1


def test_what_the_api_server_says_reaches_the_pod_and_mounts_nothing(api, cluster, dataset):
    attributes = {"dataset": dataset[0], "rank": "label:rank", "world": 2}
    for number, (status, code) in enumerate(((403, "PERMISSION_DENIED"), (500, "UNAVAILABLE"))):
        api.status = status
        assert cluster.refusal(cluster.publish, f"pod{number}", **attributes)[0] == code
    api.status = None
    api.add("b", uid="another")
    assert cluster.refusal(cluster.publish, "b", **attributes)[0] == "NOT_FOUND"
    api.add("c", labels={"other": "1"})
    code, text = cluster.refusal(cluster.publish, "c", **attributes)
    assert code == "INVALID_ARGUMENT" and "no label 'rank'" in text
    assert cluster.mounted() == [] and not cluster.target("c").exists()


def test_a_volume_without_such_a_rank_asks_nobody(api, cluster, dataset):
    api.status = 500
    cluster.publish("train-1", dataset=dataset[0], rank="ordinal", world=2)
    cluster.publish("train-2", dataset=dataset[0], view="all")
    assert api.paths == []


# Servers that end, hang, or never come


def test_a_dead_server_is_noticed_and_replaced(kubelet, dataset):
    kubelet.start()
    a, b = (kubelet.publish(pod, dataset=dataset[0], view="all") for pod in "ab")
    mounts.kill_with_supervisor(*pids_of(a))
    wait_until(lambda: kubelet.stats("a").volume_condition.abnormal, "the volume's condition")
    assert "not connected" in kubelet.stats("a").volume_condition.message
    # A new pod gets a new server, and so does the next container of each old one.
    for pod in "cab":
        assert content(kubelet.publish(pod, dataset=dataset[0], view="all")) == dataset[1]
        assert not kubelet.stats(pod).volume_condition.abnormal
    assert len(kubelet.mounted()) == 1 and len(mounts.mounts_below(a)) == len(mounts.mounts_below(b)) == 1
    for pod in "abc":
        kubelet.unpublish(pod)
    assert kubelet.mounted() == []


def test_volumes_of_a_dead_server_are_unpublished(kubelet, dataset):
    kubelet.start()
    a = kubelet.publish("a", dataset=dataset[0], view="all")
    mounts.kill_with_supervisor(*pids_of(a))
    kubelet.restart(signal.SIGKILL)
    kubelet.unpublish("a")
    assert not a.exists() and kubelet.mounted() == []


def test_a_server_that_hangs_is_noticed_and_waited_for(kubelet, dataset):
    kubelet.start("--patience", "0.2")
    a = kubelet.publish("a", dataset=dataset[0], view="all")
    supervisor, server = pids_of(a)
    mounts.stop_and_wait(supervisor)  # which would replace the server
    mounts.stop_and_wait(server)
    try:
        for _ in range(2):
            condition = kubelet.stats("a").volume_condition
            assert condition.abnormal and "not answer" in condition.message
        code, text = kubelet.refusal(kubelet.publish, "b", dataset=dataset[0], view="all")
        assert code == "UNAVAILABLE" and "not answer" in text
    finally:
        os.kill(server, signal.SIGCONT)
        os.kill(supervisor, signal.SIGCONT)
    wait_until(lambda: not kubelet.stats("a").volume_condition.abnormal, "an answer")


def test_a_volume_of_a_server_that_hangs_is_unpublished(kubelet, dataset):
    kubelet.start("--patience", "0.2")
    a = kubelet.publish("a", dataset=dataset[0], view="all")
    pids = pids_of(a)
    for pid in pids:
        mounts.stop_and_wait(pid)
    kubelet.unpublish("a")
    assert not a.exists() and kubelet.mounted() == []
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    wait_for_end(*pids)


def test_a_second_call_for_a_target_is_aborted_while_the_first_works(kubelet, dataset, scratch):
    program = scratch / "slow"
    program.write_text(f"""#!/bin/sh
        case $1 in mount) echo >{scratch}/begun; read -r _ <{scratch}/go ;; esac
        exec {tools.tool('ddpfs')} "$@"
        """)
    program.chmod(0o755)
    os.mkfifo(scratch / "go")
    kubelet.start("--program", program)
    first = threading.Thread(target=kubelet.publish, args=("a",), kwargs={"dataset": dataset[0], "view": "all"})
    first.start()
    wait_until((scratch / "begun").exists, "the first call")
    try:
        assert kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], view="all")[0] == "ABORTED"
        assert kubelet.refusal(kubelet.unpublish, "a")[0] == "ABORTED"
        kubelet.unpublish("b")  # another volume does not wait, and takes nothing away
    finally:
        (scratch / "go").write_text("\n")
        first.join()
    assert content(kubelet.target("a")) == dataset[1]


def test_a_mount_that_does_not_come_is_given_up(kubelet, dataset, scratch):
    program = scratch / "never"
    program.write_text(f"#!/bin/sh\ncase $1 in mount) exec sleep 600 ;; esac\nexec {tools.tool('ddpfs')} \"$@\"\n")
    program.chmod(0o755)
    kubelet.start("--program", program, "--mount-timeout", "0.5")
    code, text = kubelet.refusal(kubelet.publish, "a", dataset=dataset[0], view="all")
    assert code == "DEADLINE_EXCEEDED" and str(dataset[0]) in text
    assert kubelet.mounted() == [] and os.listdir(kubelet.servers) == []


def test_a_mount_that_is_given_up_leaves_no_process(kubelet, scratch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/images"
        kubelet.start("--stores", url, "--mount-timeout", "1")
        assert kubelet.refusal(kubelet.publish, "a", dataset=url, view="all")[0] == "DEADLINE_EXCEEDED"

        def waits(place):
            with contextlib.suppress(OSError):  # it has ended
                return url.encode() in (words := place.read_bytes().split(b"\0")) and b"mount" in words
        assert not [place for place in Path("/proc").glob("[0-9]*/cmdline") if waits(place)]
    assert kubelet.mounted() == [] and os.listdir(kubelet.servers) == []


def test_an_error_that_is_not_the_servers_replaces_no_server(kubelet, dataset, scratch):
    (scratch / "bin").mkdir()
    (scratch / "bin/stat").write_text("#!/bin/sh\necho 'stat: cannot allocate memory' >&2; exit 1\n")
    kubelet.environment["PATH"] = f"{scratch / 'bin'}:{kubelet.environment['PATH']}"
    kubelet.start()
    pids = pids_of(kubelet.publish("a", dataset=dataset[0], view="all"))
    (scratch / "bin/stat").chmod(0o755)
    code, text = kubelet.refusal(kubelet.publish, "b", dataset=dataset[0], view="all")
    assert code == "UNAVAILABLE" and "allocate memory" in text
    assert kubelet.stats("a").volume_condition.abnormal
    assert len(kubelet.mounted()) == 1 and pids_of(kubelet.target("a")) == pids


def test_a_target_that_is_not_empty_keeps_no_server(kubelet, dataset):
    kubelet.start()
    target = kubelet.target("a")
    target.mkdir()
    (target / "somebody's").touch()
    kubelet.publish("a", dataset=dataset[0], view="all")
    assert kubelet.refusal(kubelet.unpublish, "a")[0] == "INTERNAL"
    assert kubelet.mounted() == [] and os.listdir(target) == ["somebody's"]


# Statistics


def test_stats_are_those_of_the_dataset(kubelet, dataset):
    kubelet.start()
    target = kubelet.publish("a", dataset=dataset[0], view="all")
    found = {usage.unit: usage for usage in kubelet.stats("a").usage}
    expected = os.statvfs(target)
    assert found[kubelet.csi.VolumeUsage.BYTES].total == expected.f_blocks * expected.f_bsize
    assert found[kubelet.csi.VolumeUsage.BYTES].available == 0
    assert found[kubelet.csi.VolumeUsage.INODES].total == expected.f_files
    assert kubelet.refusal(kubelet.stats, "never")[0] == "NOT_FOUND"
