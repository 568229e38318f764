# SPDX-License-Identifier: Apache-2.0
"""One rank of bench.py. It times calls of torch.distributed on a group of Lockstep and on one of
another backend, in alternating blocks. It prints the microseconds of both as JSON.

A call's time is that of the slowest rank. Data are zeros, so that sums stay finite.
"""

import argparse
import importlib
import json
import time

import lockstep
import torch
import torch.distributed as dist


def all_reduce(group, whole, part):
    dist.all_reduce(whole, group=group)


def asynchronous(group, whole, part):
    dist.all_reduce(whole, group=group, async_op=True).wait()


def all_gather(group, whole, part):
    dist.all_gather_single(whole, part, group=group)


def reduce_scatter(group, whole, part):
    dist.reduce_scatter_single(part, whole, group=group)


def send_recv(group, whole, part):
    """A message to the other rank, and its answer."""
    peer, rank = 1 - dist.get_rank(), dist.get_rank()
    for sender in (0, 1):
        if rank == sender:
            dist.send(whole, peer, group=group)
        else:
            dist.recv(whole, peer, group=group)


def all_gather_object(group, whole, part):
    dist.all_gather_object([None] * dist.get_world_size(), whole, group=group)


def gather_object(group, whole, part):
    result = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(whole, result, group=group)


def broadcast_object(group, whole, part):
    dist.broadcast_object_list([whole if dist.get_rank() == 0 else None], group=group)


def scatter_object(group, whole, part):
    objects = [whole] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.scatter_object_list([None], objects, group=group)


def send_object(group, whole, part):
    if dist.get_rank() == 0:
        dist.send_object_list([whole], 1, group=group)
    else:
        dist.recv_object_list([None], 0, group=group)


OPERATIONS = {function.__name__: function for function in
              (all_reduce, asynchronous, all_gather, reduce_scatter, send_recv, all_gather_object,
               gather_object, broadcast_object, scatter_object, send_object)}


def memory(size, kind):
    if kind == "object":
        return bytes(size)
    return lockstep.empty(size // 4).zero_() if kind == "registered" else torch.zeros(size // 4)


def block(act, group, buffers, calls):
    """Returns the seconds of one call."""
    for _ in range(1 + calls // 10):
        act(group, *buffers)
    begun = time.perf_counter()
    for _ in range(calls):
        act(group, *buffers)
    return (time.perf_counter() - begun) / calls


def calls_in(act, group, buffers, seconds):
    """Returns how many calls take about this long, the same number on all ranks."""
    calls = torch.tensor([seconds / max(block(act, group, buffers, 5), 1e-7)])
    dist.all_reduce(calls, dist.ReduceOp.MIN)
    return max(2, int(calls.item()))


def compare(case, groups, options):
    """Returns the microseconds of a call in each block, by backend."""
    operation, size, kind = case.split(":")
    act = OPERATIONS[operation]
    buffers = memory(int(size), kind), memory(int(size) // dist.get_world_size(), kind)
    calls = {name: calls_in(act, group, buffers, options.seconds)
             for name, group in groups.items()}
    times = {name: [] for name in groups}
    for number in range(options.blocks):
        for name in groups if number % 2 == 0 else reversed(groups):
            dist.barrier()
            times[name].append(1e6 * block(act, groups[name], buffers, calls[name]))
    slowest = torch.tensor(list(times.values()), dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return dict(zip(times, slowest.tolist()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="OPERATION:BYTES:MEMORY")
    parser.add_argument("--peer", default="gloo")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a block")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("lockstep")
    if options.peer == "fake":
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # Registers it.
    groups = {"lockstep": dist.group.WORLD, options.peer: dist.new_group(backend=options.peer)}
    for case in options.cases:
        times = compare(case, groups, options)
        if dist.get_rank() == 0:
            print(json.dumps({"case": case, **times}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
