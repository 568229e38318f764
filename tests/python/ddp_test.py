#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same weights, data and order give the same losses, weights, gradients and buckets under
Lockstep and under PyTorch's DistributedDataParallel with Gloo. Lockstep runs with overlap and
without, on one host and across two. Every rank compares every scenario of ddp_scenarios.py.

ddp_test.py DDP_TRAIN --lockstep LOCKSTEP [--engine NAME]: NAME is between the hosts
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from ddp_models import MODELS
from ddp_rig import STEPS
from ddp_scenarios import SCENARIOS
from ddp_script import write_scripts
from plain_safetensors import read, write
from pytorch_side import run_again_if_it_fails
from torch_or_skip import torch

HERE = pathlib.Path(__file__).resolve().parent
RANKS = (1, 2, 3)
TOLERANCE = 1e-6
# PowerSGD's orthogonal columns amplify rounding errors, and PyTorch also feeds back the errors of
# gradients that it does not compress; their mean is zero.
ROUNDED = ("power_sgd", "power_sgd_of_rank_4", "power_sgd_from_cold", "power_sgd_in_buckets")
# Sums of three have 11 or 8 bits; across hosts they are rounded on each host and between hosts.
TOLERANCES = {"fp16_hook": 1e-3, "bf16_hook": 2e-2, **dict.fromkeys(ROUNDED, 5e-6)}
TOLERANCES_ACROSS = {"fp16_hook": 1e-2, "bf16_hook": 8e-2}


# All ranks but the last count as one host, the last one as another.
ACROSS = ["sh", "-c", "LOCKSTEP_HOST_ID=$(((RANK + 1) / WORLD_SIZE)) exec \"$@\"", "-"]


def run(*command, **variables):
    subprocess.run([str(word) for word in command], check=True,
                   env=os.environ | {"OMP_NUM_THREADS": "1"} | variables, stdin=subprocess.DEVNULL)


def write_inputs(folder):
    # With 11, a unit is so close to the corner of its ReLU that rounding decides its gradient.
    torch.manual_seed(12)
    for name, model in MODELS.items():
        write(folder / name, model().state_dict(), {})
    write_scripts(folder)
    images = 241  # Not a multiple of any number of ranks, so that the sampler must pad.
    write(folder / "inputs", {"x": torch.randn(STEPS, max(RANKS), 6, 12),
                              "y": torch.randint(4, (STEPS, max(RANKS), 6)),
                              "images": torch.randn(images, 1, 8, 8),
                              "targets": torch.randint(10, (images,))}, {})


def results_of(folder, name, *command, **variables):
    """Runs the command, which gets a folder of that name for its results."""
    results = folder / name
    results.mkdir()
    run(*command, results, **variables)
    return results


def results_of_pytorch(folder, ranks, inputs):
    results = folder / "pytorch"
    results.mkdir()
    run_again_if_it_fails(lambda _: run(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks,
        HERE / "ddp_pytorch.py", inputs, results))
    return results


def difference_of(ours, theirs):
    """Returns the largest difference of two files, relative to values above one, and its tensor's
    name."""
    assert ours.keys() == theirs.keys(), f"not in both: {sorted(ours.keys() ^ theirs.keys())}"
    if "losses" in theirs:
        assert theirs["losses"][0] != theirs["losses"][-1], "nothing was trained"
    largest, where = 0.0, "all"
    for name, expected in theirs.items():
        assert ours[name].dtype == expected.dtype and ours[name].shape == expected.shape, name
        expected = expected.double()
        differences = (ours[name].double() - expected).abs() / expected.abs().clamp(min=1)
        difference = differences.max().item()
        assert difference == difference, f"{name} has a NaN"
        if difference > largest:
            largest, where = difference, name
    return largest, where


def compare(ours, theirs, scenario, ranks, tolerance):
    differences = []
    for rank in range(ranks):
        file = f"{scenario}.{rank}"
        try:
            differences.append(difference_of(read(ours / file, {}), read(theirs / file, {})))
        except AssertionError as failure:
            return f"{file}: {failure}"
    largest, where = max(differences)
    print(f"{ranks} rank(s), {scenario}, {ours.name} and {theirs.name}: "
          f"largest difference {largest:.3g} ({where})")
    return None if largest <= tolerance else f"{scenario} differs by {largest:.3g} in {where}"


def equal_bits_expected(ours, theirs, ranks):
    """Whether both sides have the same kernels and at most two ranks: sums of two have only one
    order."""
    return ranks <= 2 and (ours / "config.0").read_text() == (theirs / "config.0").read_text()


def names_in(results):
    return sorted(file.name for file in results.iterdir())


def check(program, lockstep, engine, inputs, folder, ranks):
    """Returns descriptions of the differences."""
    ours, overlapped = (
        results_of(folder, name, lockstep, "run", "-n", ranks, program, overlap, inputs)
        for name, overlap in (("lockstep", 0), ("overlap", 1)))
    theirs = results_of_pytorch(folder, ranks, inputs)
    assert names_in(ours) == names_in(overlapped) == names_in(theirs)
    across = None
    if engine and ranks > 1:
        across = results_of(folder, f"across-hosts-by-{engine}", lockstep, "run", "-n", ranks,
                            *ACROSS, program, 0, inputs, LOCKSTEP_BACKEND=f"shm+{engine}")
    equal_bits = equal_bits_expected(ours, theirs, ranks)
    print(f"{ranks} rank(s): PyTorch's bits are {'' if equal_bits else 'not '}expected")
    for scenario in (function.__name__ for function in SCENARIOS):
        exact = equal_bits and scenario not in ROUNDED
        tolerance = 0 if exact else TOLERANCES.get(scenario, TOLERANCE)
        yield compare(ours, theirs, scenario, ranks, tolerance)
        yield compare(overlapped, ours, scenario, ranks, 0)
        if across:
            yield compare(across, theirs, scenario, ranks,
                          tolerance and TOLERANCES_ACROSS.get(scenario, tolerance))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--engine", help="skipped without")
    options = parser.parse_args()
    failures = []
    with tempfile.TemporaryDirectory() as name:
        inputs = pathlib.Path(name)
        write_inputs(inputs)
        for ranks in RANKS:
            folder = inputs / str(ranks)
            folder.mkdir()
            found = check(options.program, options.lockstep, options.engine, inputs, folder, ranks)
            failures += [f"{ranks} rank(s): {failure}" for failure in found if failure]
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
