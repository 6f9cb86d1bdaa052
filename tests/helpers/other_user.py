# SPDX-License-Identifier: Apache-2.0
"""Calls of another user: in a forked child, so that the interpreter need not be readable for him."""

import ctypes
import os
import pickle
import traceback

NOBODY = 65534
PR_SET_DUMPABLE = 4


def become(uid=NOBODY):
    """This process is another user from here on."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # else /proc/self stays root's


def call_as(function, uid=NOBODY, before=None):
    """Returns what function() returns in a child that runs as `uid`, or raises what it raises.  @before: called in the
    child as root."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if before:
                before()
            become(uid)
            result = (True, function())
        except BaseException as error:
            error.__traceback__ and error.add_note(traceback.format_exc())
            result = (False, error)
        try:
            with open(writer, "wb") as file:
                pickle.dump(result, file)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    assert text, "the child died"
    done, result = pickle.loads(text)
    if not done:
        raise result
    return result
