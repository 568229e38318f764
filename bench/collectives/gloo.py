# SPDX-License-Identifier: Apache-2.0
"""Gloo's side of bench.py: does the same as ours.cpp and case.cpp, through torch.distributed."""

import collections
import statistics
import sys
import time

import torch
import torch.distributed as dist

Case = collections.namedtuple("Case", "operation memory bytes warmup batches batch")


def parse(text):
    operation, memory, *numbers = text.split(":")
    return Case(operation, memory, *map(int, numbers))


def call_of(case, data, output):
    ranks = dist.get_world_size()
    part = data.numel() // ranks
    return {
        "barrier": lambda: dist.barrier(),
        "all_reduce": lambda: dist.all_reduce(data),
        "broadcast": lambda: dist.broadcast(data, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(output, data[:part]),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(output[:part], data),
        "all_to_all": lambda: dist.all_to_all_single(output, data),
    }[case.operation]


def check(case, data, output):
    if case.memory == "none":
        return
    ranks = dist.get_world_size()
    expected = ranks if case.operation in ("all_reduce", "reduce_scatter") else 1
    result = data if case.operation in ("all_reduce", "broadcast") else output
    if case.operation == "reduce_scatter":
        result = result[:result.numel() // ranks]
    if not bool((result == expected).all()):
        sys.exit(f"{case.operation} gave a wrong result")


def time_batches(case, data, output):
    call = call_of(case, data, output)
    doublings = max(1, (dist.get_world_size() - 1).bit_length())
    limit = 120 // doublings if case.operation == "all_reduce" else 1 << 30

    def begin():
        data.fill_(0 if case.operation == "broadcast" and dist.get_rank() else 1)
        output.zero_()
        call()
        return 1

    calls = begin()
    check(case, data, output)
    seconds = []
    for batch in range(case.warmup + case.batches):
        if calls + case.batch > limit:
            calls = begin()
        started = time.perf_counter()
        for _ in range(case.batch):
            call()
        took = time.perf_counter() - started
        calls += case.batch
        if batch >= case.warmup:
            seconds.append(took / case.batch)
    return seconds


def measure(case, buffers):
    count = case.bytes // 4
    dist.barrier()
    try:
        seconds = time_batches(case, *(buffer[:count] for buffer in buffers))
    except (RuntimeError, NotImplementedError) as error:
        if "support" not in str(error) and "implement" not in str(error):
            raise
        return  # On all ranks: Gloo has no such collective.
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        microseconds = statistics.median_high(slowest.tolist()) * 1e6
        print("figure", case.operation, case.memory, case.bytes, f"{microseconds:.5f}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = [parse(text) for text in sys.argv[1:]]
    largest = max(case.bytes for case in cases) // 4
    buffers = torch.ones(largest), torch.ones(largest)
    for case in cases:
        measure(case, buffers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
