# SPDX-License-Identifier: Apache-2.0
"""A call of the kernel refused to a thread, to the threads it starts and to the programs it runs."""

import ctypes
import os
import struct
import threading

from helpers.waiting import PATIENCE_S

IO_URING_SETUP, IO_URING_ENTER = 425, 426  # one number on all machines (asm-generic/unistd.h)
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000  # linux/seccomp.h


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def _refuse(call, error):
    code = b"".join(struct.pack("HBBI", *step) for step in (
        (_LOAD_NUMBER, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ERRNO | error), (_RETURN, 0, 0, _ALLOW)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 or \
            libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(code) // 8, code)), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def refused(call, error, work):
    """work() in a thread of its own to which `call` is refused with `error`: what it returned, or its exception.  Programs that it
    starts and that die with their parent end when it returns."""
    outcome = {}

    def run():
        try:
            _refuse(call, error)
            outcome["value"] = work()
        except BaseException as failure:  # of any kind: it is the caller's
            outcome["failure"] = failure

    thread = threading.Thread(target=run, daemon=True)  # one that waits for ever does not keep the process
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for ever"
    if "failure" in outcome:
        raise outcome["failure"]
    return outcome["value"]
