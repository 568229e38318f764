#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of the same bits on any number of ranks. It compares training steps of a CNN
with 8.5 MB of gradients in microbatches of DeterministicDataParallel with those of plain
DistributedDataParallel. Every side has fused Adam and one thread per rank, on this host. Prints the
median and range of the rounds' ratios.
"""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp"))
import sides  # noqa: E402, from the folder beside this
import tables  # noqa: E402
from sides import Case, measure  # noqa: E402

EXAMPLES = """examples:
  ./dev bench deterministic
  ./dev bench deterministic --microbatches 4 --batches 32 --rounds 9
"""

# By samples per rank and step: warm-up steps, timed steps.
STEPS = {8: (20, 120), 32: (10, 60), 128: (4, 20)}


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument(
        "--microbatches",
        type=int,
        nargs="+",
        default=[2, 4, 8],
        help="numbers of microbatches, which ranks and the global batch divide into: 2 4 8")
    parser.add_argument("--batches", type=int, nargs="+", choices=STEPS, default=list(STEPS),
                        metavar="N", help="samples a rank and step: all of 8 32 128")
    parser.add_argument("--ranks", type=int, default=2, help="2")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    options = parser.parse_args()
    options.same_malloc = False
    if min(options.ranks, options.rounds, *options.microbatches) < 1:
        parser.error("microbatches, ranks and rounds must be positive")
    for microbatches in options.microbatches:
        if microbatches % options.ranks or min(options.batches) % (microbatches // options.ranks):
            parser.error(f"{microbatches} microbatches cannot be dealt out evenly")
    measure.require_built(parser, options, "bench_ddp")
    return options


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    for microbatches in options.microbatches:
        sides.OURS[f"{microbatches} microbatches"] = ["--deterministic", microbatches]
    in_microbatches = [f"{microbatches} microbatches" for microbatches in options.microbatches]
    print(
        f"samples/s, over those of plain DistributedDataParallel: medians of "
        f"{options.rounds} rounds\n"
        f"{'batch a rank':>12}{'plain':>9}" + "".join(f"{side:>26}" for side in in_microbatches),
        flush=True)
    for batch in options.batches:
        case = Case("cnn", batch, options.ranks, False, *STEPS[batch])
        rounds = sides.run_rounds(["Lockstep", *in_microbatches], case, options,
                                  lambda text, batch=batch:
                                  measure.progress(started, f"batch {batch}, {text}"))
        measure.progress(started, "")
        results.append({**case._asdict(), "rounds": rounds, **compared(rounds, in_microbatches)})
        print(row(results[-1], in_microbatches), flush=True)
        measure.save(options, results)


def compared(rounds, in_microbatches):
    return {side: measure.spread([entry[side]["samples_per_second"]
                                  / entry["Lockstep"]["samples_per_second"] for entry in rounds])
            for side in in_microbatches}


def row(result, in_microbatches):
    plain = tables.medians(result["rounds"], "Lockstep")["samples_per_second"]
    ratios = [result[side] for side in in_microbatches]
    return f"{result['batch']:>12}{plain:>9.0f}" + "".join(
        f"{ratio['ratio']:>10.2f} ({ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f})".rjust(26)
        for ratio in ratios)


if __name__ == "__main__":
    main()
