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


def make_store(original: Callable, *args, **options) -> dist.TCPStore:
    is_job = not args and str(options.get("world_size")) == os.environ.get("WORLD_SIZE")
    if is_job and options["is_master"]:
        return original(**options | {"wait_for_workers": False})
    if not is_job or await_listener(options["host_name"], options["port"], options["timeout"]):
        return original(*args, **options)
    store = original(**options | {"timeout": timedelta(seconds=1)})  # Reports the timeout.
    store.set_timeout(options["timeout"])  # Rank 0 has come at the last moment.
    return store


def await_listener(host: str, port: int, timeout: timedelta) -> bool:
    """Returns whether a process listens there before the end of the timeout. Raises
    lockstep.Error if the launcher knows that a rank has ended."""
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return True
        except OSError:  # Nobody listens yet.
            time.sleep(PAUSE)
        from lockstep import _C

        _C.throw_if_launcher_lost_rank()
    return False
