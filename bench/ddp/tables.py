# SPDX-License-Identifier: Apache-2.0
"""Output of bench.py: a row for each finished case; at the end, how the steps' time is divided."""

import statistics

from sides import measure

SIDES = ("Lockstep", "PyTorch", "alone")

LEGEND = """samples/s of all ranks: medians of {rounds} rounds{quick}. Ratios are of figures of one
round: the median, and lowest - highest.
Lockstep    DistributedDataParallel, one thread a rank, under lockstep run
PyTorch     the same under torchrun, with Gloo
ratio       Lockstep / PyTorch
alone       as many copies of the bare model at once as there are ranks, summed
efficiency  Lockstep / alone: what is left of what the machine can give
"""

HEADER = (
    f"{'model':<25}{'batch a rank':>12}{'ranks':>7}{'Lockstep':>10}{'PyTorch':>10}{'ratio':>7}"
    f"  {'low - high':<13}{'alone':>9}{'efficiency':>12}  low - high")

PARTS = ("forward", "backward", "optimizer", "copy", "wait", "reduce")


def name_of(result):
    return f"{result['model']}{', unused' if result['find_unused'] else ''}"


def row(result):
    speeds = {side: measure.short(result[side]["samples_per_second"]) for side in SIDES}
    ratio, efficiency = result["ratio"], result["efficiency"]
    span = f"{ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f}"
    return (f"{label(result)}{speeds['Lockstep']:>10}{speeds['PyTorch']:>10}{ratio['ratio']:>7.2f}"
            f"  {span:<13}{speeds['alone']:>9}{efficiency['ratio']:>12.0%}"
            f"  {efficiency['ratio_low']:.0%} - {efficiency['ratio_high']:.0%}")


def label(result):
    return f"{name_of(result):<25}{result['batch']:>12}{result['ranks']:>7}"


def medians(rounds, side):
    """Returns the median of each figure of a side."""
    return {name: statistics.median(entry[side][name] for entry in rounds)
            for name in rounds[0][side]}


def print_parts(results):
    print(
        "\nWhere a step's time goes, in ms: on rank 0; alone the mean of all copies. "
        "Copying gradients, waiting\n"
        "for other ranks and reducing are parts of backward, which has the loss in it.\n"
        f"{'model':<25}{'batch a rank':>12}{'ranks':>7}  {'':<10}{'forward':>9}{'backward':>10}"
        f"{'optimizer':>11}{'copy':>8}{'wait':>8}{'reduce':>8}")
    for result in results:
        for number, side in enumerate(SIDES):
            parts = [
                measure.short(result[side][part]) if part in result[side] else "-" for part in PARTS
            ]
            print(
                f"{label(result) if number == 0 else '':<44}  {side:<10}{parts[0]:>9}{parts[1]:>10}"
                f"{parts[2]:>11}{parts[3]:>8}{parts[4]:>8}{parts[5]:>8}")
