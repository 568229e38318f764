# SPDX-License-Identifier: Apache-2.0
"""Results of bench.py: ratios, their goals, and their display."""

import os
import statistics

import step_parts
from all_reduce import SIZES, Side
from cases import MB, Case
from jobs import HOSTS, measure
from training import KINDS as KINDS_OF_STEPS, LOSS_STEPS, SIDES, SYNC_EVERY

KINDS = ("Lockstep", "flat", "own", "PyTorch")

# Minimum size for which a ratio of all_reduce is judged, because bandwidth dominates there.
JUDGED_BYTES = 1 * MB
SHAPED = "1 Gbit/s"

# Minimum ratios of all_reduce: to the flat way, on SHAPED; to the engine's own, on all links.
FLAT_GOAL, OWN_GOAL = 1.5, 0.9
# Minimum ratios of training on SHAPED, by batch and the compared sides; None is shown only.
POWER_SGD_GOALS = {("PowerSGD", "PyTorch"): 2.5, ("PowerSGD 25 MB", "PyTorch PowerSGD"): 1.2,
                   ("PowerSGD", "PyTorch PowerSGD"): None}
DDP_GOALS = {
    8: {("Lockstep", "PyTorch"): None, ("bf16", "PyTorch"): None, ("bf16", "PyTorch fp16"): None,
        **POWER_SGD_GOALS},
    32: {("Lockstep", "PyTorch"): 1.2, ("bf16", "PyTorch"): 1.8, ("bf16", "PyTorch fp16"): None,
         **POWER_SGD_GOALS},
}
# Minimum speed of DiLoCo relative to no communication on SHAPED, and minimum ratio of the losses of
# synchronous training and DiLoCo.
DILOCO_GOAL, LOSS_GOAL = 0.95, 0.99


def results_of(rounds, losses):
    """Returns a list of figures for each part, from all rounds so far, and losses with theirs."""
    rows_of = {"all_reduce": all_reduce_rows, "ddp": training_rows, "local_steps": local_rows,
               "step_parts": lambda figures, link, ranks: step_parts.rows(figures)}
    results = {part: [] for part in rows_of}
    for part, link, ranks in rounds[0]:
        figures = [entry[part, link, ranks] for entry in rounds]
        results[part] += [{"link": link, "ranks_a_host": ranks, **row}
                          for row in rows_of[part](figures, link, ranks)]
    if losses:
        losses = losses | {"ratio": compared([losses["synchronous"]], [losses["diloco"]],
                                             LOSS_GOAL)}
    return results | {"losses": losses}


# --- all_reduce -----------------------------------------------------------------------------------

def all_reduce_rows(figures, link, ranks):
    engines = dict.fromkeys(side.engine for side in figures[0])
    return [all_reduce_row(figures, link, ranks, engine, size, memory)
            for engine in engines for size in SIZES for memory in ("registered", "any")]


def all_reduce_row(figures, link, ranks, engine, size, memory):
    def of(kind):
        on = memory if kind in ("Lockstep", "flat") else "any"
        return [entry[Side(engine, kind)][Case("all_reduce", ranks, size, on)]
                for entry in figures if Side(engine, kind) in entry]

    times = {kind: of(kind) for kind in KINDS}
    row = {"engine": engine, "bytes": size, "memory": memory, "microseconds": times}
    judged = size >= JUDGED_BYTES
    if times["flat"]:
        goal = FLAT_GOAL if judged and link == SHAPED else None
        row["to_flat"] = compared(times["flat"], times["Lockstep"], goal)
    peers = [
        min(both) for both in zip(*(times[kind] for kind in ("own", "PyTorch") if times[kind]))
    ]
    row["to_own"] = compared(peers, times["Lockstep"], OWN_GOAL if judged else None)
    return row


def compared(theirs, ours, goal):
    """Returns the ratios of two lists of times, one per round."""
    ratio = measure.spread([their / our for their, our in zip(theirs, ours)])
    return ratio | ({} if goal is None else {"goal": goal, "met": ratio["ratio"] >= goal})


# --- Training -------------------------------------------------------------------------------------

def training_rows(figures, link, ranks):
    return [training_row([entry[batch] for entry in figures], link, batch) for batch in figures[0]]


def training_row(figures, link, batch):
    def speeds(side):
        return [entry[side]["samples_per_second"] for entry in figures]

    row = {"batch": batch,
           "samples_per_second": {side: speeds(side) for side in SIDES if side in figures[0]},
           "parts_ms": {side: {name: statistics.median(entry[side][name] for entry in figures)
                               for name in figures[0][side] if name != "samples_per_second"}
                        for side in SIDES if side in figures[0]},
           "ratios": {}}
    for (ours, theirs), goal in DDP_GOALS[batch].items():
        # These are speeds: the ratio is the inverse of that for times.
        if theirs in figures[0]:
            row["ratios"][f"{ours} / {theirs}"] = compared(speeds(ours), speeds(theirs),
                                                           goal if link == SHAPED else None)
    return row


# --- Local steps ----------------------------------------------------------------------------------

def local_rows(figures, link, ranks):
    speeds = {kind: [entry[kind] for entry in figures] for kind in figures[0]}
    goal = DILOCO_GOAL if link == SHAPED else None
    return [{"samples_per_second": speeds, "ratios": {
        "DiLoCo / alone": compared(speeds["diloco"], speeds["alone"], goal),
        "DiLoCo / synchronous": compared(speeds["diloco"], speeds["synchronous"], None)}}]


# --- Output ---------------------------------------------------------------------------------------

def print_all(results, options, absent):
    quick = " of few calls" if options.quick else ""
    plural = "s" * (options.rounds > 1)
    print(
        f"Medians of {options.rounds} round{plural}{quick}; ratios with the lowest - highest of a "
        "round."
    )
    if results["all_reduce"]:
        print_all_reduce(results["all_reduce"])
    if results["ddp"]:
        print_training(results["ddp"])
    if results["local_steps"]:
        print_local_steps(results["local_steps"], results["losses"])
    for row in results["step_parts"]:
        step_parts.print_rows(row)
    print_goals(results)
    ranks = [row["ranks_a_host"] for part in ("all_reduce", "ddp", "local_steps", "step_parts")
             for row in results[part]]
    if len(os.sched_getaffinity(0)) < HOSTS * max(ranks, default=0):
        print(
            "This machine has fewer CPUs than ranks: what a rank waits for waits for its CPU, too.")
    for peer, why in absent.items():
        print(f"WITHOUT {peer}: {why}")


def title_of(row):
    return (f"{HOSTS} hosts x {row['ranks_a_host']} rank{'s' * (row['ranks_a_host'] > 1)}, link "
            f"{row['link']}")


def print_all_reduce(rows):
    print("""
all_reduce, in ms
Lockstep  two levels: shared memory on a host, the engine between hosts
flat      Lockstep with the engine alone
own       the engine's own, without Lockstep
PyTorch   through torch.distributed, with its Gloo
to flat   flat / Lockstep
to own    the better of own and PyTorch / Lockstep""")
    title = None
    for row in rows:
        if title != (title := title_of(row)):
            print(f"\n{title}\n{'engine':<8}{'size':>6}  {'memory':<11}{'Lockstep':>9}{'flat':>8}"
                  f"{'own':>8}{'PyTorch':>9}   {'to flat':<30}{'to own'}")
        times = [milliseconds(row["microseconds"][kind]) for kind in KINDS]
        print(f"{row['engine']:<8}{SIZES[row['bytes']].name:>6}  {row['memory']:<11}{times[0]:>9}"
              f"{times[1]:>8}{times[2]:>8}{times[3]:>9}   {ratio_text(row.get('to_flat')):<30}"
              f"{ratio_text(row['to_own'])}".rstrip())


def milliseconds(microseconds):
    return measure.short(statistics.median(microseconds) / 1e3) if microseconds else "-"


def ratio_text(ratio):
    if not ratio:
        return "-"
    low, high = measure.short(ratio["ratio_low"]), measure.short(ratio["ratio_high"])
    missed = "" if ratio.get("met", True) else " MISSED"
    return f"{measure.short(ratio['ratio'])} ({low} - {high}){missed}"


def print_training(rows):
    print("""
Training steps of a CNN with 8.5 MB of gradients; samples/s of all ranks, and the ms of a step on
rank 0. Gradients of bf16 and fp16 travel in half of the bytes. PowerSGD has rank 4 from the third
step on, error feedback and warm start on both sides: PyTorch's and `25 MB` with one bucket of up to
25 MB, `PowerSGD` with Lockstep's default buckets. PyTorch's cannot run with several over Gloo.""")
    for row in rows:
        print(f"\n{title_of(row)}, batch {row['batch']} a rank\n{'':<17}{'samples/s':>10}"
              f"{'forward':>9}{'backward':>10}{'optimizer':>11}")
        for side, speeds in row["samples_per_second"].items():
            parts = [measure.short(row["parts_ms"][side][name])
                     for name in ("forward", "backward", "optimizer")]
            print(
                f"{side:<17}{measure.short(statistics.median(speeds)):>10}{parts[0]:>9}"
                f"{parts[1]:>10}{parts[2]:>11}")
        for name, ratio in row["ratios"].items():
            print(f"  {name:<34}{ratio_text(ratio)}")


def print_local_steps(rows, losses):
    print("\nTraining of the CNN on Fashion-MNIST, batch 32 a rank, AdamW; samples/s of all ranks. "
          f"DiLoCo synchronises every\n{SYNC_EVERY} steps; `alone` is without any communication.")
    for row in rows:
        print(f"\n{title_of(row)}\n{'':<14}{'samples/s':>10}")
        for kind in KINDS_OF_STEPS:
            speed = measure.short(statistics.median(row["samples_per_second"][kind]))
            print(f"{kind:<14}{speed:>10}")
        for name, ratio in row["ratios"].items():
            print(f"  {name:<34}{ratio_text(ratio)}")
    if losses:
        print(f"\nLoss of the test images after {LOSS_STEPS} steps, one run each: "
              f"{losses['synchronous']:.4f} synchronous, {losses['diloco']:.4f} DiLoCo")


def judged(results):
    """Returns each goal's name, the judged ratio, and its place.

    Among all_reduce's sizes and memories, the ratio closest to missing the goal is judged.
    """
    groups = {}
    for row in results["all_reduce"]:
        place = f"{SIZES[row['bytes']].name}, {row['memory']} memory"
        for which, name in (("to_flat", "two levels to flat"), ("to_own", "to the engine's own")):
            if "met" in row.get(which, {}):
                groups.setdefault(f"{row['engine']}, {name}, {title_of(row)}", []).append(
                    (row[which], place))
    for row in results["ddp"] + results["local_steps"]:
        for name, ratio in row["ratios"].items():
            if "met" in ratio:
                batch = f", batch {row['batch']}" if "batch" in row else ""
                groups.setdefault(f"training, {name}, {title_of(row)}{batch}",
                                  []).append((ratio, ""))
    if results["losses"]:
        groups["final loss, synchronous / DiLoCo"] = [(results["losses"]["ratio"], "")]
    return [(name, *min(found, key=lambda one: one[0]["ratio"])) for name, found in groups.items()]


def print_goals(results):
    goals = judged(results)
    if not goals:
        return
    print(f"\n{'wanted, in the worst case of at least 1 MB':<88}{'ratio':>6}{'wanted':>8}")
    for name, ratio, place in goals:
        print(f"{name:<88}{measure.short(ratio['ratio']):>6}{ratio['goal']:>8g}  "
              f"{'met' if ratio['met'] else 'MISSED'}{f' at {place}' if place else ''}")
    print(f"{[ratio['met'] for _, ratio, _ in goals].count(False)} of {len(goals)} goals missed")
