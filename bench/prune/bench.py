#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how much faster training steps are once half of a model's channels are removed. The
models are a CNN for images of 32 x 32 pixels and ResNet-18 for 64 x 64. They have fused Adam under
DistributedDataParallel, and one thread per rank. Steps with and without these channels alternate in
one process. Prints the median and range of the rounds' ratios.
"""

import json
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402, from the folder above this

EXAMPLES = """examples:
  ./dev bench prune
  ./dev bench prune --models resnet18 --rounds 9
"""

# Samples a rank, and timed steps of each side in a round.
SIZES = {"cnn": (64, 12), "resnet18": (16, 4)}


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES), help="both")
    parser.add_argument("--ranks", type=int, default=2, help="2")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    options = parser.parse_args()
    if min(options.ranks, options.rounds) < 1:
        parser.error("ranks and rounds must be positive")
    measure.require_built(parser, options, "bench_prune")
    return options


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    print(f"{'model':<10}{'parameters':>26}{'MACs':>32}{'ms a step':>18}{'times as fast':>22}",
          flush=True)
    for model in options.models:
        batch, steps = SIZES[model]
        measure.progress(started, model)
        text = measure.run(measure.lockstep_run(
            options.build, options.ranks, "bench_prune", "--model", model, "--batch", batch,
            "--steps", steps, "--rounds", options.rounds))
        measure.progress(started, "")
        sizes, *rounds = map(json.loads, re.findall(r"{.*}", text))
        ratio = measure.spread([each["dense"] / each["pruned"] for each in rounds])
        results.append({"model": model, "batch": batch, "ranks": options.ranks, **sizes, **ratio,
                        "rounds": rounds})
        print(row(results[-1]), flush=True)
        measure.save(options, results)


def row(result):
    best = {side: min(each[side] for each in result["rounds"]) for side in ("dense", "pruned")}
    ratio = f"{result['ratio']:.2f} ({result['ratio_low']:.2f} - {result['ratio_high']:.2f})"
    arrow = "{:,} -> {:,}".format
    return (f"{result['model']:<10}{arrow(*result['parameters']):>26}{arrow(*result['macs']):>32}"
            f"{best['dense']:>9.1f} ->{best['pruned']:>6.1f}{ratio:>22}")


if __name__ == "__main__":
    main()
