#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares ranks of two hosts under Lockstep, over each engine, with three peers. These are the
engine's own all_reduce in a program without Lockstep, PyTorch's Gloo, and, for training steps,
PyTorch's DistributedDataParallel over Gloo. The hosts are network namespaces of this machine, which
need root, each with its share of the CPUs. Their link is unshaped, or shaped to 1 Gbit/s.

all_reduce is of floats, in place. Lockstep's two levels (shm+ENGINE) work on registered memory and
on any memory. They are compared with the flat way (ENGINE alone) and with the engine's own. A
call's time is that of the slowest rank; a figure is the median of its calls. Training uses the CNN
of ./dev bench ddp, on the backend that Lockstep chooses.

Prints the median and range of the rounds' ratios.

Local steps train the CNN on Fashion-MNIST (Debian's dataset-fashion-mnist, or LOCKSTEP_DATA), with
the fewest ranks a host. The sides are DiLoCo, with a synchronisation every 100 steps,
DistributedDataParallel, and no communication, which is the machine's limit. Final losses of the
first two are compared once, after 2,000 steps on an unshaped link, unless --quick.

Parts of a step are those of the CNN with one rank a host and 1 Gbit/s, by the packets that the
kernel records. This needs tracefs. The cost of a pause of 70 ms in a step of PyTorch is measured,
too.

Two CPUs need some 8 minutes for: ./dev bench hosts --only ddp local_steps --links "1 Gbit/s"
"""

import os
import sys
import time

import jobs
import report
import step_parts
from all_reduce import Engines, measure_all_reduce
from jobs import measure
from training import measure_local_steps, measure_losses, measure_training

EXAMPLES = """examples:
  ./dev bench hosts
  ./dev bench hosts --quick
  ./dev bench hosts --only ddp --links "1 Gbit/s" --rounds 7
  ./dev bench hosts --only local_steps --links "1 Gbit/s" --ranks 1
  ./dev bench hosts --only step_parts --links "1 Gbit/s" --ranks 1
  ./dev bench hosts --only all_reduce --engines gloo oneccl --ranks 2 --json hosts.json
"""

PARTS = ("all_reduce", "ddp", "local_steps", "step_parts")
ENGINES = ("gloo", "mpi", "oneccl")


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)

    def choice(name, values, what, **more):
        parser.add_argument(name, nargs="+", choices=values, default=list(values), metavar=what,
                            help=f"of {', '.join(map(str, values))}: all", **more)

    choice("--only", PARTS, "PART")
    choice("--engines", ENGINES, "ENGINE")
    choice("--links", list(jobs.LINKS), "LINK")
    choice("--ranks", (1, 2), "N", type=int)
    parser.add_argument("--rounds", type=int, help="how often each side runs: 3, with --quick 1")
    parser.add_argument("--quick", action="store_true",
                        help="one round of a third of the calls: for a first look")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 1 if options.quick else 3
    if options.rounds < 1:
        parser.error("rounds must be positive")
    if why := jobs.network_hosts.why_not():
        parser.error(f"no hosts can be made here: {why}")
    if not any(is_measured(part, link, ranks, options) for part in options.only
               for link in options.links for ranks in options.ranks):
        parser.error(f"step_parts needs --links \"{step_parts.LINK}\" and --ranks "
                     f"{step_parts.RANKS}")
    if "all_reduce" in options.only:
        measure.require_built(parser, options, "bench_collectives")
        measure.require_built(parser, options, "bench_hosts_engine")
    if {"ddp", "step_parts"} & set(options.only):
        measure.require_built(parser, options, "bench_ddp")
    if "local_steps" in options.only:
        measure.require_built(parser, options, "bench_hosts_local_steps")
    return options


def is_measured(part, link, ranks, options):
    if part == "local_steps":
        return ranks == min(options.ranks)
    return part != "step_parts" or (link, ranks) == (step_parts.LINK, step_parts.RANKS)


def run_round(number, options, parts, started):
    """Returns the figures of each part, by link and ranks per host."""
    figures = {}
    for link in options.links:
        with jobs.hosts_of(link) as hosts:
            for ranks in options.ranks:
                job = jobs.Job(hosts, ranks, options)

                def say(side, ranks=ranks, link=link):
                    measure.progress(started, f"round {number + 1} of {options.rounds}: {side}, "
                                              f"ranks a host: {ranks}, link {link}")

                for name, act in parts.items():
                    if is_measured(name, link, ranks, options):
                        figures[name, link, ranks] = act(job, link, number, say)
    return figures


def losses_of(options, started):
    """Returns the final losses of local steps; none with --quick."""
    if options.quick or "local_steps" not in options.only:
        return {}
    with jobs.hosts_of("as it is") as hosts:
        return measure_losses(jobs.Job(hosts, 1, options),
                              lambda kind: measure.progress(started, kind))


def main():
    options = parse_options()
    load = measure.warn_if_busy()
    engines = Engines(options)
    parts = {"all_reduce": lambda *args: measure_all_reduce(engines, options, *args),
             "ddp": lambda *args: measure_training(engines.absent, options, *args),
             "local_steps": lambda job, link, *args: measure_local_steps(options, job, *args)}
    if "step_parts" in options.only:
        if why := step_parts.why_not(options):
            engines.absent["parts of a step"] = why
        else:
            parts["step_parts"] = lambda job, link, *args: step_parts.measure_step_parts(
                options, job, *args)
    parts = {name: act for name, act in parts.items() if name in options.only}
    if not parts:
        sys.exit(f"nothing can be measured: {engines.absent['parts of a step']}")
    started = time.monotonic()
    losses = losses_of(options, started)
    rounds = []
    for number in range(options.rounds):
        rounds.append(run_round(number, options, parts, started))
        measure.progress(started, "")
        results = report.results_of(rounds, losses)
        measure.save(options, {"cpus": len(os.sched_getaffinity(0)), "load_before": load,
                               "rounds": len(rounds), "quick": options.quick,
                               "absent": engines.absent, **results})
    report.print_all(results, options, engines.absent)


if __name__ == "__main__":
    main()
