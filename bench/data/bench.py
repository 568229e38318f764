#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what reading samples costs, by Lockstep's DataLoader and by its peers. Every side has
one intra-op thread, on this host. Prints the median and range of the rounds' ratios; above 1, ours
is cheaper.
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402, from the folder above this
from cases import CASES  # noqa: E402

EXAMPLES = """examples:
  ./dev bench data
  ./dev bench data --cases in-memory --rounds 9
"""


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE",
                        help="all of " + " ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("rounds must be positive")
    measure.require_built(parser, options, "bench_data")
    if why := measure.why_no_torch(options.python):
        parser.error(why)
    return options


def sides_here(case, options):
    """Returns the sides that can run on this host, and prints why others cannot."""
    here = {}
    for label, side in case.sides.items():
        if why := side.why_not(options.python):
            print(f"without {label}: {why}", file=sys.stderr)
        else:
            here[label] = side
    return here


def cost_in(output):
    """Returns the figure of the first line with one: all ranks print the same."""
    line = next(line for line in output.splitlines() if "{" in line)
    return json.loads(line[line.index("{"):])["cost"]


def measured(name, options, started):
    case = CASES[name]
    sides, rounds = sides_here(case, options), []
    with tempfile.TemporaryDirectory() as folder:
        data = case.data(pathlib.Path(folder), options.python) if case.data else None
        if case.data and not data:
            print(f"without {name}: {options.python} has no PIL to write images", file=sys.stderr)
            return None
        for number in range(options.rounds):
            rounds.append({})
            for label in measure.in_turn(number, sides):
                measure.progress(started, f"{name}, round {number + 1}: {label}")
                command = sides[label].command(options.build, options.python, data)
                rounds[-1][label] = cost_in(measure.run(command))
    measure.progress(started, "")
    ours = next(iter(sides))
    return {"case": name, "unit": case.unit, "rounds": rounds,
            "sides": {label: {"cost": statistics.median(one[label] for one in rounds),
                              **measure.spread([one[label] / one[ours] for one in rounds])}
                      for label in sides}}


def rows(result):
    targets = CASES[result["case"]].targets
    lines = [f"{result['case']}: {result['unit']}"]
    for label, side in result["sides"].items():
        line = f"  {label:<20}{measure.short(side['cost']):>9}"
        if label != next(iter(result["sides"])):
            line += (f"{side['ratio']:>9.2f} ({side['ratio_low']:.2f} - {side['ratio_high']:.2f})"
                     f"{'':<3}")
        if label in targets:
            line += f"of at least {targets[label]}" + ("" if side["ratio"] >= targets[label] else
                                                       ": MISSED")
        lines.append(line.rstrip())
    return "\n".join(lines)


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    print(f"cost, and the peer's over ours: medians of {options.rounds} rounds", flush=True)
    for name in options.cases:
        result = measured(name, options, started)
        if not result:
            continue
        results.append(result)
        print(rows(result), flush=True)
        measure.save(options, results)


if __name__ == "__main__":
    main()
