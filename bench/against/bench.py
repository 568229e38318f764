#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares this build with another build of Lockstep, such as that of an older commit: training
steps of the CNN on 2 ranks, collectives between them, and the launcher.

Both builds run in turn, several rounds. A ratio is the other build's time over this one's in one
round, printed as median and range: above 1, this build is faster. The programs of both builds must
take the same options. The exit code is 1 if a figure is worse in every round.
"""

import pathlib
import re
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench against --other ../before/build/release
  ./dev bench against --other ../before/build/release --parts collectives --rounds 9
"""

# By batch size: warm-up steps, timed steps.
TRAINING = {4: (40, 200), 32: (10, 60), 128: (4, 20)}

# By bytes: calls in a batch, batches.
CALLS = {1 << 10: (32, 4000), 1 << 16: (16, 1000), 1 << 20: (1, 600), 1 << 23: (1, 60)}
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
INIT_RANKS = (2, 8, 32)


def ddp(build):
    """Returns the ms of a step by batch size."""
    times = {}
    for batch, (warmup, steps) in TRAINING.items():
        output = measure.run(measure.lockstep_run(
            build, 2, "bench_ddp", "--model", "cnn", "--batch", batch, "--warmup", warmup,
            "--steps", steps))
        rate = float(re.search(r"samples_per_second ([\d.e+]+)", output)[1])
        times[f"step, batch {batch}, ms"] = 2 * batch / rate * 1e3
    return times


def collectives(build):
    """Returns the microseconds of a call by operation, bytes and memory."""
    work = [f"{operation}:{memory}:{size}:{1 + batches // 10}:{batches}:{calls}"
            for operation in OPERATIONS for size, (calls, batches) in CALLS.items()
            for memory in ("registered", "any")]
    work.append("barrier:none:0:400:4000:32")
    output = measure.run(measure.lockstep_run(build, 2, "bench_collectives", *work))
    found = re.findall(r"figure (\w+) (\w+) (\d+) ([\d.]+)", output)
    return {f"{operation}, {int(size) >> 10} KB, {memory} memory, us" if int(size)
            else f"{operation}, us": float(microseconds)
            for operation, memory, size, microseconds in found}


def launcher(build):
    """Returns the ms of a job's start and end, and of init_process_group() by ranks."""
    begin = time.monotonic()
    measure.run([build / "bin" / "lockstep", "run", "-n", 2, "/bin/true"])
    times = {"job of /bin/true, 2 ranks, ms": (time.monotonic() - begin) * 1e3}
    for ranks in INIT_RANKS:
        output = measure.run(measure.lockstep_run(build, ranks, "bench_launcher", "init"))
        begins, ends = ([int(ns) for ns in re.findall(rf"\b{word} (\d+)", output)]
                        for word in ("begin", "end"))
        times[f"init_process_group(), {ranks} ranks, ms"] = (max(ends) - max(begins)) / 1e6
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
    rounds = []
    for number in range(options.rounds):
        rounds.append({})
        for build in measure.in_turn(number, (options.build, options.other)):
            show(f"round {number + 1} of {options.rounds}: {part}, {build}")
            rounds[-1][build] = PARTS[part](build)
    return {name: {"this": [figures[options.build][name] for figures in rounds],
                   "other": [figures[options.other][name] for figures in rounds]}
            for name in rounds[0][options.build]}


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
        if options.json:
            measure.save(options.json, results)
    worse = [name for name, times in results.items() if times["ratio_high"] < 1]
    print(f"\n{len(worse)} of {len(results)} figures are worse in every round"
          + "".join(f"\n  {name}" for name in worse))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
