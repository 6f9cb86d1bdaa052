# SPDX-License-Identifier: Apache-2.0
"""What a pod may ask for: its volumeAttributes, checked, become a dataset and mount options.

Everybody who may create a pod writes these, and the server runs as root of the node.  So this is a list of what is
allowed.  Options that name files of the node (state, quarantine, log, control), credentials or addresses (s3_*), or
that take threads and time of the node (threads, seed_search, timeout, watchdog, debug) are for the administrator alone.
"""

import os
import re
from dataclasses import dataclass

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
    "rank": "[0-9]{1,9}|job-index|ordinal",
    "world": "[0-9]{1,9}",
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


def find_rank(attributes):
    """The rank as digits, or None.  A pod's rank is its number x podRanks + localRank."""
    rank, world = attributes.get("rank"), attributes.get("world")
    if rank in POD_NUMBER:
        pod = attributes.get(FROM_KUBELET + "pod.name", "")
        match = POD_NUMBER[rank].fullmatch(pod)
        if not match:
            raise invalid(f"volumeAttributes: rank: {rank}: the name of pod '{pod}' has no such number")
        each, local = int(attributes.get("podRanks", 1)), int(attributes.get("localRank", 0))
        if local >= each:
            raise invalid(f"volumeAttributes: localRank: {local} must be less than podRanks, {each}")
        rank = str(int(match[1]) * each + local)
    elif "podRanks" in attributes or "localRank" in attributes:
        raise invalid("volumeAttributes: podRanks and localRank need rank: job-index or rank: ordinal")
    if (rank is None) != (world is None):
        raise invalid("volumeAttributes: rank and world belong together")
    if rank is not None and int(rank) >= int(world):
        raise invalid(f"volumeAttributes: rank {rank} must be less than world, {world}")
    return rank


def resolve(attributes, policy):
    """(dataset, {option: value}) of a volume; raises Failure."""
    check_values(attributes)
    if "dataset" not in attributes:
        raise invalid("volumeAttributes: dataset is missing")
    options = {name: value for name, value in attributes.items() if name in OPTIONS}
    if ".." in options.get("subdir", "").split("/"):
        raise invalid("volumeAttributes: subdir: '..' leads out of the dataset")
    rank = find_rank(attributes)
    if rank is not None:
        options["rank"] = rank
    if policy.memory_max:
        if size_bytes(options.setdefault("memory", policy.memory_max)) > size_bytes(policy.memory_max):
            raise invalid(f"volumeAttributes: memory: {options['memory']} is more than a volume may have here, "
                          f"{policy.memory_max}")
    return find_dataset(attributes["dataset"], policy), options
