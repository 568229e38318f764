# SPDX-License-Identifier: Apache-2.0
"""Training steps of all sides of bench.py, and comparisons of their speeds."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp"))
import sides  # noqa: E402, from the folder beside this
import tables  # noqa: E402
from sides import Case, measure  # noqa: E402

SIDES = ("shared", "Lockstep", "ZeRO-1", "ZeRO-2", "PyTorch", "PyTorch ZeRO", "alone")
RANKS = 2

# By model and batch size: warm-up steps, timed steps. A side takes half a minute at most.
STEPS = {"cnn": {4: (40, 200), 32: (10, 60), 128: (4, 20)},
         "gpt": {4: (4, 30), 32: (1, 5), 128: (1, 2)}}
MODELS = tuple(STEPS)
BATCHES = (4, 32, 128)

# By comparison: the peer's side, and the goals at batch sizes 4, 32 and 128.
COMPARISONS = {"to PyTorch DDP": ("PyTorch", (2.1, 1.45, 1.25)),
               "to PyTorch ZeRO": ("PyTorch ZeRO", None),
               "to plain DDP": ("Lockstep", None),
               "to ZeRO-1": ("ZeRO-1", None),
               "to alone": ("alone", (1.0, 1.0, 0.97))}
REDUCE_AND_STEP_GOAL = 1.5

LEGEND = """samples/s of all ranks: medians of {rounds} rounds{quick}. Ratios are of figures of one
round: the median and lowest - highest, then the goal where there is one.
shared        share_parameters and SharedOptimizer, under lockstep run
Lockstep      DistributedDataParallel, each rank with all weights and all of Adam
ZeRO-1        the same with ZeroRedundancyOptimizer; ZeRO-2 with shard_gradients() too
PyTorch       its DistributedDataParallel under torchrun, with Gloo
PyTorch ZeRO  the same with its ZeroRedundancyOptimizer
alone         as many copies of the bare model at once as there are ranks, summed
sum and step  of Lockstep, all_reduce of the gradients and Adam, against the same of shared, which
              does both in its optimizer; without waits for a slower rank, which are measured apart
"""


def run(options, started, results):
    print(LEGEND.format(rounds=options.rounds, quick=" of few steps" if options.quick else ""))
    results["speed"] = []
    cases = [
        case_of(model, batch, options) for model in options.models for batch in options.batches
    ]
    for number, case in enumerate(cases, 1):
        what = f"case {number} of {len(cases)}: {case.model}, batch {case.batch}"
        result = measured(case, options, lambda text: measure.progress(started, f"{what}, {text}"))
        results["speed"].append(result)
        measure.progress(started, "")
        print_case(result)
        measure.save(options, results)


def case_of(model, batch, options):
    warmup, steps = STEPS[model][batch]
    if options.quick:
        warmup, steps = max(1, warmup // 3), max(min(3, steps), steps // 3)
    return Case(model, batch, RANKS, False, warmup, steps)


def measured(case, options, say):
    chosen = [side for side in SIDES if side in options.sides]
    rounds = sides.run_rounds(chosen, case, options, say)
    return {**case._asdict(), "rounds": rounds, "comparisons": comparisons(rounds, chosen),
            **{side: tables.medians(rounds, side) for side in chosen}}


def comparisons(rounds, measured_sides):
    """Compares shared parameters with other sides: speed, and time of a step."""
    if "shared" not in measured_sides:
        return {}

    def ratio(figure, base):
        return measure.spread([figure(entry["shared"]) / figure(entry[base])
                               for entry in rounds])

    found = {name: ratio(lambda side: side["samples_per_second"], base)
             for name, (base, _) in COMPARISONS.items() if base in measured_sides}
    if "Lockstep" in measured_sides:
        found["sum and step"] = ratio(lambda side: 1 / sum_and_step(side), "Lockstep")
    return found


def sum_and_step(side):
    """Returns the ms of a step in which gradients are summed and weights stepped, on rank 0.

    SharedOptimizer's part `optimizer` includes all of it and the waits; its `step` only steps.
    """
    return side["reduce"] + side.get("step", side["optimizer"])


def print_case(result):
    print(f"{result['model']}, batch {result['batch']} a rank, {result['ranks']} ranks")
    for name, ratio in result["comparisons"].items():
        span = f"{ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f}"
        print(f"  {name:<16}{ratio['ratio']:>6.2f}  ({span}){goal_of(name, result['batch'])}")
    print(f"  {'':<14}{'samples/s':>10}{'forward':>10}{'backward':>10}{'optimizer':>11}{'copy':>8}"
          f"{'wait':>8}{'reduce':>8}{'sum and step':>14}   ms of a step, rank 0")
    for side in SIDES:
        if side in result:
            print_side(side, result[side])
    print(flush=True)


def print_side(name, side):
    parts = [measure.short(side[part]) if part in side else "-" for part in tables.PARTS]
    both = measure.short(sum_and_step(side)) if "reduce" in side else "-"
    print(f"  {name:<14}{measure.short(side['samples_per_second']):>10}{parts[0]:>10}{parts[1]:>10}"
          f"{parts[2]:>11}{parts[3]:>8}{parts[4]:>8}{parts[5]:>8}{both:>14}")


def goal_of(name, batch):
    if name == "sum and step":
        return f"  goal {REDUCE_AND_STEP_GOAL}"
    goals = COMPARISONS[name][1]
    return f"  goal {goals[BATCHES.index(batch)]}" if goals else ""
