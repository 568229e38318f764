# SPDX-License-Identifier: Apache-2.0
"""Ranks of a test, forked from its process. The process has imported torch but never used it, so
a rank starts in milliseconds. A spawned rank would import torch first, which takes seconds."""

import contextlib
import dataclasses
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import sys
import tempfile
import time
import traceback
import warnings

import torch
import torch.distributed as dist

FORK = multiprocessing.get_context("fork")


@dataclasses.dataclass
class Ended:
    """The end of a rank: the value that its function returned, the traceback of its exception,
    or neither if the process ended otherwise."""
    value: object = None
    error: str = ""
    exit_code: int = None  # The process's; negative: the signal that killed it.


class Ranks:
    """Processes 0 to count - 1 that call function(rank, *arguments). A context: it leaves no
    rank running."""

    def __init__(self, count, function, *arguments):
        self.processes, self.answers = [], []
        for rank in range(count):
            answer, sender = FORK.Pipe(duplex=False)
            process = FORK.Process(target=run, args=(sender, function, rank, arguments))
            process.start()
            self.processes.append(process)
            sender.close()
            self.answers.append(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()

    def pid(self, rank):
        return self.processes[rank].pid

    def end(self, rank, deadline):
        """Waits for the end of a rank; prints the Python stacks of all ranks if it comes late."""
        answer, process = self.answers[rank], self.processes[rank]
        ended = Ended()
        if not answer.poll(max(0, deadline - time.monotonic())):
            self.abort(rank)
        with contextlib.suppress(EOFError):
            ended = answer.recv()
        process.join(max(0, deadline - time.monotonic()))
        if process.exitcode is None:
            self.abort(rank)
        ended.exit_code = process.exitcode
        return ended

    def abort(self, late):
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        raise AssertionError(f"rank {late} hangs; the stacks are above")

    def ends(self, timeout=120):
        deadline = time.monotonic() + timeout
        return [self.end(rank, deadline) for rank in range(len(self.processes))]


def run(sender, function, rank, arguments):
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames some of its functions.
    ended = Ended()
    try:
        ended.value = function(rank, *arguments)
    except BaseException:
        ended.error = traceback.format_exc()
    sender.send(ended)
    sender.close()
    sys.stdout.flush()


def values(count, function, *arguments, timeout=120):
    """Runs ranks that join one group of Lockstep. Returns the value of each."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = pathlib.Path(folder) / "store"
        with Ranks(count, in_group, meeting, count, function, arguments) as ranks:
            ends = ranks.ends(timeout)
    failures = [f"rank {rank} of {count} ended with {ended.exit_code}\n{ended.error}"
                for rank, ended in enumerate(ends) if ended.error or ended.exit_code]
    assert not failures, "\n".join(failures)
    return [ended.value for ended in ends]


def in_group(rank, meeting, count, function, arguments):
    dist.init_process_group("lockstep", init_method=f"file://{meeting}", rank=rank,
                            world_size=count)
    value = function(*arguments)
    dist.destroy_process_group()
    return value
