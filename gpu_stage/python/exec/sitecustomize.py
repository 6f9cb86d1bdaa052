# SPDX-License-Identifier: Apache-2.0
"""`ddpfs exec` puts this file's directory into PYTHONPATH, so that Python imports it at its start.

It waits until torch.utils.data.dataloader is imported, and then has loaders watched (ddpfs/sampler_copy.py).  A Python
that never imports torch pays for this file alone.  It takes its directory out of sys.path again, and then runs the
sitecustomize that it hides.  With python -E, -I or -S nothing of this happens.  Nothing of the hook raises."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
WATCHED = "torch.utils.data.dataloader"
PACKAGE = "_ddpfs_exec"  # the name of this ddpfs's modules: the program may have another version, or none


def watch(module):
    try:
        package = type(sys)(PACKAGE)
        package.__path__ = [os.path.join(os.path.dirname(HERE), "ddpfs")]
        sys.modules[PACKAGE] = package
        from _ddpfs_exec import sampler_copy

        sampler_copy.install(module, automatic=True)
    except Exception as error:
        if os.environ.get("DDPFS_DEBUG", "") not in ("", "0"):
            sys.stderr.write("ddpfs: nothing is announced: %r\n" % error)


class Loader:
    """Loads the watched module as the true loader does."""

    def __init__(self, loader, finder):
        self.loader, self.finder = loader, finder

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        watch(module)


def find(name, path=None, target=None, besides=None):
    for finder in sys.meta_path:
        if finder is not besides and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


class Finder:
    """Finds the watched module by the finders behind this one, and nothing else."""

    def find_spec(self, name, path=None, target=None):
        if name != WATCHED:
            return None
        spec = find(name, path, target, besides=self)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = Loader(spec.loader, self)
        return spec


def run_hidden():
    """Runs the sitecustomize that Python would have found; what it raises is Python's to report."""
    spec = find("sitecustomize")
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    sys.modules["sitecustomize"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["sitecustomize"])


sys.path[:] = [place for place in sys.path if place != HERE]
if sys.version_info >= (3, 9) and "DDPFS_MOUNT" in os.environ:
    if WATCHED in sys.modules:
        watch(sys.modules[WATCHED])
    else:
        sys.meta_path.insert(0, Finder())
run_hidden()
