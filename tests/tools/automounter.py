#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What systemd does for an automount unit (autofs, direct), in a mount namespace of its own:

    automounter.py MNT COMMAND...     prints what a process lists in MNT, for which COMMAND is run

COMMAND must mount on MNT, and is in the automounter's process group, as mount(8) is in systemd's.  Exit code 77: this
kernel or user cannot."""

import ctypes
import fcntl
import os
import struct
import subprocess
import sys

IOC_READY, IOC_FAIL = 0x9360, 0x9361  # linux/auto_fs.h
CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x4000, 1 << 18, 2
PATIENCE_S = 120

mnt, command = sys.argv[1], sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(CLONE_NEWNS) < 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) < 0:
    sys.exit(77)
os.setpgid(0, 0)
requests, kernel = os.pipe()
options = f"fd={kernel},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
if libc.mount(b"automounter", mnt.encode(), b"autofs", 0, options.encode()) < 0:
    sys.exit(77)
autofs = os.open(mnt, os.O_RDONLY | os.O_DIRECTORY)
user = subprocess.Popen(["ls", mnt], start_new_session=True)
token = struct.unpack("iiI", os.read(requests, 4096)[:12])[2]
answer = IOC_FAIL
try:
    subprocess.run(command, timeout=PATIENCE_S, check=True)
    answer = IOC_READY
finally:
    fcntl.ioctl(autofs, answer, token)  # all who wait go on
user.wait()
while libc.umount2(mnt.encode(), MNT_DETACH) == 0:  # the mount, then autofs
    pass
