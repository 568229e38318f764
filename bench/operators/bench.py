#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares training steps operator by operator. LibTorch's profiler, Kineto, records the operators
of Lockstep's ranks and of PyTorch's under DistributedDataParallel with Gloo. It also records those
of bare copies of the model in both languages, one for each rank. All have one thread, fused Adam,
and the settings of malloc that `lockstep run` makes.

The first table is of the same number of steps before the profiler begins. The second one is of the
operators that take most of a step: their calls, and their own time, without that of the operators
within. "Outside" is the rest of a recorded step: interpreter, autograd's engine, the profiler, and
Lockstep itself, which is no operator.

Times are medians over the rounds, of the mean of all ranks.
"""

import collections
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp"))
import sides  # noqa: E402, from the folder beside this
from sides import measure  # noqa: E402

EXAMPLES = """examples:
  ./dev bench operators
  ./dev bench operators --models cnn --batches 4 --ranks 2
  ./dev bench operators --rounds 7 --top 40 --json operators.json
"""

# By model: samples a rank and step, warm-up steps, recorded steps.
MODELS = {"gpt": (2, 4, 15), "cnn": (4, 40, 200)}

SIDES = ("Lockstep", "alone", "PyTorch", "PyTorch alone")
BASES = {"PyTorch": "Lockstep", "PyTorch alone": "alone"}  # Compared sides.

Own = collections.namedtuple("Own", "calls microseconds")  # A step's.


def run(side, case, options, folder):
    """Returns the figures of a run before recording; its records are in `folder`."""
    record = ["--operators", folder]
    if side == "alone":
        program = [options.build / "bin" / "bench_ddp", "--on-cue"]
    elif side == "PyTorch alone":
        program = [options.python, sides.HERE / "train_pytorch.py", "--on-cue"]
    else:
        command = sides.command_of(side, case, options) + record
        return sides.figures_of(measure.run(command, **sides.MALLOC))
    return sides.copies([*program, *sides.work_of(case), "--alone", *record], case.ranks,
                        sides.MALLOC)


def own_times(file, steps):
    """Returns the operators of a step by name, and the microseconds of a step outside them."""
    events = [event for event in json.loads(file.read_text())["traceEvents"]
              if event.get("cat") == "cpu_op"]
    calls, own = collections.Counter(), collections.Counter()
    around = collections.defaultdict(list)  # By thread: (end, name) of those that have not ended.
    outermost = 0.0
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        name, begin, duration = event["name"], event["ts"], event["dur"]
        stack = around[event["tid"]]
        while stack and stack[-1][0] <= begin:
            stack.pop()
        if stack:
            own[stack[-1][1]] -= duration
        else:
            outermost += duration
        stack.append((begin + duration, name))
        calls[name] += 1
        own[name] += duration
    whole = max(event["ts"] + event["dur"] for event in events) - min(e["ts"] for e in events)
    return ({name: Own(count / steps, own[name] / steps) for name, count in calls.items()},
            (whole - outermost) / steps)


def measured(side, case, options):
    """Returns the figures, operators and time outside them of one run: means of its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        figures = run(side, case, options, folder)
        ranks = [own_times(file, case.steps) for file in pathlib.Path(folder).iterdir()]
    if len(ranks) != case.ranks:
        sys.exit(f"{side}: {len(ranks)} records of {case.ranks} ranks")
    names = set().union(*(operators for operators, _ in ranks))
    none = Own(0, 0)
    operators = {name: Own(*(statistics.mean(values) for values in
                             zip(*(own.get(name, none) for own, _ in ranks))))
                 for name in names}
    return {"figures": figures, "operators": operators,
            "outside": statistics.mean(outside for _, outside in ranks)}


# --- Output -------------------------------------------------------------------------------------

def print_steps(rounds, ratios):
    print("A step before the profiler begins, ms. In brackets Lockstep's speed over PyTorch's, and"
          "\nthat of alone over that of PyTorch alone: median, lowest - highest.")
    print(f"{'':<14}" + "".join(f"{part:>11}" for part in ("forward", "backward", "optimizer")))
    for side in SIDES:
        parts = [statistics.median(entry[side]["figures"][part] for entry in rounds)
                 for part in ("forward", "backward", "optimizer")]
        print(f"{side:<14}" + "".join(f"{part:>11.3f}" for part in parts)
              + (in_brackets(ratios[side]) if side in ratios else ""))


def ratio(side, base, rounds):
    return measure.spread([entry[base]["figures"]["samples_per_second"]
                           / entry[side]["figures"]["samples_per_second"] for entry in rounds])


def in_brackets(ratio):
    return f"  [{ratio['ratio']:.2f}, {ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f}]"


def print_operators(rounds, top):
    print("\nOperators' own time in a step, us; in brackets their calls.")
    print(f"{'':<52}" + "".join(f"{side:>20}" for side in SIDES))
    names = sorted(set().union(*(entry[side]["operators"] for entry in rounds for side in SIDES)),
                   key=lambda name: -max(time_of(name, side, rounds) for side in SIDES))
    for name in names[:top]:
        print(f"{name:<52.52}" + "".join(cell(name, side, rounds) for side in SIDES))
    for label, value in (
            (f"the {max(0, len(names) - top)} others",
             lambda side: sum(time_of(name, side, rounds) for name in names[top:])),
            ("all", lambda side: sum(time_of(name, side, rounds) for name in names)),
            ("outside", lambda side: statistics.median(entry[side]["outside"]
                                                       for entry in rounds))):
        print(f"{label:<52}" + "".join(f"{value(side):>13.0f}{'':7}" for side in SIDES))


def own_of(name, side, entry):
    return entry[side]["operators"].get(name, Own(0, 0))


def time_of(name, side, rounds):
    return statistics.median(own_of(name, side, entry).microseconds for entry in rounds)


def cell(name, side, rounds):
    calls = own_of(name, side, rounds[0]).calls
    if not calls:
        return f"{'-':>13}{'':7}"
    return f"{time_of(name, side, rounds):>13.0f}{f'[{calls:.4g}]':>7}"


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS),
                        metavar="MODEL", help="of gpt and cnn: both")
    parser.add_argument("--batches", type=int, nargs="+", metavar="N",
                        help="samples a rank and step: 2 of the GPT, 4 of the CNN")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1], metavar="N", help="1")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    parser.add_argument("--top", type=int, default=25, metavar="N",
                        help="how many operators the table has: 25")
    options = parser.parse_args()
    if min(options.rounds, options.top, *options.ranks, *(options.batches or [])) < 1:
        parser.error("rounds, operators, ranks and batches must be positive")
    measure.require_built(parser, options, "bench_ddp")
    return options


def cases_of(options):
    for model in options.models:
        batch, warmup, steps = MODELS[model]
        for count in options.batches or [batch]:
            for ranks in options.ranks:
                yield sides.Case(model, count, ranks, False, warmup, steps)


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), []
    for case in cases_of(options):
        rounds = []
        for number in range(options.rounds):
            rounds.append({})
            for side in measure.in_turn(number, SIDES):
                measure.progress(started, f"{case.model}, batch {case.batch}, {case.ranks} ranks, "
                                          f"round {number + 1} of {options.rounds}: {side}")
                rounds[-1][side] = measured(side, case, options)
        measure.progress(started, "")
        print(f"\n{case.model}, batch {case.batch} a rank, {case.ranks} ranks, {options.rounds} "
              "rounds\n")
        ratios = {side: ratio(side, base, rounds) for side, base in BASES.items()}
        print_steps(rounds, ratios)
        print_operators(rounds, options.top)
        sys.stdout.flush()
        results.append({**case._asdict(), "rounds": rounds, "ratios": ratios})
        measure.save(options, results)


if __name__ == "__main__":
    main()
