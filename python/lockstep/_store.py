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
ATTEMPT = 5


def wrap() -> None:
    """Replaces TCPStore where torch.distributed makes the store of init_process_group()."""
    if "LOCKSTEP_AGENT_FD" in os.environ:
        # Not the function of the same name.
        rendezvous = importlib.import_module("torch.distributed.rendezvous")
        rendezvous.TCPStore = functools.partial(make_store, rendezvous.TCPStore)


def make_store(original: Callable, *args, **options) -> dist.TCPStore:
    is_job = not args and str(options.get("world_size")) == os.environ.get("WORLD_SIZE")
    if not is_job:
        return original(*args, **options)
    if options["is_master"]:
        return original(**options | {"wait_for_workers": False})
    return join_store(options)


def join_store(options: dict) -> dist.TCPStore:
    """Connects to rank 0's store. The one of the last group may still listen there, and then end:
    the constructor would go on trying. Or another program listens there."""
    from lockstep import _C, _last_words

    host, port, timeout = (options[name] for name in ("host_name", "port", "timeout"))
    deadline = time.monotonic() + timeout.total_seconds()
    reason = ""
    while await_listener(host, port, deadline):
        left = max(1, deadline - time.monotonic())
        store, failure = _C.connect_to_store(
            host, port, options["world_size"], options.get("use_libuv", True),
            timedelta(seconds=min(ATTEMPT, left)), timedelta(seconds=left))
        if store:
            store.set_timeout(timeout)
            return store
        reason = failure or reason or "what listens there does not answer as PyTorch's store does"
        time.sleep(PAUSE)
    _last_words.install()  # The launcher learns whether the process ends by that Error.
    _C.throw_without_store(f"{host}:{port}", timeout, reason)


def await_listener(host: str, port: int, deadline: float) -> bool:
    """Returns whether a process listens there before the deadline. Raises lockstep.Error if the
    launcher knows that a rank has ended."""
    from lockstep import _C

    while True:
        _C.throw_if_launcher_lost_rank()
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        try:
            socket.create_connection((host, port), timeout=min(1, left)).close()
            return True
        except OSError:  # Nobody listens yet.
            time.sleep(min(PAUSE, left))
