#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the training step of a CNN (8.7 MB of gradients) under Lockstep and under PyTorch's
DistributedDataParallel with Gloo and torchrun: one thread a rank, Adam fused, on this host.

Both run in turn, several rounds; what counts is the ratio of the two in one round, of which the
median and the range are printed.
"""

import json
import pathlib
import re
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above

STEPS = {4: (40, 200), 32: (10, 60), 128: (4, 20)}  # Of each batch size: to warm up, to time.


# What `lockstep run` sets: memory that a step frees stays with the process for the next one.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def samples_per_second(command, **variables):
    output = measure.run(command, **variables)
    found = re.search(r"samples_per_second ([\d.e+]+)", output)
    return float(found[1]) if found else sys.exit(f"no samples_per_second in: {output}")


def compare(options, batch):
    warmup, steps = STEPS.get(batch, (10, 50))
    work = ["--batch", str(batch), "--warmup", str(warmup), "--steps", str(steps)]
    ours = measure.lockstep_run(options.build, options.ranks, "bench_ddp", *work)
    peer = measure.torchrun(options.python, options.ranks, HERE / "train_pytorch.py", *work)
    malloc = MALLOC if options.same_malloc else {}
    rounds = [{name: samples_per_second(command, **malloc)
               for name, command in measure.in_turn(number, [("ours", ours), ("peer", peer)])}
              for number in range(options.rounds)]
    return {"batch": batch, "ranks": options.ranks, "rounds": rounds,
            "ours": statistics.median(entry["ours"] for entry in rounds),
            "peer": statistics.median(entry["peer"] for entry in rounds),
            **measure.spread([entry["ours"] / entry["peer"] for entry in rounds])}


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--same-malloc", action="store_true",
                        help="give PyTorch's ranks the settings of malloc that lockstep run gives ours")
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
