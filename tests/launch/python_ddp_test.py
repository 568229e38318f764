#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own DistributedDataParallel under `lockstep run`, of one host and of two.

Rank 0 of a Python program listens on MASTER_PORT, the port that the launcher keeps free for it.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from ports import free_port  # noqa: E402

SKIPPED = 77

# PyTorch's threads abort some runs at the interpreter's end.
PROGRAM = """
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
model(torch.full((2, 3), float(rank))).sum().backward()
# Mean over ranks of the sum of two rows that hold the rank.
expected = sum(2.0 * r for r in range(size)) / size
assert torch.allclose(model.module.weight.grad, torch.full((1, 3), expected))
dist.barrier()  # A rank that ends breaks the connections of slower ones.
dist.destroy_process_group()
print("good", rank, "of", size, flush=True)
os._exit(0)
"""

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--lockstep", required=True)
parser.add_argument("--python", required=True, help="a Python that has torch, or nothing")
options = parser.parse_args()

if not options.python:
    print("skipped: LOCKSTEP_PYTHON names no Python that has torch")
    sys.exit(SKIPPED)

def started(program, ranks, *hosts):
    return subprocess.Popen(
        [options.lockstep, "run", "-n",
         str(ranks), *hosts, options.python, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True)


def lines_of(*launchers):
    lines = []
    for launcher in launchers:
        out, err = launcher.communicate(timeout=100)
        print(out, err, sep="")
        assert launcher.returncode == 0, launcher.returncode
        lines += out.splitlines()
    return sorted(lines)


with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
    program.write(PROGRAM)
    program.flush()
    one_host = lines_of(started(program.name, 2))
    hosts = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "python")
    two_hosts = lines_of(started(program.name, 1, *hosts), started(program.name, 2, *hosts))
assert one_host == ["[0] good 0 of 2", "[1] good 1 of 2"]
assert [line[4:] for line in two_hosts] == [f"good {rank} of 3" for rank in range(3)]
