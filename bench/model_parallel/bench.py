#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures tensor parallelism: steps of a GPT whose layers two ranks hold together, against
PyTorch's DTensor over Gloo under torchrun, and against one rank alone with the whole batch. Every
side has one thread per rank, on this host. All sides run in turn, several rounds. The results are
ratios of figures of one round, printed as median and range; above 1, ours is faster.
"""

import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench model-parallel
  ./dev bench model-parallel --widths 128 --rounds 9
"""

# By width: tokens of a sequence, steps.
SHAPES = {128: (64, 30), 256: (128, 12), 512: (128, 6)}
SIDES = ("Lockstep", "PyTorch", "one rank")


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--widths", type=int, nargs="+", choices=SHAPES, default=list(SHAPES),
                        metavar="N", help="of the model: all of 128 256 512")
    parser.add_argument("--vocabulary", type=int, default=8192, help="8192")
    parser.add_argument("--ranks", type=int, default=2, help="2")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    options = parser.parse_args()
    if min(options.ranks, options.rounds, options.vocabulary) < 1:
        parser.error("ranks, rounds and vocabulary must be positive")
    measure.require_built(parser, options, "bench_model_parallel")
    if why := measure.why_no_torch(options.python):
        parser.error(why)
    return options


def milliseconds(side, width, options):
    length, steps = SHAPES[width]
    shape = ["--width", width, "--layers", 4, "--heads", 8, "--vocabulary", options.vocabulary,
             "--length", length, "--batch", 4, "--steps", steps]
    ranks = 1 if side == "one rank" else options.ranks
    command = measure.lockstep_run(options.build, ranks, "bench_model_parallel", *shape)
    if side == "PyTorch":
        script = pathlib.Path(__file__).parent / "train_pytorch.py"
        command = measure.torchrun(options.python, ranks, script, *shape)
    output = measure.run(command)
    return json.loads(output[output.index("{"):output.index("}") + 1])["ms"]


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    print(f"ms a step of a GPT of 4 layers, {options.ranks} ranks: medians of {options.rounds} "
          f"rounds\n{'width':>6}" + "".join(f"{side:>10}" for side in SIDES)
          + f"{'to PyTorch':>24}{'to one rank':>24}", flush=True)
    for width in options.widths:
        rounds = []
        for number in range(options.rounds):
            rounds.append({})
            for side in measure.in_turn(number, SIDES):
                measure.progress(started, f"width {width}, round {number + 1}: {side}")
                rounds[-1][side] = milliseconds(side, width, options)
        measure.progress(started, "")
        result = {"width": width, "rounds": rounds}
        for peer in SIDES[1:]:
            result[peer] = measure.spread([one[peer] / one["Lockstep"] for one in rounds])
        results.append(result)
        print(row(result), flush=True)
        if options.json:
            measure.save(options.json, results)


def row(result):
    times = [statistics.median(one[side] for one in result["rounds"]) for side in SIDES]
    return f"{result['width']:>6}" + "".join(f"{ms:>10.1f}" for ms in times) + "".join(
        f"{ratio['ratio']:>8.2f} ({ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f})".rjust(24)
        for ratio in (result[peer] for peer in SIDES[1:]))


if __name__ == "__main__":
    main()
