# SPDX-License-Identifier: Apache-2.0
"""Output of bench.py: a row for each finished case; at the end, the parts of the steps' time."""

import collections
import statistics

from sides import measure

# Compared sides: ours, peers, and copies of the bare model.
Sides = collections.namedtuple("Sides", "ours peers alone")
CUDA = Sides("Lockstep", ("PyTorch",), "alone")
AMP = Sides("Lockstep amp", ("PyTorch", "PyTorch amp", "all threads amp"), "alone amp")

LEGEND = """samples/s of all ranks: medians of {rounds} rounds{quick}. Ratios are of figures of one
round: the median, and lowest - highest.
Lockstep    DistributedDataParallel, one thread a rank, under lockstep run
PyTorch     the same under torchrun, with Gloo
all threads one process with a thread for each rank, and the batch of all ranks
ratio       Lockstep to the side before it
alone       as many copies of the bare model at once as there are ranks, summed
efficiency  Lockstep / alone: what is left of what the machine can give
malloc      keeps memory, in huge pages, except in PyTorch's ranks without --same-malloc
"""

CUDA_LEGEND = """cuda        each rank on one GPU; PyTorch with NCCL. The parts of a step,
            below, are the times to enqueue it
"""

AMP_LEGEND = """amp         in bfloat16 by autocast, images and weights in channels_last;
            without it in float32 and contiguous, as most programs run
"""

SMALL_PAGES_LEGEND = """small pages        Lockstep without huge pages, and Lockstep / small pages
alone small pages  alone without huge pages, and alone / alone small pages
"""

PARTS = ("forward", "backward", "optimizer", "copy", "wait", "reduce", "cpu", "faults")


def float32(bindings, small_pages):
    bound = [f"bind {binding}" for binding in bindings]
    return Sides("Lockstep", ("PyTorch", "all threads", *bound,
                              *["small pages", "alone small pages"] * small_pages), "alone")


def name_of(result):
    device = "" if result["device"] == "cpu" else f", {result['device']}"
    beside = f", {result['beside']} busy, nice {result['nice']}" if result["beside"] else ""
    return f"{result['model']}{device}{', unused' if result['find_unused'] else ''}{beside}"


def all_of(sides):
    return [sides.ours, *sides.peers, sides.alone]


def header(sides):
    peers = "".join(f"{peer:>{width_of(peer)}}{'ratio':>7}  {'low - high':<13}"
                    for peer in sides.peers)
    return (f"{'model':<25}{'batch a rank':>12}{'ranks':>7}{sides.ours:>14}{peers}{sides.alone:>11}"
            f"{'efficiency':>12}  low - high")


def width_of(peer):
    return max(13, len(peer) + 2)


def row(result, sides):
    def speed(side):
        return measure.short(result[side]["samples_per_second"])

    peers = ""
    for peer in sides.peers:
        ratio = result["ratios"][peer]
        span = f"{ratio['ratio_low']:.2f} - {ratio['ratio_high']:.2f}"
        peers += f"{speed(peer):>{width_of(peer)}}{ratio['ratio']:>7.2f}  {span:<13}"
    efficiency = result["efficiency"]
    return (f"{label(result)}{speed(sides.ours):>14}{peers}{speed(sides.alone):>11}"
            f"{efficiency['ratio']:>12.0%}"
            f"  {efficiency['ratio_low']:.0%} - {efficiency['ratio_high']:.0%}")


def label(result):
    return f"{name_of(result):<25}{result['batch']:>12}{result['ranks']:>7}"


def medians(rounds, side):
    return {name: statistics.median(entry[side][name] for entry in rounds)
            for name in rounds[0][side]}


def print_parts(results, sides):
    width = max(12, *(len(side) for side in all_of(sides)))
    print(
        "\nWhere a step's time goes, in ms: on rank 0; alone the mean of all copies. "
        "Copying gradients, waiting\n"
        "for other ranks and reducing are parts of backward, which has the loss in it. cpu is the "
        "time of\nall threads, faults are page faults a step.\n"
        f"{'model':<25}{'batch a rank':>12}{'ranks':>7}  {'':<{width}}{'forward':>9}"
        f"{'backward':>10}{'optimizer':>11}{'copy':>8}{'wait':>8}{'reduce':>8}{'cpu':>8}"
        f"{'faults':>8}")
    for result in results:
        for number, side in enumerate(all_of(sides)):
            parts = [
                measure.short(result[side][part]) if part in result[side] else "-" for part in PARTS
            ]
            print(
                f"{label(result) if number == 0 else '':<44}  {side:<{width}}"
                f"{parts[0]:>9}{parts[1]:>10}"
                f"{parts[2]:>11}{parts[3]:>8}{parts[4]:>8}{parts[5]:>8}"
                f"{parts[6]:>8}{parts[7]:>8}")
