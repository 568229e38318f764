#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the choices of `lockstep tune`: it tunes several models again and again, and compares each
choice with the fastest division. A division's true speed is taken to be the median over all
repetitions. The result is the speed of the choice relative to the fastest division: 1 if the choice
is the best, and how many choices are within 3 % of it.
"""

import collections
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench tune
  ./dev bench tune --models cnn --repetitions 3
"""

# Global batch by model.
MODELS = {"cnn": 256, "resnet18": 32, "efficientnet_b0": 16, "gpt": 4, "cnn, 8": 8}
CLOSE = 0.97
STEPS = 10**6  # More than any run takes.


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS),
                        metavar="MODEL", help=f"these alone, of: {'; '.join(MODELS)}")
    parser.add_argument("--repetitions", type=int, default=10, help="how often each is tuned: 10")
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error("repetitions must be positive")
    measure.require_built(parser, options, "bench_ddp")
    return options


def tuned(model, options):
    """Returns what `lockstep tune --json` writes, and the seconds that it took."""
    programs = options.build / "bin"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "tune.json"
        begin = time.monotonic()
        measure.run([programs / "lockstep", "tune", "--global-batch", MODELS[model], "--json", file,
                     programs / "bench_ddp", "--model", model.split(",")[0], "--batch", "{batch}",
                     "--threads", "{threads}", "--steps", STEPS])
        return json.loads(file.read_text()), time.monotonic() - begin


def name_of(division):
    return f"{division['ranks']} x {division['threads']}"


def measured(model, options, started):
    speeds, choices, seconds = collections.defaultdict(list), [], []
    for number in range(options.repetitions):
        measure.progress(started, f"{model}, {number + 1} of {options.repetitions}")
        found, took = tuned(model, options)
        seconds.append(took)
        choices.append(name_of(found["divisions"][found["best"]]))
        for division in found["divisions"]:
            if "samples_per_second" in division:
                speeds[name_of(division)].append(division["samples_per_second"])
    measure.progress(started, "")
    true = {name: statistics.median(found) for name, found in speeds.items()}
    shares = [true[choice] / max(true.values()) for choice in choices]
    return {"model": model, "global batch": MODELS[model], "speeds": speeds, "choices": choices,
            "close": sum(share >= CLOSE for share in shares), "seconds": seconds,
            "choice to the fastest": measure.spread(shares)}


def row(result):
    ratio = result["choice to the fastest"]
    speeds = ", ".join(f"{name}: {statistics.median(found):.1f}"
                       for name, found in result["speeds"].items())
    return (f"{result['model']:<18}{result['global batch']:>6}{result['close']:>6} of "
            f"{len(result['choices']):<4}{ratio['ratio']:>6.3f} ({ratio['ratio_low']:.3f} - "
            f"{ratio['ratio_high']:.3f}){max(result['seconds']):>8.0f} s  {speeds}")


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    print(f"{'model':<18}{'batch':>6}  within 3 %  choice / fastest{'longest':>14}  "
          "samples/s by ranks x threads", flush=True)
    for model in options.models:
        results.append(measured(model, options, started))
        print(row(results[-1]), flush=True)
        measure.save(options, results)


if __name__ == "__main__":
    main()
