# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own store under `lockstep run`, which knows of ranks that have ended.

Its constructor waits for the other ranks, on rank 0, and for rank 0, on the others; there it hears
neither Ctrl-C nor the launcher. Under `lockstep run`, rank 0 does not wait there, and the others
look themselves whether it listens. All ranks then wait where lockstep._C looks for both.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch import distributed as dist

PAUSE = 0.05  # Seconds.


def wrap() -> None:
    """Replaces TCPStore where torch.distributed makes the store of init_process_group()."""
    if "LOCKSTEP_AGENT_FD" in os.environ:
        # Not the function of the same name.
        rendezvous = importlib.import_module("torch.distributed.rendezvous")
        rendezvous.TCPStore = functools.partial(make_store, rendezvous.TCPStore)


def make_store(original: Callable, **options) -> dist.TCPStore:
    is_job = str(options.get("world_size")) == os.environ.get("WORLD_SIZE")
    if is_job and options["is_master"]:
        options["wait_for_workers"] = False
    elif is_job:
        await_listener(options["host_name"], options["port"], options["timeout"])
    return original(**options)


def await_listener(host: str, port: int, timeout: timedelta) -> None:
    """Returns when a process listens there, or at the end of the timeout, which TCPStore then
    reports. Raises lockstep.Error if the launcher knows that a rank has ended."""
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:  # Nobody listens yet.
            time.sleep(PAUSE)
        from lockstep import _C

        _C.throw_if_launcher_lost_rank()
