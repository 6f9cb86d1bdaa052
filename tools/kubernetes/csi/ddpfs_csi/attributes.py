# SPDX-License-Identifier: Apache-2.0
"""What a pod may ask for: its volumeAttributes, checked, become a dataset and mount options.

Everybody who may create a pod writes these, and the server runs as root of the node.  So this is a list of what is
allowed.  Options that name files of the node (state, index, quarantine, log, control), credentials or addresses
(s3_*), or that take threads and time of the node (threads, seed_search, timeout, watchdog, debug) are for the
administrator alone.
"""

import os
import re
from dataclasses import dataclass

from ddpfs_csi import pod_numbers
from ddpfs_csi.failure import Failure, invalid

NUMBER = r"[0-9]{1,18}"
SIZE = r"[0-9]{1,12}[KMGT]?"
# A comma would begin the next option, a backslash could hide one.
PATH = r"[^,\\\x00-\x1f\x7f]{1,1024}"
OPTIONS = {
    "view": "rank|all",
    "layout": "flat|tree",
    "order": "auto|full|chunk|torch|none",
    "deal": "auto|stride|block",
    "tail": "pad|drop|short",
    "seed": NUMBER,
    "epoch": NUMBER,
    "start": NUMBER,
    "past": r"[0-9]{1,9}x[0-9]{1,18}(\+[0-9]{1,9}x[0-9]{1,18}){0,15}",
    "subdir": PATH,
    "chunk": SIZE,
    "pool": SIZE,
    "groups": NUMBER,
    "redeal": NUMBER,
    "fill_class": "on|off",
    "advance": "auto|off",
    "memory": SIZE,
    "on_bad": "eio|skip|substitute",
    "uid": "[0-9]{1,9}",
    "gid": "[0-9]{1,9}",
    "umask": "[0-7]{1,4}",
    "rank": f"{pod_numbers.NUMBER}|job-index|ordinal|{pod_numbers.SOURCE}",
    "world": f"{pod_numbers.NUMBER}|{pod_numbers.SOURCE}",
}
OTHERS = {"dataset": r"[^,\\\x00-\x1f\x7f]{1,4095}", "podRanks": "[0-9]{1,5}", "localRank": "[0-9]{1,5}"}
FROM_KUBELET = "csi.storage.k8s.io/"
# The pod's number, by what makes its name: an Indexed Job appends its index and five characters of Kubernetes' alphabet
# for random names, a StatefulSet its ordinal.
POD_NUMBER = {"job-index": re.compile(r".*-([0-9]{1,9})-[bcdfghjklmnpqrstvwxz2456789]{5}"),
              "ordinal": re.compile(r".*-([0-9]{1,9})")}


@dataclass(frozen=True)
class Policy:
    """What the administrator allows: directories of datasets, prefixes of addresses, and memory of a server ('8G';
    None: ddpfs chooses)."""
    roots: tuple = ()
    stores: tuple = ()
    memory_max: str = None


def size_bytes(text):
    """Bytes of '4096', '64K', '8G'."""
    return int(text.rstrip("KMGT")) << 10 * " KMGT".index(text[-1] if text[-1] in "KMGT" else " ")


def check_values(attributes):
    known = {**OPTIONS, **OTHERS}
    for name, value in attributes.items():
        if name.startswith(FROM_KUBELET):
            continue
        if name not in known:
            raise invalid(f"volumeAttributes: '{name}' is not for pods to choose; these are: "
                          + ", ".join(sorted(known)))
        if not re.fullmatch(known[name], value):
            raise invalid(f"volumeAttributes: {name}: '{value}' is not one of its values, or has a character that is "
                          "not allowed")


def is_below(path, root):
    return path == root or path.startswith(root.rstrip("/") + "/")


def find_dataset(asked, policy):
    """The dataset's path with symbolic links resolved, so that none leads out of the roots; or its address."""
    if "://" in asked:
        if not re.fullmatch(r"[a-z0-9]+://[A-Za-z0-9._~/:-]+", asked) or "/../" in asked + "/" or "/./" in asked + "/":
            raise invalid(f"volumeAttributes: dataset: '{asked}' is no plain address")
        if not any(is_below(asked, store) for store in policy.stores):
            raise Failure("PERMISSION_DENIED", f"dataset '{asked}' is in none of the stores that the driver's "
                          f"administrator allows: {', '.join(policy.stores) or 'there are none'}")
        return asked
    if not asked.startswith("/"):
        raise invalid(f"volumeAttributes: dataset: '{asked}' is neither an absolute path nor an address")
    roots = [os.path.realpath(root) for root in policy.roots]
    path = os.path.realpath(asked)
    if not any(is_below(path, root) for root in roots):
        raise Failure("PERMISSION_DENIED", f"dataset '{asked}' is in none of the directories that the driver's "
                      f"administrator allows: {', '.join(policy.roots) or 'there are none'}")
    if not re.fullmatch(OTHERS["dataset"], path):
        raise invalid(f"volumeAttributes: dataset: '{asked}' leads to a path with a character that is not allowed")
    if not os.path.isdir(path):
        raise Failure("NOT_FOUND", f"there is no dataset '{asked}' on this node")
    return path


def asks_api_server(attributes):
    """Whether rank or world stand in the pod, which only the API server shows."""
    return any(pod_numbers.is_source(attributes.get(name, "")) for name in ("rank", "world"))


def find_number(option, attributes, pod):
    """The number of `rank` or `world`; `pod` is that of the API, or None if neither needs it."""
    source = attributes[option]
    if pod_numbers.is_source(source):
        return pod_numbers.read(pod, source)
    if source not in POD_NUMBER:
        return int(source)
    name = attributes.get(FROM_KUBELET + "pod.name", "")
    match = POD_NUMBER[source].fullmatch(name)
    if not match:
        raise invalid(f"volumeAttributes: {option}: {source}: the name of pod '{name}' has no such number")
    return int(match[1])


def find_rank(attributes, find_pod):
    """{'rank': digits, 'world': digits}, or {}.  A pod's rank is its number x podRanks + localRank."""
    if ("rank" in attributes) != ("world" in attributes):
        raise invalid("volumeAttributes: rank and world belong together")
    if re.fullmatch(pod_numbers.NUMBER, attributes.get("rank", "0")) and {"podRanks", "localRank"} & set(attributes):
        raise invalid("volumeAttributes: podRanks and localRank need a rank that the pod tells, as rank: job-index")
    if "rank" not in attributes:
        return {}
    each, local = int(attributes.get("podRanks", 1)), int(attributes.get("localRank", 0))
    if local >= each:
        raise invalid(f"volumeAttributes: localRank: {local} must be less than podRanks, {each}")
    pod = None
    if asks_api_server(attributes):
        pod = find_pod(*(attributes.get(f"{FROM_KUBELET}pod.{field}", "") for field in ("namespace", "name", "uid")))
    world = find_number("world", attributes, pod)
    rank = find_number("rank", attributes, pod) * each + local
    if rank >= world:
        raise invalid(f"volumeAttributes: rank {rank} must be less than world, {world}, which counts the ranks of all "
                      "pods")
    return {"rank": str(rank), "world": str(world)}


def resolve(attributes, policy, find_pod=None):
    """(dataset, {option: value}) of a volume; raises Failure.  find_pod(namespace, name, uid) returns the pod as the
    API has it; it is called only if asks_api_server()."""
    check_values(attributes)
    if "dataset" not in attributes:
        raise invalid("volumeAttributes: dataset is missing")
    options = {name: value for name, value in attributes.items() if name in OPTIONS}
    if ".." in options.get("subdir", "").split("/"):
        raise invalid("volumeAttributes: subdir: '..' leads out of the dataset")
    if policy.memory_max:
        if size_bytes(options.setdefault("memory", policy.memory_max)) > size_bytes(policy.memory_max):
            raise invalid(f"volumeAttributes: memory: {options['memory']} is more than a volume may have here, "
                          f"{policy.memory_max}")
    dataset = find_dataset(attributes["dataset"], policy)
    return dataset, {**options, **find_rank(attributes, find_pod)}
