# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of bench.py under torchrun: does the same as ours.cpp, with Gloo."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def say(what, nanoseconds=None):
    os.write(1, f"{what} {nanoseconds or time.monotonic_ns()}\n".encode())


def init():
    begin = time.monotonic_ns()
    dist.init_process_group("gloo")
    end = time.monotonic_ns()
    say("begin", begin)
    say("end", end)
    dist.barrier()  # A rank that ends breaks others' connections that are not complete.
    dist.destroy_process_group()


def lose_a_rank(gb):
    dist.init_process_group("gloo")
    ballast = torch.ones(int(gb * 1e9), dtype=torch.uint8) if dist.get_rank() == 1 else None
    values = torch.ones(1 << 16)
    try:
        for step in range(1 << 30):
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
            if dist.get_rank() == 1 and step == 1000:
                say("killed")
                os.kill(os.getpid(), signal.SIGKILL)
    except RuntimeError:
        say("error")
        os._exit(3)
    del ballast


if sys.argv[1] == "init":
    init()
else:
    lose_a_rank(float(sys.argv[2]))
