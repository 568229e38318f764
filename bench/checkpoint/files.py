# SPDX-License-Identifier: Apache-2.0
"""Python's counterpart of files.h and peak_memory.h."""

import os
import pathlib
import re


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def drop_cached(folder):
    """Drops cached pages, so that the next reader waits for the disk. Needs no root. Keeps pages
    that are not yet on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class PeakMemory:
    """Growth of this process's memory, from construction to its peak, in bytes."""

    def __init__(self):
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        self.before = self.read("VmRSS")

    def growth(self):
        return self.read("VmHWM") - self.before

    @staticmethod
    def read(name):
        status = pathlib.Path("/proc/self/status").read_text()
        return 1024 * int(re.search(rf"{name}:\s+(\d+)", status)[1])
