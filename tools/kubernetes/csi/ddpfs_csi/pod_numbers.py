# SPDX-License-Identifier: Apache-2.0
"""Numbers that a pod of the Kubernetes API tells: `annotation:KEY`, `label:KEY` and `env:NAME`.

No text here quotes what a pod says, because a variable of a pod can be a secret."""

import re

from ddpfs_csi.failure import invalid

# As Kubernetes writes them: an optional domain and a name; a variable has at most as many characters as we look at.
KEY = r"(?:[A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
SOURCE = rf"(?:annotation|label):{KEY}|env:[A-Za-z_.-][A-Za-z0-9_.-]{{0,254}}"
NUMBER = "[0-9]{1,9}"
FIELD = re.compile(rf"metadata\.(annotation|label)s\['({KEY})'\]")


def is_source(text):
    return re.fullmatch(SOURCE, text) is not None


def name_of(pod):
    return f"pod '{pod['metadata']['namespace']}/{pod['metadata']['name']}'"


def from_metadata(pod, kind, key):
    values = pod["metadata"].get(kind + "s") or {}
    if key not in values:
        raise invalid(f"{name_of(pod)} has no {kind} '{key}'")
    return values[key]


def from_entry(pod, entry):
    """The text of an entry of `env:`."""
    if not entry.get("valueFrom"):
        return entry.get("value", "")
    [kind, *_] = entry["valueFrom"]
    path = entry["valueFrom"][kind].get("fieldPath", "") if kind == "fieldRef" else ""
    field = FIELD.fullmatch(path)
    if not field:
        raise invalid(f"{name_of(pod)} takes variable '{entry['name']}' from {f'{kind} {path}'.strip()}: only values, "
                      "annotations and labels are looked up")
    return from_metadata(pod, *field.groups())


def from_variable(pod, name):
    found = {}
    for container in pod["spec"]["containers"]:
        entries = [entry for entry in container.get("env") or [] if entry["name"] == name]
        if entries:
            found[container["name"]] = from_entry(pod, entries[-1])  # the container gets the last of one name
    if not found:
        raise invalid(f"no container of {name_of(pod)} has variable '{name}' in its env: those of envFrom, of the "
                      "image and of programs are not looked up")
    if len(set(found.values())) > 1:
        raise invalid(f"containers {', '.join(found)} of {name_of(pod)} have different values of variable '{name}'")
    return next(iter(found.values()))


def read(pod, source):
    """The number that `source` has in `pod`; raises Failure."""
    kind, key = source.split(":", 1)
    text = from_variable(pod, key) if kind == "env" else from_metadata(pod, kind, key)
    if not re.fullmatch(NUMBER, text):
        raise invalid(f"what {name_of(pod)} has as {source} is no number from 0 to 999999999")
    return int(text)
