# SPDX-License-Identifier: Apache-2.0
"""Memory of Lockstep's ways to train: lockstep::memory_report() after a few steps."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp"))
import sides  # noqa: E402, from the folder beside this
from sides import measure  # noqa: E402

SIDES = ("Lockstep", "shared", "ZeRO-1", "ZeRO-2")
RANKS = (1, 2, 4, 8)
PARTS = ("parameters", "gradients", "optimizer_state", "buckets")
GOAL = 1.1

LEGEND = """Memory in MiB: predicted, the bytes of the tensors that are there, and the
resident part of them (PSS), where it lies in memory of its own. Gradients that lie in buckets are
in these alone. Of a rank: the most that any has of each. Of the host: what ranks share counts once.
Processes: all that all of them have resident.
"""

# Width of the text before the figures.
MARGIN = 28


def run(options, started, results):
    print(LEGEND)
    results["memory"] = []
    for model in options.models:
        print(header(model), flush=True)
        found = {}
        for side in (side for side in SIDES if side in options.sides):
            for ranks in RANKS[:3] if options.quick else RANKS:
                measure.progress(started, f"memory: {model}, {side}, {ranks} ranks")
                found[side, ranks] = measured(model, side, ranks, options)
                measure.progress(started, "")
                print_rows(side, ranks, found[side, ranks])
        results["memory"].append({
            "model": model, "growth": print_growth(found),
            "sides": [{"side": side, "ranks": ranks, "of": report}
                      for (side, ranks), report in found.items()]
        })
        measure.save(options, results)


def measured(model, side, ranks, options):
    """Returns bytes by rank and "host", then kind, then part; None if indistinguishable."""
    command = measure.lockstep_run(options.build, ranks, "bench_ddp", "--model", model, "--batch",
                                   1, "--warmup", 0, "--steps", 3, "--memory", *sides.OURS[side])
    report = {}
    for who, kind, parts in re.findall(r"\bmemory (\w+) (\w+) (.*)$", measure.run(command), re.M):
        words = parts.split()
        report.setdefault(who, {})[kind] = {
            name: None if value == "-" else int(value)
            for name, value in zip(words[::2], words[1::2])
        }
    return report if "host" in report else sys.exit(f"no memory of the host from: {command}")


def header(model):
    names = "".join(f"{name:>10}" for name in ("weights", "gradients", "state", "buckets"))
    return (
        f"{'':<{MARGIN}}{'of a rank':>10}{'of the host':>42}\n"
        f"{model:<10}{'ranks':>5}{'':<{MARGIN - 15}}{names}  {names}{'total':>10}{'processes':>11}")


def print_rows(side, ranks, report):
    everybody = [kinds for who, kinds in report.items() if who != "host"]
    for number, kind in enumerate(("predicted", "measured", "resident")):
        name = f"{side:<10}{ranks:>5}" if number == 0 else ""
        largest = {part: largest_of(kinds[kind].get(part) for kinds in everybody) for part in PARTS}
        host = report["host"][kind]
        last = (f"{'':>10}{mebibytes(host['process']):>11}" if "process" in host else
                f"{mebibytes(sum(host[part] for part in PARTS)):>10}")
        print(f"{f'{name:<17}{kind}':<{MARGIN}}{cells(largest)}  {cells(host)}{last}")
    sys.stdout.flush()


def largest_of(values):
    return max((value for value in values if value is not None), default=None)


def cells(parts):
    return "".join(f"{mebibytes(parts.get(part)):>10}" for part in PARTS)


def mebibytes(count):
    return "-" if count is None else f"{count / 2**20:.2f}"


def print_growth(found):
    """Prints, by side and ranks, the host's parameters and optimizer state over those of one rank.
    """

    def weight(side, ranks):
        parts = found[side, ranks]["host"]["measured"]
        return parts["parameters"] + parts["optimizer_state"]

    print("\nParameters and optimizer state of the host, over those with one rank")
    growth = {}
    for side in dict.fromkeys(side for side, _ in found):
        growth[side] = {ranks: weight(side, ranks) / weight(side, 1)
                        for other, ranks in found if other == side}
        text = "".join(f"{ranks:>6} ranks {ratio:5.2f}" for ranks, ratio in growth[side].items())
        goal = f"   goal with 4: {GOAL}" if side == "shared" else ""
        print(f"  {side:<10}{text}{goal}")
    print(flush=True)
    return growth
