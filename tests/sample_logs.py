# SPDX-License-Identifier: Apache-2.0
"""Files for --log-samples of the examples by which a test holds a training back."""

import fcntl
import os


class SampleLog:
    """A pipe. The ranks wait when they have written some 4 KiB that the test has not read."""

    def __init__(self, path):
        self.path = path
        os.mkfifo(path)
        # The ranks' open() then does not wait, and without a reader they would get SIGPIPE.
        self._end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.hold()

    def hold(self):
        self._resize(4096)

    def release(self):
        """The ranks go on to their end, even if the test reads no more."""
        self._resize(1 << 20)

    def read(self):
        try:
            while os.read(self._end, 1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self):
        """Call it when the ranks have ended."""
        os.close(self._end)

    def _resize(self, size):
        self.read()
        fcntl.fcntl(self._end, fcntl.F_SETPIPE_SZ, size)
