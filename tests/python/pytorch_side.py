# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of a comparison: ranks without Lockstep, whose own failures are not Lockstep's."""

import os
import subprocess
import sys

from torch_or_skip import torch

import torch.distributed as dist  # noqa: E402
from torch.multiprocessing.spawn import ProcessException, start_processes  # noqa: E402

ATTEMPTS = 3


def run_again_if_it_fails(run):
    """Calls run(attempt) at most three times, until it succeeds."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return run(attempt)
        except (subprocess.CalledProcessError, ProcessException) as failure:
            if attempt == ATTEMPTS:
                raise
            print(f"PyTorch's own run failed, attempt {attempt} of {ATTEMPTS}: {failure}",
                  file=sys.stderr, flush=True)


def end_rank():
    """Ends a rank after all ranks have come here. PyTorch's threads abort some runs in
    `destroy_process_group()` and at the interpreter's end, when all results have been written."""
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_ranks(ranks, folder, function, *arguments):
    """Calls function(rank, folder, *arguments) in forked processes that are a Gloo group."""
    def run(attempt):
        context = start_processes(_rank, (ranks, folder, attempt, function, arguments),
                                  nprocs=ranks, join=False, start_method="fork")
        while not context.join():
            pass

    run_again_if_it_fails(run)


def _rank(rank, ranks, folder, attempt, function, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{attempt}", rank=rank,
                            world_size=ranks)
    function(rank, folder, *arguments)
    end_rank()
