# SPDX-License-Identifier: Apache-2.0
"""Waiting for what must come: for a state that is asked for, never for a time that should be enough."""

import time

PATIENCE_S = 240  # a safety net for a run that hangs, not a limit that a busy machine could come near


def wait_until(condition, what="what was waited for", pause_s=0.01):
    """Returns what `condition()` gave once it is true."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come in {PATIENCE_S} s"
        time.sleep(pause_s)
    return found
