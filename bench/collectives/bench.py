#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the collectives of Lockstep with those of Open MPI (mpirun) and of Gloo (through
torch.distributed, torchrun), on floats, between ranks of this host.

A call's time is that of the slowest rank; a figure is the median of a case's calls. Short calls are
timed in batches, the same for all three, with nothing between calls. A ratio is the time of the
better peer over ours in one round, printed as median and range.

all_reduce and broadcast work in place, the others from one buffer into another. The bytes are those
of the larger buffer of a rank: all_gather's output, reduce_scatter's input.
"""

import collections
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above
from cases import KB, MB, Case, case_text, figures_of  # noqa: E402

EXAMPLES = """examples:
  ./dev bench collectives
  ./dev bench collectives --json collectives.json --rounds 9
  ./dev bench collectives --quick --only all_reduce barrier
"""

Size = collections.namedtuple("Size", "name batch batches gloo_batches")

SIZES = {
    1 * KB: Size("1 KB", batch=32, batches=4000, gloo_batches=25),
    64 * KB: Size("64 KB", batch=16, batches=1000, gloo_batches=25),
    1 * MB: Size("1 MB", batch=1, batches=600, gloo_batches=60),
    8 * MB: Size("8 MB", batch=1, batches=60, gloo_batches=20),
    64 * MB: Size("64 MB", batch=1, batches=15, gloo_batches=5),
}
NO_BYTES = Size("-", batch=32, batches=4000, gloo_batches=25)
OPERATIONS = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all"]
MEMORIES = {"registered": "registered", "any": "any", "none": ""}
CROWDED = (4, 8)  # Ranks; for all_reduce only.
COPIED = [size for size in SIZES if size >= MB]  # Sizes that are compared with memcpy.

# Target speed of all_reduce with two ranks, as a multiple of the better peer; other collectives: 1.
TARGETS = {"registered": dict(zip(SIZES, (1.5, 10, 8, 10, 7))),
           "any": dict(zip(SIZES, (1, 3, 2, 2, 2)))}


def target_of(case):
    two = case.operation == "all_reduce" and case.ranks == 2
    return TARGETS[case.memory][case.bytes] if two else 1


# --- Cases --------------------------------------------------------------------------------------

def cases_of(ranks, only):
    """Returns the cases of all sides; ours run on two kinds of memory."""
    operations = OPERATIONS if ranks == 2 else ["all_reduce"]
    cases = [Case(operation, ranks, size, memory) for operation in operations if operation in only
             for size in SIZES for memory in ("registered", "any")]
    if ranks == 2 and "barrier" in only:
        cases.append(Case("barrier", ranks, 0, "none"))
    return cases


def own_cases(ranks, only):
    """Returns cases of this host and of our own checks, for comparison."""
    cases = [Case(copy, ranks, size, "none") for copy in ("memcpy_one", "memcpy_all")
             for size in COPIED]
    return [*cases, *([Case("flag_barrier", ranks, 0, "none")] if "barrier" in only else [])]


def argument(case, side, quick):
    size = SIZES.get(case.bytes, NO_BYTES)
    batches = size.gloo_batches if side == "Gloo" else size.batches
    if case.ranks in CROWDED:
        batches //= 10 if side != "Gloo" else 4
    batches = max(3, batches // (3 if quick else 1))
    return case_text(case, batches, size.batch)


def command_of(side, ranks, options):
    cases = cases_of(ranks, options.only)
    if side == "Lockstep":
        cases += own_cases(ranks, options.only) if ranks == 2 else []
    else:
        cases = [case for case in cases if case.memory != "registered"]
    work = [argument(case, side, options.quick) for case in cases]
    if not work:
        return None
    if side == "Lockstep":
        return measure.lockstep_run(options.build, ranks, "bench_collectives", *work)
    if side == "Gloo":
        return measure.torchrun(options.python, ranks, HERE / "gloo.py", *work)
    crowded = ranks > len(os.sched_getaffinity(0))
    binding = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    return ["mpirun", "--allow-run-as-root", "-n", ranks,
            *(binding if crowded else ["--bind-to", "core"]),
            options.build / "bin" / "bench_collectives_open_mpi", *work]


# --- The rounds ---------------------------------------------------------------------------------

def sides_here(options):
    """Returns the sides that can run, and a line for each peer that cannot."""
    sides, absent = ["Lockstep"], {}
    for peer, why in (("Open MPI", measure.why_no_open_mpi(options.build)),
                      ("Gloo", measure.why_no_torch(options.python))):
        if why:
            absent[peer] = why
    return sides + [peer for peer in ("Open MPI", "Gloo") if peer not in absent], absent


def run_round(number, sides, options, started):
    """Returns the microseconds of each case, by side."""
    figures = {side: {} for side in sides}
    for ranks in (2, *CROWDED):
        for side in measure.in_turn(number, sides):
            command = command_of(side, ranks, options)
            if command:
                measure.progress(started, f"round {number + 1} of {options.rounds}: {side}, "
                                          f"{ranks} ranks")
                figures[side] |= figures_of(measure.run(command), ranks)
    return figures


# --- Results ------------------------------------------------------------------------------------

def of_all_rounds(rounds, side, case):
    """Returns all rounds' figures. Peers have one kind of memory, with which both of ours are
    compared. Empty without figures."""
    if side != "Lockstep" and case.memory == "registered":
        case = case._replace(memory="any")
    return [figures[side][case] for figures in rounds if case in figures.get(side, {})]


def result_of(rounds, sides, case):
    times = {side: of_all_rounds(rounds, side, case) for side in sides}
    result = {**case._asdict(), "microseconds": times, "target": target_of(case)}
    peers = [times[side] for side in sides[1:] if times[side]]
    if peers:
        result |= measure.spread([min(theirs) / ours
                                  for ours, *theirs in zip(times["Lockstep"], *peers)])
        result["met"] = result["ratio"] >= result["target"]
    return result | share_of_memcpy(rounds, case, times["Lockstep"])


def share_of_memcpy(rounds, case, ours):
    """Returns the collective's bytes as a share of memcpy's, all ranks copying concurrently.

    The bytes are the minimum that each rank must read of its own and others' input, and write of
    results.
    """
    copies = of_all_rounds(rounds, "Lockstep", Case("memcpy_all", 2, case.bytes, "none"))
    if case.ranks != 2 or not copies:
        return {}
    moved = {"broadcast": 1 / 2, "reduce_scatter": 3 / 4}.get(case.operation, 1)
    shares = [moved * copy / time for copy, time in zip(copies, ours)]
    return {"share_of_memcpy": statistics.median(shares)}


def median_of(times):
    return measure.short(statistics.median(times)) if times else "-"


def row(result):
    times, size = result["microseconds"], result["bytes"]
    speed = measure.short(size / statistics.median(times["Lockstep"]) / 1e3) if size else "-"
    share = f"{result['share_of_memcpy']:.0%}" if "share_of_memcpy" in result else "-"
    name = SIZES.get(size, NO_BYTES).name if result["memory"] != "any" else ""
    peers = [median_of(times.get(peer)) for peer in ("Open MPI", "Gloo")]
    text = (f"{name:>7}  {MEMORIES[result['memory']]:<14}{median_of(times['Lockstep']):>9}"
            f"{speed:>7}{share:>8}{peers[0]:>11}{peers[1]:>8}")
    if "ratio" not in result:
        return text + f"{'-':>8}"
    span = f"{measure.short(result['ratio_low'])} - {measure.short(result['ratio_high'])}"
    return text + (f"{measure.short(result['ratio']):>8}   {span:<13}{result['target']:>5g}"
                   f"{'' if result['met'] else '  MISSED'}")


def print_table(results):
    title = None
    for result in results:
        if title != (title := f"{result['operation']}, {result['ranks']} ranks"):
            print(f"\n{title:<23}{'us':>9}{'GB/s':>7}{'memcpy':>8}{'Open MPI':>11}{'Gloo':>8}"
                  f"{'ratio':>8}   {'low - high':<13}{'goal':>5}")
        print(row(result))
    judged = [result["met"] for result in results if "met" in result]
    if judged:
        print(f"\n{judged.count(False)} of {len(judged)} goals missed")


def print_legend(options, absent):
    calls = " of few calls" if options.quick else ""
    print(f"""Medians of {options.rounds} rounds{calls}.
us             one call of ours
GB/s           of ours: bytes / time
memcpy         the bytes that ours moves, as a share of what both cores copy at once; above
               100 % where ours fits into a cache and the copy does not
Open MPI, Gloo one call of theirs, in us
ratio          the better peer's time / ours""")
    for peer, why in absent.items():
        print(f"WITHOUT {peer}: {why}")


def host_figures(rounds):
    """Returns memcpy's GB/s by size, and the checks' ns."""
    def median(operation, size=0):
        times = of_all_rounds(rounds, "Lockstep", Case(operation, 2, size, "none"))
        return statistics.median(times) if times else None

    figures = {"memcpy": {size: {copy: size / median(copy, size) / 1e3
                                 for copy in ("memcpy_one", "memcpy_all")} for size in COPIED}}
    if median("flag_barrier"):
        barrier, flags = 1e3 * median("barrier"), 1e3 * median("flag_barrier")
        figures |= {"barrier_ns": barrier, "flag_barrier_ns": flags, "checks_ns": barrier - flags}
    return figures


def print_host(figures):
    print()
    for size, speeds in figures["memcpy"].items():
        print(f"memcpy of {SIZES[size].name:>5}: one core alone {speeds['memcpy_one']:6.2f} GB/s, "
              f"both at once {speeds['memcpy_all']:6.2f} GB/s each")
    if "checks_ns" in figures:
        print(f"barrier() {figures['barrier_ns']:.0f} ns, bare flags "
              f"{figures['flag_barrier_ns']:.0f} ns: lock, numbering, signature and flight record "
              f"cost {figures['checks_ns']:.0f} ns")


def save(options, rounds, results, absent, load):
    measure.save(options, {
        "host": measure.host() | {"load_before": load},
        "rounds": len(rounds), "quick": options.quick, "absent": absent,
        **host_figures(rounds), "cases": results})


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--rounds", type=int, help="how often each side runs: 5, with --quick 2")
    parser.add_argument("--quick", action="store_true",
                        help="a third of the calls: for a first look")
    parser.add_argument("--only", nargs="+", metavar="OPERATION", choices=[*OPERATIONS, "barrier"],
                        default=[*OPERATIONS, "barrier"],
                        help=f"measure only these of: {' '.join(OPERATIONS)} barrier")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    if options.rounds < 1:
        parser.error("--rounds must be positive")
    measure.require_built(parser, options, "bench_collectives")
    return options


def main():
    options = parse_options()
    sides, absent = sides_here(options)
    load, started = measure.warn_if_busy(), time.monotonic()
    for peer, why in absent.items():
        print(f"without {peer}: {why}", file=sys.stderr)

    rounds = []
    for number in range(options.rounds):
        rounds.append(run_round(number, sides, options, started))
        results = [result_of(rounds, sides, case) for ranks in (2, *CROWDED)
                   for case in cases_of(ranks, options.only)]
        save(options, rounds, results, absent, load)
    measure.progress(started, "")
    print_legend(options, absent)
    print_table(results)
    print_host(host_figures(rounds))


if __name__ == "__main__":
    main()
