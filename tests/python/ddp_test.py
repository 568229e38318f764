#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same weights, data and order give the same losses and weights under Lockstep and under
PyTorch's DistributedDataParallel with Gloo, on one and on two ranks.

ddp_test.py DDP_TRAIN --lockstep LOCKSTEP
"""

import os
import pathlib
import subprocess
import sys
import tempfile

from plain_safetensors import read, write
from torch_or_skip import torch

HERE = pathlib.Path(__file__).resolve().parent
STEPS, BATCH = 5, 6
TOLERANCE = 1e-6


def run(*command):
    subprocess.run([str(word) for word in command], check=True,
                   env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL)


def write_inputs(weights, data):
    torch.manual_seed(11)
    shapes = {"conv1": (32, 1, 3, 3), "conv2": (64, 32, 3, 3), "linear1": (512, 256),
              "linear2": (10, 512)}
    start = {}
    for name, shape in shapes.items():
        start[f"{name}.weight"] = torch.randn(shape) * 0.05
        start[f"{name}.bias"] = torch.randn(shape[0]) * 0.05
    write(weights, start, {})
    samples = 2 * STEPS * BATCH + 1  # Odd, so that the sampler has to pad.
    write(data, {"images": torch.randn(samples, 1, 8, 8),
                 "targets": torch.randint(10, (samples,))}, {})


def compare(ours, theirs, ranks):
    assert ours.keys() == theirs.keys(), f"{list(ours)} are not {list(theirs)}"
    assert ours["losses"].shape == (STEPS, ranks)
    for name, expected in theirs.items():
        difference = (ours[name] - expected).abs().max().item()
        print(f"{ranks} rank(s), {name}: largest difference {difference:.3g}")
        assert difference <= TOLERANCE, f"{name} differs"
    first, last = theirs["losses"][0].mean(), theirs["losses"][-1].mean()
    assert last != first, "nothing was trained"


def main():
    program, lockstep = sys.argv[1], sys.argv[3]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        weights, data = folder / "weights", folder / "data"
        write_inputs(weights, data)
        for ranks in (1, 2):
            ours, theirs = folder / f"ours{ranks}", folder / f"theirs{ranks}"
            run(lockstep, "run", "-n", ranks, program, weights, data, STEPS, BATCH, ours)
            run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                ranks, HERE / "ddp_pytorch.py", weights, data, STEPS, BATCH, theirs)
            compare(read(ours, {}), read(theirs, {}), ranks)


if __name__ == "__main__":
    main()
