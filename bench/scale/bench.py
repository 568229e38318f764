#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how Lockstep's calls grow with the ranks of this host, beside what a model predicts
(bench/scale/model.py, explained in docs/internals/scaling.md).

The model gets figures of the host alone:

  - the transfer of a cache line between two cores of one L3 cache, of two, and of two sockets;
  - the speed at which so many ranks copy, and a step of bare copies;
  - a barrier and an init_process_group() of one rank;
  - the time of a new page.

A packet between processes is assumed to take 10 us. The model counts the rest from the code.

The last column is measured / predicted: about 1 where the model is right. Each rank writes its
buffer before a call, as training does. Ranks that outnumber cores are measured, but not predicted.

With --simulate it measures something else: the start and the changes of a job of 1 to 10,000 hosts
with 8 ranks each, on virtual time. The production Coordinator, the store's service and the frames
run in one process; sockets and processes are a model, whose costs are measured on this host. The
same run compares the model with a real rendezvous of 8, 32 and 128 hosts, all on this one: the
ratio is model / real. A table has for each event the time, and messages, bytes and connections at
the coordinator's host. An event that does not end within --limit has none.
"""

import os
import pathlib
import re
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE.parent / "ddp", HERE.parent):
    sys.path.insert(0, str(folder))
import measure  # noqa: E402, from the folder above
import sides  # noqa: E402, from bench/ddp
import model  # noqa: E402
import simulate  # noqa: E402
from model import KB, MB  # noqa: E402

EXAMPLES = """examples:
  ./dev bench scale
  ./dev bench scale --json scale.json
  ./dev bench scale --ranks 2 16 96 192 --only all_reduce ddp
  ./dev bench scale --quick
  ./dev bench scale --simulate
  ./dev bench scale --simulate --hosts 1000 10000 --limit 120 --json simulated.json
"""

PARTS = ("all_reduce", "ddp", "init")
REACHES = {"same_l3": "same L3 cache", "other_l3": "other L3 cache",
           "other_package": "other socket"}
SIZES = {1 * KB: 2000, 64 * KB: 1000, 1 * MB: 200, 64 * MB: 10}  # Calls of each size.
QUICK_SIZES = {1 * KB: 300, 64 * KB: 200, 1 * MB: 50}
BARRIERS = 300
BATCH = 32  # Samples of the CNN, on each rank.
# Name, registered, bytes.
BARRIER, ALONE, INIT = ("barrier", False, 0), ("alone", True, 0), ("init", False, 0)


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--ranks", nargs="+", type=int, metavar="N",
                        help="numbers of ranks: 1, 2, 4, ... and all cores")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help="measure these alone beside copies and barriers, of: "
                             f"{' '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help="how often all is measured: 5, with --quick 1")
    parser.add_argument("--quick", action="store_true",
                        help="fewer calls, up to 1 MB: for a first look; with --simulate, up to "
                             "128 hosts")
    parser.add_argument("--simulate", action="store_true",
                        help="simulate jobs of many hosts instead")
    parser.add_argument("--hosts", nargs="+", type=int, metavar="N",
                        help="with --simulate, the numbers of hosts: "
                             f"{' '.join(map(str, simulate.HOSTS))}")
    parser.add_argument("--limit", type=int, default=60, metavar="SECONDS",
                        help="with --simulate, the virtual time after which an event has failed: "
                             "%(default)s")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3 if options.simulate else 5)
    options.sizes = QUICK_SIZES if options.quick else SIZES
    options.same_malloc = False
    if options.rounds < 1 or min(options.ranks or [1]) < 1:
        parser.error("--rounds and --ranks are positive")
    if options.limit < 1 or min(options.hosts or [1]) < 1:
        parser.error("--limit and --hosts are positive")
    if options.simulate:
        return options
    ddp = ["bench_ddp"] if "ddp" in options.only else []
    for program in ["bench_scale_calls", "bench_launcher", *ddp]:
        measure.require_built(parser, options, program)
    return options


# --- The host -----------------------------------------------------------------------------------

def look_at_host(options):
    """Returns, for each distance between cores of this host, the ns of a cache line's transfer and
    similar figures. Also returns the shares of pairs of ranks at each distance."""
    output = measure.run([options.build / "bin" / "bench_scale_calls", "cores", model.LANE])
    reaches = {name: dict(zip(("line", "flags", "stream"), map(float, times)))
               for name, *times in re.findall(r"reach (\w+) ([\d.]+) ([\d.]+) ([\d.]+)", output)}
    pairs = {int(ranks): dict(zip(REACHES, map(float, shares))) for ranks, *shares in
             re.findall(r"pairs (\d+) ([\d.]+) ([\d.]+) ([\d.]+)", output)}
    return {"cores": int(re.search(r"cores (\d+)", output)[1]), "reaches": reaches, "pairs": pairs,
            "page_ns": float(re.search(r"page ([\d.]+)", output)[1])}


def powers_up_to(cores):
    return sorted({1 << i for i in range(cores.bit_length())} | {cores})


def available_bytes():
    found = re.search(r"MemAvailable:\s*(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    return int(found[1]) * KB


# --- Measured -----------------------------------------------------------------------------------

def run_calls(ranks, options):
    """Returns the microseconds of each call, and of a copy by all ranks concurrently."""
    sizes = {size: calls for size, calls in options.sizes.items()
             if 4 * ranks * size < available_bytes()}
    cases = [f"barrier:any:0:0:{BARRIERS}:32"]
    for size, calls in sizes.items() if "all_reduce" in options.only else ():
        cases += [f"all_reduce:{memory}:{size}:0:{calls}:1" for memory in ("registered", "any")]
    for size, calls in (sizes | {8 * MB: 30}).items():
        cases.append(f"copy:any:{size}:0:{calls}:1")
    output = measure.run(command(ranks, options, "bench_scale_calls", "ranks", *cases))
    return {(operation, memory == "registered", int(size)): float(microseconds)
            for operation, memory, size, microseconds in
            re.findall(r"figure (\w+) (\w+) (\d+) ([\d.]+)", output)}


def command(ranks, options, program, *words):
    bound = ["--bind", "core"] if ranks <= options.cores else []
    return measure.lockstep_run(options.build, ranks, program, *words, launcher=bound)


def run_init(ranks, options):
    """Returns the microseconds from the last rank's call to the last return."""
    times = measure.times_in(measure.run(command(ranks, options, "bench_launcher", "init")))
    return (max(times["end"]) - max(times["begin"])) / 1e3


def run_steps(ranks, options):
    """Returns the microseconds of a step of DistributedDataParallel, and of as many bare copies of
    the model concurrently."""
    steps = 20 if options.quick else 60
    case = sides.Case("cnn", BATCH, ranks, False, 5, steps)
    figures = sides.figures_of(measure.run(command(ranks, options, "bench_ddp",
                                                   *sides.work_of(case))))
    alone = sides.run("alone", case, options)
    return {key: BATCH * ranks / one["samples_per_second"] * 1e6
            for key, one in ((("ddp", True, 0), figures), (ALONE, alone))}


def run_round(number, options, started):
    """Returns microseconds by ranks and by case."""
    figures = {}
    for ranks in measure.in_turn(number, options.ranks):
        measure.progress(started, f"round {number + 1} of {options.rounds}: {ranks} ranks")
        figures[ranks] = run_calls(ranks, options)
        if "ddp" in options.only:
            figures[ranks] |= run_steps(ranks, options)
        if "init" in options.only:
            figures[ranks][INIT] = run_init(ranks, options)
    return figures


# --- Predicted ----------------------------------------------------------------------------------

def host_of(seen, figures):
    """The model's host: `seen` by look_at_host(), and the medians of `figures`."""
    def by_reach(name, combine):
        """Returns a function of the number of ranks: `combine` gets a list of pairs of shares and
        times."""
        return lambda n: combine([(share, seen["reaches"][reach][name])
                                  for reach, share in seen["pairs"][n].items() if share > 0])

    def farthest(of_reaches):
        """A call ends when the last flag has arrived."""
        return max(time for _, time in of_reaches)

    def mean(of_reaches):
        return sum(share * time for share, time in of_reaches)

    def copy(n, size):
        measured = {s: time for (what, _, s), time in figures[n].items() if what == "copy"}
        nearest = min(measured, key=lambda s: abs(s - size))
        return 2 * nearest / (measured[nearest] * 1e3)

    def of_one_rank(key, otherwise):
        """In ns; without figures of a single rank, uses the documented value."""
        return figures[1][key] * 1e3 if key in figures.get(1, {}) else otherwise

    page = model.assumed_host()
    return model.Host(call=of_one_rank(BARRIER, page.call), line=by_reach("line", farthest),
                      flags=by_reach("flags", mean), stream=by_reach("stream", mean), copy=copy,
                      page=seen["page_ns"], packet=page.packet,
                      start=of_one_rank(INIT, page.start))


def predicted(host, seen, figures, n, key):
    """Microseconds; None if ranks share cores, and for the model's inputs."""
    what, registered, size = key
    if n not in seen["pairs"] or what in ("copy", "alone"):
        return None
    if what == "init":
        return host.init(n) / 1e3
    if what == "ddp":
        counts, calls = model.replicas(n, *model.CNN)
        return figures[n][ALONE] + host.time(counts, n, model.CNN_BYTES, calls) / 1e3
    return host.time(model.counts_of(what, n, size, registered), n, size) / 1e3


# --- Results ------------------------------------------------------------------------------------

def medians(rounds):
    return {n: {key: statistics.median(figures[n][key] for figures in rounds)
                for key in rounds[0][n]} for n in rounds[0]}


def results_of(rounds, seen):
    """Returns one entry for each line of the table."""
    figures = medians(rounds)
    host = host_of(seen, figures)
    results = []
    for n in figures:
        for key, measured in figures[n].items():
            what, registered, size = key
            times = [one[n][key] for one in rounds]
            result = {"ranks": n, "what": what, "registered": registered, "bytes": size,
                      "microseconds": measured, "predicted": predicted(host, seen, figures, n, key)}
            if result["predicted"]:
                result |= measure.spread([one / result["predicted"] for one in times])
            if what == "ddp" and 1 in figures:
                result["efficiency"] = figures[1][key] / measured
            results.append(result)
    return results


NAMES = {"ddp": "step of DDP", "alone": "step, bare copies", "init": "init_process_group",
         "copy": "copy, all at once"}


def row(result):
    memory = "-" if not result["bytes"] or result["what"] == "copy" else (
        "registered" if result["registered"] else "any")
    size = model.text_of(result["bytes"]) if result["bytes"] else "-"
    guess = measure.short(result["predicted"]) if result["predicted"] else "-"
    ratio = "-"
    if "ratio" in result:
        ratio = (f"{measure.short(result['ratio'])} ({measure.short(result['ratio_low'])} - "
                 f"{measure.short(result['ratio_high'])})")
    note = f"  efficiency {result['efficiency']:.0%}" if "efficiency" in result else ""
    return (f"{result['ranks']:>5}  {NAMES.get(result['what'], result['what']):<20}{size:>7}  "
            f"{memory:<11}{measure.short(result['microseconds']):>10}{guess:>12}  {ratio}{note}")


def print_results(results, seen):
    print(f"{seen['cores']} cores. Between two of them, in ns: a flag's way; each of many flags; "
          "each line of many in a row")
    for name, times in seen["reaches"].items():
        print(f"  {REACHES[name]:<15}{times['line']:>8.1f}{times['flags']:>8.1f}"
              f"{times['stream']:>8.1f}")
    print(f"\n{'ranks':>5}  {'':<20}{'bytes':>7}  {'memory':<11}{'us':>10}{'predicted':>12}  "
          "measured / predicted")
    order = ["copy", "barrier", "all_reduce", "alone", "ddp", "init"]
    for result in sorted(results, key=lambda one: (order.index(one["what"]), one["bytes"],
                                                   not one["registered"], one["ranks"])):
        print(row(result))


def main():
    options = parse_options()
    load, started = measure.warn_if_busy(), time.monotonic()
    if options.simulate:
        figures = simulate.run(options, len(os.sched_getaffinity(0)),
                               lambda text: measure.progress(started, text))
        return measure.save(options, {"load_before": load, "quick": options.quick} | figures)
    seen = look_at_host(options)
    options.cores = seen["cores"]
    options.ranks = options.ranks or powers_up_to(seen["cores"])
    rounds = []
    for number in range(options.rounds):
        rounds.append(run_round(number, options, started))
        results = results_of(rounds, seen)
        measure.save(options, {"host": seen, "load_before": load, "quick": options.quick,
                               "rounds": len(rounds), "results": results})
    measure.progress(started, "")
    print_results(results, seen)


if __name__ == "__main__":
    main()
