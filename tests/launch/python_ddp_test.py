#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own DistributedDataParallel under `lockstep run`.

Rank 0 of a Python program listens on MASTER_PORT, the port that the launcher keeps free for it.
"""

import argparse
import subprocess
import sys
import tempfile

SKIPPED = 77

PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
model(torch.full((2, 3), float(rank))).sum().backward()
# Mean over ranks of the sum of two rows that hold the rank.
expected = sum(2.0 * r for r in range(size)) / size
assert torch.allclose(model.module.weight.grad, torch.full((1, 3), expected))
dist.destroy_process_group()
print("good", rank, "of", size, flush=True)
"""

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--python", required=True, help="a Python that has torch, or nothing")
options = parser.parse_args()

if not options.python:
    print("skipped: LOCKSTEP_PYTHON names no Python that has torch")
    sys.exit(SKIPPED)

with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
    program.write(PROGRAM)
    program.flush()
    run = subprocess.run(
        [options.lockstep, "run", "-n", "2", options.python, program.name],
        capture_output=True,
        text=True,
        timeout=100,
    )
print(run.stdout, run.stderr, sep="")
assert run.returncode == 0, run.returncode
assert sorted(run.stdout.splitlines()) == ["[0] good 0 of 2", "[1] good 1 of 2"]
