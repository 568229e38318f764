#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lockstep.all_reduce_() gives the bits of torch.distributed.all_reduce(), in one order with all
other calls of a group, and names what it refuses. The program of docs/guide/inference.md runs."""

import os
import pathlib
import re
import time
from datetime import timedelta

import forked_ranks
from plugin_or_skip import lockstep, torch

import torch.distributed as dist  # noqa: E402
from torch.distributed.tensor import Replicate, distribute_tensor  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guide" / "inference.md"
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64,
         torch.uint16, torch.bool, torch.complex64]


def values(size, dtype):
    random = torch.Generator().manual_seed(dist.get_rank())
    return (torch.randn(size, generator=random, dtype=torch.float64) * 10).to(dtype)


def refused(fault, text, act, *arguments):
    try:
        act(*arguments)
    except lockstep.Error as error:
        assert error.fault == fault and text in str(error), error
    else:
        raise AssertionError(f"{arguments} were accepted")


def check_bits():
    for dtype in TYPES:
        for size in (0, 1, 1000, 300_001):
            ours, theirs = values(size, dtype), values(size, dtype)
            dist.all_reduce(theirs)
            assert lockstep.all_reduce_(ours) is ours
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8)), (dtype, size)


def check_groups():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alone = [dist.new_group([one]) for one in range(ranks)]
    tensor = torch.ones(3)
    assert lockstep.all_reduce_(tensor, alone[rank])[0] == 1
    assert lockstep.all_reduce_(tensor, group=dist.group.WORLD)[0] == ranks
    refused("misuse", "no group with this rank", lockstep.all_reduce_, tensor,
            alone[1 - rank])
    refused("misuse", "no group with this rank", lockstep.all_reduce_, tensor, "world")


def check_order():
    """It waits for operations that were started before it, and later ones wait for it."""
    for size in (3, 50_000):
        tensor, ranks = torch.ones(size), dist.get_world_size()
        works = [dist.all_reduce(tensor, async_op=True)]
        lockstep.all_reduce_(tensor)
        works.append(dist.all_reduce(tensor, async_op=True))
        lockstep.all_reduce_(tensor)
        assert all(work.is_completed() for work in works)
        assert tensor[-1] == ranks ** 4
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(tensor)
        lockstep.all_reduce_(tensor)
    manager.wait()
    assert tensor[-1] == ranks ** 6
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    lockstep.all_reduce_(tensor)
    assert backend._get_sequence_number_for_group() == before + 1


def check_callbacks_run_meanwhile():
    """A callback needs the GIL, and the next call waits for the callback's collective."""
    done = []
    work = dist.all_reduce(torch.ones(5), async_op=True)
    work.get_future().then(lambda future: done.append(future.value()[0][0].item()))
    lockstep.all_reduce_(torch.ones(5))
    while not done:
        time.sleep(0.001)
    assert done == [dist.get_world_size()]


def check_mixture_with_all_reduce():
    """One rank may call either function, as they are one operation."""
    tensor = torch.ones(7)
    if dist.get_rank() == 0:
        dist.all_reduce(tensor)
    else:
        lockstep.all_reduce_(tensor)
    assert tensor[0] == dist.get_world_size()


def check_refusals():
    call, wide = lockstep.all_reduce_, torch.ones(4, 4)
    refused("misuse", "contiguous", call, wide.t()[:2])
    refused("misuse", "contiguous", call, torch.ones(1).expand(4))
    refused("unsupported", "dense", call, wide.to_sparse())
    refused("unsupported", "CPU", call, wide.to("meta"))
    refused("unsupported", "Float8", call, wide.to(torch.float8_e4m3fn))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    refused("misuse", "to_local()", call, distribute_tensor(wide, mesh, [Replicate()]))
    gloo = dist.new_group(backend="gloo")
    refused("misuse", "is gloo, not lockstep", call, wide, gloo)
    for wrong in ((), ([1.0],), (wide, None, True)):
        try:
            call(*wrong)
            raise AssertionError(f"{wrong} was accepted")
        except TypeError:
            pass
    assert call(wide)[0, 0] == dist.get_world_size()  # No refusal has begun a call.


def check_mismatch():
    group = dist.new_group()
    refused("mismatch", "", lockstep.all_reduce_, torch.ones(5 + dist.get_rank()), group)


def check_timeout():
    group = dist.new_group(timeout=timedelta(milliseconds=300))
    if dist.get_rank() == 0:
        refused("timeout", "rank 1", lockstep.all_reduce_, torch.ones(5), group)
    dist.barrier()


def check_ended_group():
    group = dist.new_group()
    dist.barrier()
    group._get_backend(torch.device("cpu")).shutdown()
    faults = []
    for call in (lockstep.all_reduce_, dist.all_reduce):
        try:
            call(torch.ones(5), group=group)
        except lockstep.Error as error:
            faults.append((error.fault, str(error)))
    assert len(faults) == 2 and faults[0] == faults[1], faults


def check_guide():
    program = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.S)[1]
    program = "\n".join(line for line in program.splitlines()
                        if not re.match(r"dist\.(init|destroy)_process_group", line))
    exec(compile(program, GUIDE, "exec"), {"__name__": "guide"})


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]


def check_all():
    for check in CHECKS:
        try:
            check()
        except Exception as error:
            raise AssertionError(check.__name__) from error
        dist.barrier()
    return len(CHECKS)


def check_wrapped():
    """With DETAIL debugging, a class of PyTorch is between a group and its backend."""
    assert lockstep.all_reduce_(torch.ones(3))[0] == dist.get_world_size()
    return type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__


def main():
    refused("misuse", "init_process_group", lockstep.all_reduce_, torch.ones(1))
    print(forked_ranks.values(2, check_all)[0], "checks on two ranks", flush=True)
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    assert forked_ranks.values(2, check_wrapped) == ["_ProcessGroupWrapper"] * 2
    del os.environ["TORCH_DISTRIBUTED_DEBUG"]
    dist.set_debug_level_from_env()


if __name__ == "__main__":
    main()
