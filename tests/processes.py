# SPDX-License-Identifier: Apache-2.0
"""Processes that a test started, and their descendants."""

import os
import pathlib
import signal
import time


def soon(holds, limit=60):
    """Calls `holds` until its result is true or the limit in seconds passes. Returns the last
    result."""
    deadline = time.monotonic() + limit
    while not (result := holds()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return result


def descendants(pid):
    try:
        tasks = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return children + [grandchild for child in children for grandchild in descendants(child)]


def is_running(pid):
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def ranks_of(launcher):
    """Returns the process ids of `lockstep run`'s ranks: children of its child, the agent."""
    try:
        command = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children")
        agents = [int(word) for word in command.read_text().split()]
        return [
            int(word) for agent in agents
            for word in pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        ]
    except OSError:
        return []


def kill_all(pid):
    """Kills a process and its descendants. Returns when they have exited."""
    family = [pid, *descendants(pid)]
    for process in family:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    soon(lambda: not any(map(is_running, family)), 20)
