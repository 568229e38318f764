# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own store under `lockstep run`, with detection of ranks that have exited.

Its constructor waits for the other ranks on rank 0, and for rank 0 on other ranks. Meanwhile it
handles neither Ctrl-C nor reports of the launcher. Under `lockstep run`, rank 0 therefore does not
wait in the constructor, and the others poll whether rank 0 listens. All ranks then wait in
lockstep._C, which checks for both.

Each call of init_process_group() is a round with its own keys. Rank 0 starts the round, and the
others wait for it. Rank 0 serves the store until its process exits, and all ranks keep their
connections. With one server per group, a rank that creates its next group early would connect to
the closing server of the previous group. PyTorch's client then prints a backtrace and retries
for up to a second. Each new client also looks up the host's name, which may be slow.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch import distributed as dist

PAUSE = 0.05  # Seconds.
SHORT_PAUSE = 0.0005  # First pause: rank 0 usually starts a round at the same time.
ATTEMPT = 5
ROUND = "lockstep/round"  # Key of the latest round that rank 0 has started.


@dataclasses.dataclass
class Round:
    name: str
    store: dist.TCPStore  # On rank 0 it is also the server.


# This process's last round, by the server's host and port.
rounds: dict[tuple[str, int], Round] = {}


def wrap() -> None:
    """Replaces TCPStore where torch.distributed creates the store of init_process_group()."""
    if "LOCKSTEP_AGENT_FD" in os.environ:
        # The module, not the function of the same name.
        rendezvous = importlib.import_module("torch.distributed.rendezvous")
        rendezvous.TCPStore = functools.partial(make_store, rendezvous.TCPStore)
        os.register_at_fork(after_in_child=forget)


def make_store(original: Callable, *args, **options) -> dist.Store:
    is_job = not args and str(options.get("world_size")) == os.environ.get("WORLD_SIZE")
    if not is_job or dist.is_initialized():
        return original(*args, **options)
    place = options["host_name"], options["port"]
    last = rounds.get(place)
    rounds[place] = (begin_round(original, options, last) if options["is_master"] else
                     join_round(options, last))
    return dist.PrefixStore(f"{ROUND}/{rounds[place].name}", rounds[place].store)


def forget() -> None:
    """In a forked child, which does not have the server's thread: never stop the server."""
    if rounds:
        from lockstep import _C

        for one in rounds.values():
            _C.never_destroy(one.store)
        rounds.clear()


def unused_store(last: Round | None) -> dist.TCPStore | None:
    """Returns the store of the last round. A store serves one call at a time: returns None if it
    is in use, because another thread may be waiting in it."""
    from lockstep import _C

    return None if last is None or _C.is_in_use(last.store) else last.store


def begin_round(original: Callable, options: dict, last: Round | None) -> Round:
    """On rank 0. PyTorch has one server for each port of a process."""
    store = unused_store(last) or original(**options | {"wait_for_workers": False})
    store.set_timeout(options["timeout"])
    begun = Round(str(time.time_ns()), store)
    store.set(ROUND, begun.name)
    return begun


def join_round(options: dict, last: Round | None) -> Round:
    """On the other ranks. Another program may listen at the port, or rank 0 may exit."""
    from lockstep import _C, _exit_report

    host, port, timeout = (options[name] for name in ("host_name", "port", "timeout"))
    deadline = time.monotonic() + timeout.total_seconds()
    store, reason = unused_store(last), ""
    while store or await_listener(host, port, deadline):
        left, failure = max(1, deadline - time.monotonic()), ""
        if store is None:
            store, failure = _C.connect_to_store(
                host, port, options["world_size"], options.get("use_libuv", True),
                timedelta(seconds=min(ATTEMPT, left)), timedelta(seconds=left))
        if store:
            try:
                store.set_timeout(timeout)
                if name := await_round(store, last, deadline):
                    return Round(name, store)
                failure = "rank 0 has not called init_process_group() once more"
            except (dist.DistNetworkError, dist.DistStoreError) as error:
                failure = str(error)
        store = None
        reason = failure or reason or "what listens there does not answer as PyTorch's store does"
        time.sleep(PAUSE)
    _exit_report.install()  # Reports to the launcher if this Error ends the process.
    _C.throw_without_store(f"{host}:{port}", timeout, reason)


def await_round(store: dist.TCPStore, last: Round | None, deadline: float) -> str:
    """Returns the name of the round that rank 0 has started after `last`, or "" if there is none
    before the deadline. Raises as await_listener() does."""
    from lockstep import _C

    pause = SHORT_PAUSE
    while True:
        _C.throw_if_launcher_lost_rank()
        name = store.get(ROUND).decode() if store.check([ROUND]) else ""
        if name and (last is None or name != last.name):
            return name
        if time.monotonic() >= deadline:
            return ""
        time.sleep(pause)
        pause = min(2 * pause, PAUSE)


def await_listener(host: str, port: int, deadline: float) -> bool:
    """Returns whether a process listens there before the deadline. Raises lockstep.Error if the
    launcher reports that a rank has exited."""
    from lockstep import _C

    while True:
        _C.throw_if_launcher_lost_rank()
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        try:
            socket.create_connection((host, port), timeout=min(1, left)).close()
            return True
        except OSError:  # No process listens yet.
            time.sleep(min(PAUSE, left))
