# SPDX-License-Identifier: Apache-2.0
"""Creates the group of the job several times in one process. The other ranks start the next
group while rank 0 is still in the last one, whose store it serves.

repeated_program.py [BACKEND...]    a group of each; "held": one of Lockstep whose store the
program
                                    keeps
"""

import os
import sys
import time

import torch
import torch.distributed as dist

held = []


def make_group(how, rank):
    dist.init_process_group("lockstep" if how == "held" else how)
    if how == "held":
        held.append(dist.distributed_c10d._get_default_store())
    total = torch.full((3,), rank + 1.)
    dist.all_reduce(total)
    assert total[2] == 3, total
    part = dist.new_group([0, 1])
    dist.barrier(part)
    if rank == 0:
        time.sleep(0.05)
    dist.destroy_process_group()


def main():
    for how in sys.argv[1:]:
        make_group(how, int(os.environ["RANK"]))
        print(f"made {how}", flush=True)


main()
