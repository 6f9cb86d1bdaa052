# SPDX-License-Identifier: Apache-2.0
"""Builds the root of an image by a Dockerfile, without Docker: each stage is a copy of a system, and RUN is chroot(2).

It knows the instructions that tools/kubernetes/Dockerfile uses, and refuses every other one."""

import glob
import os
import re
import shlex

from helpers import tools

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def instructions(text):
    """[(instruction, its words)]: comments are left out, and lines that end with a backslash go on."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [tuple(line.split(None, 1)) for line in "\n".join(lines).replace("\\\n", " ").split("\n")]


class Image:
    """`system(name)` gives the directory of the system that a base image has; `place` takes the stages."""

    def __init__(self, dockerfile, context, system, place, seconds):
        self._context, self._system, self._place, self._seconds = context, system, place, seconds
        self._arguments, self._stages = {}, {}
        self.root = self.command = None  # of the last stage
        for name, words in instructions(dockerfile.read_text()):
            getattr(self, f"_{name.lower()}")(re.sub(r"\$\{(\w+)\}", lambda m: self._arguments.get(m[1], m[0]), words))

    def _arg(self, words):
        name, _, value = words.partition("=")
        self._arguments[name] = value

    def _from(self, words):
        base, *name = words.split(" AS ")
        self.root = self._place / f"stage-{len(self._stages)}"
        self._stages[name[0] if name else self.root.name] = self.root
        self._directory = "/"
        tools.run(["cp", "-a", "--reflink=auto", self._system(base), self.root])

    def _workdir(self, words):
        self._directory = words
        (self.root / words.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _copy(self, words):
        *sources, target = words.split()
        context = self._context
        if sources[0].startswith("--from="):
            context = self._stages[sources.pop(0).removeprefix("--from=")]
        place = self.root / target.lstrip("/")
        for source in sources:
            found = glob.glob(str(context / source.lstrip("/")))
            assert found, f"COPY: there is no {source}"
            for path in found:
                # As Docker: of a directory its contents are copied, to a place that ends with "/" goes a file of its name.
                assert os.path.isdir(path) or target.endswith("/"), "COPY of a file to another name"
                place.mkdir(parents=True, exist_ok=True)
                tools.run(["cp", "-a", f"{path}/." if os.path.isdir(path) else path, place])

    def _run(self, words):
        outer = f"""
            cd {shlex.quote(str(self.root))}
            mount --bind . .
            cd "$PWD"
            mount -t proc none proc
            mount --rbind /sys sys
            mount --rbind /dev dev
            mount -t tmpfs none run
            : >run/certificates.crt
            [ ! -e {CERTIFICATES} ] || mount --bind {CERTIFICATES} run/certificates.crt
            cat /etc/resolv.conf >etc/resolv.conf
            exec chroot . env -i PATH={PATH} HOME=/root PIP_CERT=/run/certificates.crt sh -c "cd $0 && $1"
            """
        tools.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", outer, self._directory, words],
                  timeout=self._seconds)

    def _cmd(self, words):
        self.command = words


def context(root, ignored, place):
    """A clone of the repository `root` with what is changed in it, without what the file `ignored` names, as Docker sends it."""
    tools.run(["git", "clone", "--quiet", "--no-hardlinks", root, place])
    rules = [line for line in ignored.read_text().splitlines() if line and not line.startswith("#")]
    rules = [f"--exclude={rule[3:] if rule.startswith('**/') else f'/{rule}'}" for rule in rules]
    tools.run(["rsync", "-a", "--delete", "--exclude=/.git", *rules, f"{root}/", place])
    tools.run(["chown", "-R", "0:0", place])
    return place
