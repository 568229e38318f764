#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares training steps of a compiled model (docs/guide/compiled.md) under Lockstep with eager
ones under Lockstep, and with PyTorch's DistributedDataParallel over Gloo, eager and with
torch.compile. The model is the CNN of bench/ddp, with its fused Adam; every side has one thread per
rank, on this host. The packages are exported first, for one batch size each, or with
--dynamic-batch for all.

Prints the median and range of the rounds' ratios; above 1, compiled Lockstep is faster.
"""

import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ddp"))
import sides  # noqa: E402, from a folder beside this one
from sides import Case, measure  # noqa: E402

EXAMPLES = """examples:
  ./dev bench compiled
  ./dev bench compiled --batches 32 --rounds 9
  ./dev bench compiled --model resnet18 --batches 8
  ./dev bench compiled --amp bf16
"""

PEERS = {None: ("Lockstep", "PyTorch", "PyTorch compile"),
         "bf16": ("Lockstep amp", "PyTorch amp", "PyTorch amp compile")}
# By batch size: warm-up steps, timed steps.
STEPS = {32: (10, 60), 128: (4, 20)}


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--model", choices=("cnn", "resnet18", "gpt"), default="cnn", help="cnn")
    parser.add_argument("--batches", type=int, nargs="+", default=list(STEPS),
                        help="samples a rank and step: 32 128")
    parser.add_argument("--ranks", type=int, default=2, help="2")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    parser.add_argument("--dynamic-batch", action="store_true",
                        help="export once, for any batch size")
    parser.add_argument("--amp", choices=("bf16",), help="mixed precision on all sides")
    options = parser.parse_args()
    if min(options.ranks, options.rounds, *options.batches) < 1:
        parser.error("all numbers are positive")
    options.same_malloc = False
    measure.require_built(parser, options, "bench_compiled")
    measure.require_built(parser, options, "bench_ddp")
    if why := measure.why_no_torch(options.python):
        parser.error(why)
    return options


def export(folder, batch, options, started):
    """Returns the package for a batch size, and its weights."""
    package = folder / f"{options.model}{'' if options.dynamic_batch else batch}.pt2"
    if not package.exists():
        measure.progress(started, f"exporting for a batch of {batch}")
        paths = [str(HERE.parents[1] / "python"), str(HERE)]
        measure.run([options.python, "-m", "lockstep_export", f"model:{options.model}",
                     "--batch", batch, "--out", package,
                     *["--dynamic-batch"] * options.dynamic_batch, *["--bf16"] * bool(options.amp)],
                    PYTHONPATH=os.pathsep.join(paths))
    return package, package.with_suffix(".safetensors")


def measured(case, files, options, started):
    """Returns the samples/s of all sides in all rounds, and the ratios."""
    peers, rounds = PEERS[options.amp], []
    for number in range(options.rounds):
        rounds.append({})
        for side in measure.in_turn(number, ("compiled", *peers)):
            measure.progress(started, f"batch {case.batch}, round {number + 1} of "
                                      f"{options.rounds}: {side}")
            if side == "compiled":
                output = measure.run(measure.lockstep_run(
                    options.build, case.ranks, "bench_compiled", *files, *sides.work_of(case)))
                rounds[-1][side] = sides.figures_of(output)
            else:
                rounds[-1][side] = sides.run(side, case, options)
    measure.progress(started, "")
    speeds = {side: [one[side]["samples_per_second"] for one in rounds] for side in rounds[0]}
    return {"batch": case.batch, "rounds": rounds,
            "medians": {side: statistics.median(values) for side, values in speeds.items()},
            "ratios": {peer: measure.spread([ours / theirs for ours, theirs in
                                             zip(speeds["compiled"], speeds[peer])])
                       for peer in peers}}


def row(result):
    peers = "".join(
        f"{result['medians'][peer]:>21.0f}{ratio['ratio']:>7.2f} "
        f"({ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f})"
        for peer, ratio in result["ratios"].items())
    return f"{result['batch']:>12}{result['medians']['compiled']:>10.0f}{peers}"


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    print(f"samples/s of {options.ranks} ranks with the {options.model}: medians of "
          f"{options.rounds} rounds; ratios of compiled Lockstep to each\n"
          f"{'batch a rank':>12}{'compiled':>10}"
          + "".join(f"{peer:>21}{'ratio':>7} {'(low - high)':<13}" for peer in PEERS[options.amp]),
          flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for batch in options.batches:
            files = export(pathlib.Path(folder), batch, options, started)
            case = Case(options.model, batch, options.ranks, False, *STEPS.get(batch, (5, 30)))
            results.append(measured(case, files, options, started))
            print(row(results[-1]), flush=True)
            measure.save(options, results)


if __name__ == "__main__":
    main()
