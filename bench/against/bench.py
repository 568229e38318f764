#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares this build with another build of Lockstep, such as that of an older commit. It measures
training steps of the CNN on 2 ranks, collectives between them, and the launcher.

A ratio is the other build's time over this one's in one round, printed as median and range: above
1, this build is faster. The programs of both builds must take the same options. The exit code is 1
if a figure is worse in every round.
"""

import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("", "collectives", "ddp"):
    sys.path.append(str(HERE.parent / folder))
import measure  # noqa: E402, from the folder above
import sides  # noqa: E402, from ddp/
from cases import KB, MB, Case, case_text, figures_of  # noqa: E402, from collectives/

EXAMPLES = """examples:
  ./dev bench against --other ../before/build/release
  ./dev bench against --other ../before/build/release --parts collectives --rounds 9
"""

# By batch size: warm-up steps, timed steps.
TRAINING = {4: (40, 200), 32: (10, 60), 128: (4, 20)}

# By bytes: calls in a batch, batches.
CALLS = {KB: (32, 4000), 64 * KB: (16, 1000), MB: (1, 600), 8 * MB: (1, 60)}
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
INIT_RANKS = (2, 8, 32)


def ddp(build):
    """Returns the ms of a step by batch size."""
    times = {}
    for batch, (warmup, steps) in TRAINING.items():
        case = sides.Case("cnn", batch, 2, False, warmup, steps)
        output = measure.run(measure.lockstep_run(build, 2, "bench_ddp", *sides.work_of(case)))
        rate = sides.figures_of(output)["samples_per_second"]
        times[f"step, batch {batch}, ms"] = 2 * batch / rate * 1e3
    return times


def collectives(build):
    """Returns the microseconds of a call by operation, bytes and memory."""
    work = [case_text(Case(operation, 2, size, memory), batches, calls)
            for operation in OPERATIONS for size, (calls, batches) in CALLS.items()
            for memory in ("registered", "any")]
    work.append(case_text(Case("barrier", 2, 0, "none"), 4000, 32))
    output = measure.run(measure.lockstep_run(build, 2, "bench_collectives", *work))
    return {f"{case.operation}, {case.bytes // KB} KB, {case.memory} memory, us" if case.bytes
            else f"{case.operation}, us": microseconds
            for case, microseconds in figures_of(output, 2).items()}


def launcher(build):
    """Returns the ms of a job's start and end, and of init_process_group() by ranks."""
    begin = time.monotonic()
    measure.run([build / "bin" / "lockstep", "run", "-n", 2, "/bin/true"])
    times = {"job of /bin/true, 2 ranks, ms": (time.monotonic() - begin) * 1e3}
    for ranks in INIT_RANKS:
        output = measure.run(measure.lockstep_run(build, ranks, "bench_launcher", "init"))
        seen = measure.times_in(output)
        times[f"init_process_group(), {ranks} ranks, ms"] = (
            max(seen["end"]) - max(seen["begin"])) / 1e6
    return times


PARTS = {"ddp": ddp, "collectives": collectives, "launcher": launcher}


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--other", type=pathlib.Path, required=True,
                        help="the other build folder, with its benchmarks built")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS),
                        help="measure these alone")
    parser.add_argument("--rounds", type=int, default=5, help="how often each build runs: 5")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be positive")
    for build in (options.build, options.other):
        for program in ("bench_ddp", "bench_collectives", "bench_launcher"):
            if not (build / "bin" / program).exists():
                parser.error(f"no {program} in {build}/bin; build its targets bench_ddp, "
                             "bench_collectives and bench_launcher")
    return options


def measured(part, options, show):
    """Returns the figures of `part` by name: the times of both builds in all rounds."""
    builds, rounds = {"this": options.build, "other": options.other}, []
    for number in range(options.rounds):
        rounds.append({})
        for side in measure.in_turn(number, builds):
            show(f"round {number + 1} of {options.rounds}: {part}, {builds[side]}")
            rounds[-1][side] = PARTS[part](builds[side])
    return {name: {side: [figures[side][name] for figures in rounds] for side in builds}
            for name in rounds[0]["this"]}


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, results = time.monotonic(), {}
    print(f"{'':<52}{'this':>9}{'other':>9}{'other / this':>14}   low - high")
    for part in options.parts:
        figures = measured(part, options, lambda text: measure.progress(started, text))
        measure.progress(started, "")
        for name, times in figures.items():
            times |= measure.spread([b / a for a, b in zip(times["this"], times["other"])])
            print(f"{name:<52}{measure.short(statistics.median(times['this'])):>9}"
                  f"{measure.short(statistics.median(times['other'])):>9}{times['ratio']:>14.3f}   "
                  f"{times['ratio_low']:.2f} - {times['ratio_high']:.2f}", flush=True)
        results |= figures
        measure.save(options, results)
    worse = [name for name, times in results.items() if times["ratio_high"] < 1]
    print(f"\n{len(worse)} of {len(results)} figures are worse in every round"
          + "".join(f"\n  {name}" for name in worse))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
