# SPDX-License-Identifier: Apache-2.0
"""A program whose standard error is a terminal."""

import fcntl
import os
import select
import subprocess
import termios

from helpers import tools


class OnTerminal:
    """`process` runs with a pseudo-terminal as standard error, and `text` is what it has written there so far.  It is in a
    session of its own, which the terminal controls: a key such as Ctrl-C reaches it."""

    def __init__(self, argv, **kwargs):
        self.text = ""
        self.ours, theirs = os.openpty()
        try:
            self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stderr=theirs,
                                            env={**os.environ, "TERM": "xterm"}, preexec_fn=self.begin, **kwargs)
        finally:
            os.close(theirs)

    @staticmethod
    def begin():
        """In the child."""
        tools.die_with_parent()
        os.setsid()
        fcntl.ioctl(2, termios.TIOCSCTTY, 0)

    def press(self, key):
        """Types; "\\x03" is Ctrl-C."""
        os.write(self.ours, key.encode())

    def read(self):
        """Takes what is there, within 0.1 s.  False: nobody has the terminal open any more."""
        if not select.select([self.ours], [], [], 0.1)[0]:
            return True
        try:
            got = os.read(self.ours, 65536)
        except OSError:
            return False
        self.text += got.decode()
        return bool(got)

    def wait_for(self, wanted):
        while wanted not in self.text:
            assert self.read(), self.text

    def wait(self):
        """Reads until the program has ended; its exit code."""
        while self.process.poll() is None:
            self.read()
        self.read()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        if self.process.poll() is None:
            self.process.terminate()
            self.wait()
        if self.process.stdout:
            self.process.stdout.close()
        os.close(self.ours)
