#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Threads of the library keep one thread state of Python each, and give it back at their end.

Python makes a thread state under a lock of its own, without the GIL. Before 3.11.8, a fork() at
that moment makes a child that hangs. So threads that made one for each callback would hang the
workers of a DataLoader now and then."""

import ctypes
import os
import signal
import threading
import time

import forked_ranks
from plugin_or_skip import torch

import torch.distributed as dist  # noqa: E402

CALLS = 200
FORKS = 300
LATE = 20  # Seconds.
# Far fewer than calls: those of the library's threads, and of the threads that ask.
MOST_STATES = 20


def function_of_python(name, result, *arguments):
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, arguments
    return function


interpreter = function_of_python("PyInterpreterState_Main", ctypes.c_void_p)
first_state = function_of_python("PyInterpreterState_ThreadHead", ctypes.c_void_p, ctypes.c_void_p)
next_state = function_of_python("PyThreadState_Next", ctypes.c_void_p, ctypes.c_void_p)
number_of = function_of_python("PyThreadState_GetID", ctypes.c_uint64, ctypes.c_void_p)


def states():
    """Returns the numbers of the existing thread states. Python numbers all that it creates."""
    numbers, state = [], first_state(interpreter())
    while state:
        numbers.append(number_of(state))
        state = next_state(state)
    return numbers


def last_number():
    """Returns the number of a state that is created now."""
    numbers = []
    thread = threading.Thread(target=lambda: numbers.extend(states()))
    thread.start()
    thread.join()
    return max(numbers)


def reduce():
    """A callback runs on a thread of the library."""
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.get_future().then(lambda _: None).wait()


def reduce_and_drop():
    """The library drops the last reference to the tensor."""
    dist.all_reduce(torch.ones(4), async_op=True)
    time.sleep(0.0005)  # So that a thread of the library runs it.


def swap():
    """A callback runs on a thread that transfers messages."""
    peer = 1 - dist.get_rank()
    works = [dist.isend(torch.ones(4), peer), dist.irecv(torch.empty(4), peer)]
    for work in works:
        work.get_future().then(lambda _: None).wait()


def swap_and_drop():
    peer = 1 - dist.get_rank()
    dist.irecv(torch.empty(4), peer)
    dist.isend(torch.ones(4), peer)


def check_states_made(act):
    before = last_number()
    for _ in range(CALLS):
        act()
    dist.barrier()
    made = last_number() - before
    assert made <= MOST_STATES, f"{act.__name__}: {made} thread states for {CALLS} calls"


def check_states_left():
    """Threads end with their groups."""
    before = len(states())
    for _ in range(5):
        group = dist.new_group()
        dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().wait()
        for work in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, torch.ones(4), 1 - dist.get_rank(), group),
                dist.P2POp(dist.irecv, torch.ones(4), 1 - dist.get_rank(), group)]):
            work.get_future().wait()
        dist.destroy_process_group(group)
        del work, group
    left = len(states())
    assert left <= before, f"{left} thread states, {before} before"


def end_of_child():
    """Returns the exit code of a child that ends at once."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    deadline = time.monotonic() + LATE
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0] == child:
            return 0
        time.sleep(0.0002)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def check_forks():
    """Children end while callbacks run in their parent."""
    stopping = threading.Event()

    def go_on():
        while not stopping.is_set():
            reduce()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for number in range(FORKS):
            assert end_of_child() == 0, f"child {number} hangs"
    finally:
        stopping.set()
        thread.join()


def check_all():
    for act in (reduce, reduce_and_drop, swap, swap_and_drop):
        check_states_made(act)
    check_states_left()


def main():
    forked_ranks.values(2, check_all)
    print("thread states", flush=True)
    forked_ranks.values(1, check_forks)
    print("forks", flush=True)


if __name__ == "__main__":
    main()
