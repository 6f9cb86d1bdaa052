# SPDX-License-Identifier: Apache-2.0
"""Which file an index means, where neither the dataset nor Python tells it: learned from what is opened.

C code opens files by names that only it knows, or each worker makes the list of files for itself.  But the indices that
the sampler draws are known, and each mount sees what is opened.  A mount's server holds both against the lists by which
trainers number files, until one fits (prefetch/sampler/drawn.h).  From then on the indices are announced as numbers of
that list."""

import os
import time
from array import array

from .follow import Files
from .mount import Mount
from .sample_paths import mounts

DRAWS_MAX = 4096  # the latest draws that a server looks at
IN_VAIN = 16384  # draws after which the search ends
PAUSE_S, SHARE = 0.05, 10  # between two questions; a server is busy with them for a tenth of the time at most
SILENT_S = 2  # the same if nothing was drawn meanwhile: workers may have opened more
MOUNTS_MAX = 8  # mounts that are asked if the trainer does not run under `ddpfs exec`


def numbered(root, name):
    """The numbering that the server of this mount has made of the list that it found: Mount.follow takes it."""
    return Files(Mount(root), name, None, True)


class Search:
    """Asks the mounts by which list a trainer numbers its files.

    root     of the mount whose server has found it, and made a numbering of it; or None
    name     of the numbering, or None
    in_vain  no list will fit"""

    def __init__(self, size):
        """size: files of the dataset."""
        self.root, self.name, self._size = None, None, size
        few = mounts()[:1 if os.environ.get("DDPFS_MOUNT") else MOUNTS_MAX]
        self._mounts = [Mount(root) for root in few]
        self.in_vain = not self._mounts or size < 1
        self._asked_at, self._asked_drawn, self._pause = 0, 0, PAUSE_S

    def go_on(self, drawn, latest):
        """Asks again, if it is time.  drawn: how many indices the trainer has drawn; latest(n): the last n of them."""
        now = time.monotonic()
        pause = self._pause if drawn != self._asked_drawn else max(SILENT_S, self._pause)
        if drawn and now - self._asked_at >= pause:
            indices = array("q", latest(min(drawn, DRAWS_MAX)))
            self._mounts = [mount for mount in self._mounts if self.root or self._ask(mount, indices)]
            self._asked_at, self._asked_drawn = time.monotonic(), drawn
            self._pause = max(PAUSE_S, SHARE * (self._asked_at - now))
        self.in_vain = self.root is None and (not self._mounts or drawn > IN_VAIN)

    def _ask(self, mount, indices):
        """Returns whether it can help to ask this mount again."""
        try:
            reply = mount._learn(indices, self._size)
        except (OSError, ValueError):  # of another user, of several ranks, of an older version, or unmounted meanwhile
            return False
        if reply["found"]:
            self.root, self.name = str(mount), reply["table"]
        return reply.get("more", False)
