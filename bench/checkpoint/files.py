# SPDX-License-Identifier: Apache-2.0
"""What files.h and peak_memory.h are for Python."""

import os
import pathlib
import re


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def drop_cached(folder):
    """The next reader waits for the disk. Needs no root; what is not on the disk yet stays."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class PeakMemory:
    """How much more memory this process has at its peak than it had at first, in bytes."""

    def __init__(self):
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        self.before = self.read("VmRSS")

    def growth(self):
        return self.read("VmHWM") - self.before

    @staticmethod
    def read(name):
        status = pathlib.Path("/proc/self/status").read_text()
        return 1024 * int(re.search(rf"{name}:\s+(\d+)", status)[1])
