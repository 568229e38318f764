# SPDX-License-Identifier: Apache-2.0
"""A program whose last rank fails by an exception in its first attempt, with --always in each. With
--busy, a call waits for the others meanwhile. With --train, it trains until it is killed. It writes
to FOLDER what each rank has observed."""

import os
import pathlib
import signal
import sys
import time
from datetime import timedelta

import lockstep
import torch
import torch.distributed as dist

FOLDER = pathlib.Path(os.environ["FOLDER"])


def train():
    """Records the start in pid.RANK, and the failed rank and the time in error.RANK."""
    dist.init_process_group("lockstep")
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=10))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)), bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    try:
        while True:
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            (FOLDER / f"pid.{dist.get_rank()}").write_text(str(os.getpid()))
    except lockstep.Error as error:
        told = FOLDER / f"error.{dist.get_rank()}"
        told.write_text(f"{error.fault} {error.rank} {error.signal} {time.monotonic()}\n{error}")
        raise


def main():
    if "--train" in sys.argv:
        return train()
    if "--busy" not in sys.argv:  # As in ending_program.py.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
