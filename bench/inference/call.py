# SPDX-License-Identifier: Apache-2.0
"""Prints the microseconds of a call in a group of one rank, which moves no data, as JSON: the cost
of Python, with lockstep.all_reduce_() and with torch.distributed.all_reduce()."""

import json
import time

import lockstep
import torch
import torch.distributed as dist

CALLS, BLOCKS = 5000, 9


def microseconds(act, tensor):
    """Returns the fastest block's time of a call."""
    times = []
    for _ in range(BLOCKS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            act(tensor)
        times.append((time.perf_counter() - begin) / CALLS)
    return 1e6 * min(times)


def main():
    dist.init_process_group("lockstep")
    tensor = torch.zeros(256)
    print(json.dumps({"all_reduce_": microseconds(lockstep.all_reduce_, tensor),
                      "dist.all_reduce": microseconds(dist.all_reduce, tensor)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
