#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the training step of a CNN (8.7 MB of gradients) under Lockstep and under PyTorch's
DistributedDataParallel with Gloo and torchrun: one thread a rank, Adam fused, on this host.

Both run in turn, several rounds; what counts is the ratio of the two in one round, of which the
median and the range are printed.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
STEPS = {4: (40, 200), 32: (10, 60), 128: (4, 20)}  # Of each batch size: to warm up, to time.


# What `lockstep run` sets: memory that a step frees stays with the process for the next one.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def samples_per_second(command, **variables):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run(command, env=environment, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    found = re.search(r"samples_per_second ([\d.e+]+)", done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}exit code {done.returncode}")
    return float(found[1])


def compare(options, batch):
    warmup, steps = STEPS.get(batch, (10, 50))
    work = ["--batch", str(batch), "--warmup", str(warmup), "--steps", str(steps)]
    ranks = str(options.ranks)
    programs = pathlib.Path(options.build) / "bin"
    ours = [str(programs / "lockstep"), "run", "-n", ranks, str(programs / "bench_ddp"), *work]
    peer = [options.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            ranks, str(HERE / "train_pytorch.py"), *work]
    rounds = []
    for number in range(options.rounds):
        order = [("ours", ours), ("peer", peer)]
        malloc = MALLOC if options.same_malloc else {}
        rounds.append({name: samples_per_second(command, **malloc)
                       for name, command in (order if number % 2 == 0 else reversed(order))})
    ratios = sorted(entry["ours"] / entry["peer"] for entry in rounds)
    return {"batch": batch, "ranks": options.ranks, "rounds": rounds,
            "ours": statistics.median(entry["ours"] for entry in rounds),
            "peer": statistics.median(entry["peer"] for entry in rounds),
            "ratio": statistics.median(ratios), "ratio_low": ratios[0], "ratio_high": ratios[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="build folder")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--same-malloc", action="store_true",
                        help="give PyTorch's ranks the settings of malloc that lockstep run gives ours")
    parser.add_argument("--json", type=pathlib.Path, help="also write every figure there")
    options = parser.parse_args()

    print(f"samples/s of {options.ranks} ranks, medians of {options.rounds} rounds")
    print(f"{'batch a rank':>12} {'Lockstep':>10} {'PyTorch':>10} {'ratio':>7}  lowest - highest",
          flush=True)
    results = []
    for batch in options.batches:
        result = compare(options, batch)
        results.append(result)
        print(f"{batch:>12} {result['ours']:>10.0f} {result['peer']:>10.0f} "
              f"{result['ratio']:>7.2f}  {result['ratio_low']:.2f} - {result['ratio_high']:.2f}",
              flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
