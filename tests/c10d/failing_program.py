# SPDX-License-Identifier: Apache-2.0
"""A program whose last rank fails by an exception: in its first attempt, or with --always in each;
with --busy, while a call waits for the others. It writes into FOLDER what each rank has seen."""

import os
import pathlib
import sys
import time

import lockstep
import torch
import torch.distributed as dist

FOLDER = pathlib.Path(os.environ["FOLDER"])


def main():
    dist.init_process_group("lockstep")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = torch.ones(1) + rank
    dist.all_reduce(total)
    first = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) == 0
    if rank == ranks - 1 and (first or "--always" in sys.argv):
        if "--busy" in sys.argv:
            dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda _: None)
            time.sleep(0.5)
        raise ValueError("the loss is nan")
    if "--busy" in sys.argv:
        time.sleep(3600)
    try:
        dist.all_reduce(torch.ones(1))
    except lockstep.Error as error:
        (FOLDER / f"error.{rank}").write_text(str(error))
        raise
    (FOLDER / f"done.{rank}").write_text(str(total.item()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
