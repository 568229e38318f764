#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long `lockstep run` takes to start a job and to end it when a rank dies, against
torchrun. It also measures init_process_group(), against PyTorch's with Gloo, and the cost of a
rendezvous of many hosts.

Prints the median and range of the rounds' ratios.
"""

import pathlib
import re
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench launcher
  ./dev bench launcher --quick
  ./dev bench launcher --parts init --rounds 10 --json launcher.json
"""

PARTS = ("start", "ready", "init", "death", "rendezvous")
INIT_RANKS = (2, 8, 32)
INIT_RANKS_ALONE = 256
RESIDENT_GB = (0, 2)
HOSTS = (8, 32, 128)
RANKS_OF_A_HOST = 8


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--rounds", type=int, help="how often each side runs: 5, with --quick 2")
    parser.add_argument("--quick", action="store_true",
                        help="two rounds, and PyTorch with 2 and 8 ranks only: for a first look")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help=f"measure these alone, of: {', '.join(PARTS)}")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    if options.rounds < 1:
        parser.error("rounds must be positive")
    measure.require_built(parser, options, "bench_launcher")
    return options


class Bench:
    def __init__(self, options):
        self.options = options
        self.started = time.monotonic()
        self.figures = {}

    def ours(self, ranks, *words):
        return measure.lockstep_run(self.options.build, ranks, "bench_launcher", *words)

    def theirs(self, ranks, *words):
        return measure.torchrun(self.options.python, ranks, HERE / "peers.py", *words)

    def show(self, text):
        measure.progress(self.started, text)

    def table(self, title, columns, rows):
        self.show("")
        widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
        print(f"\n{title}")
        for row in [columns, *rows]:
            print("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)))

    def compare(self, title, cases):
        """Measures cases: a name, and functions that return the ms of our side and of theirs (or
        None)."""
        seen = {name: {"Lockstep": [], "PyTorch": []} for name, *_ in cases}
        for number in range(self.options.rounds):
            for name, ours, theirs in cases:
                sides = [("Lockstep", ours)] + ([("PyTorch", theirs)] if theirs else [])
                for side, act in measure.in_turn(number, sides):
                    self.show(
                        f"round {number + 1} of {self.options.rounds}: {title}, {name}, {side}")
                    seen[name][side].append(act())
        rows = []
        for name, sides in seen.items():
            ours, theirs = sides["Lockstep"], sides["PyTorch"]
            figure = {"lockstep_ms": statistics.median(ours), "lockstep_worst_ms": max(ours)}
            row = [name, f"{figure['lockstep_ms']:.2f}", f"{max(ours):.2f}", "", ""]
            if theirs:
                figure |= {"pytorch_ms": statistics.median(theirs),
                           **measure.spread([b / a for a, b in zip(ours, theirs)])}
                row[3:] = [f"{figure['pytorch_ms']:.1f}", f"{figure['ratio']:.1f} "
                           f"({figure['ratio_low']:.1f} - {figure['ratio_high']:.1f})"]
            self.figures.setdefault(title, {})[name] = figure
            rows.append(row)
        self.table(title, ("", "Lockstep, ms", "worst, ms", "PyTorch, ms", "PyTorch / Lockstep"),
                   rows)

    def start(self):
        def seconds(command):
            begin = time.monotonic()
            measure.run(command)
            return (time.monotonic() - begin) * 1e3

        lockstep = [self.options.build / "bin" / "lockstep", "run", "-n", 2, "/bin/true"]
        torchrun = [
            self.options.python, "-m", "torch.distributed.run", "--standalone", "--no-python",
            "--nproc-per-node", 2, "/bin/true"
        ]
        self.compare("a job of 2 ranks of /bin/true, from its start to its end",
                     [("2 ranks", lambda: seconds(lockstep), lambda: seconds(torchrun))])

    def ready(self):
        def time_of(command):
            begin = time.monotonic_ns()
            return (max(measure.times_in(measure.run(command))["end"]) - begin) / 1e6

        cases = [(f"{ranks} ranks", lambda ranks=ranks: time_of(self.ours(ranks, "init")),
                  lambda ranks=ranks: time_of(self.theirs(ranks, "init")))
                 for ranks in INIT_RANKS[:2]]
        self.compare("from the launcher's start to the last return of init_process_group()", cases)

    def init(self):
        def time_of(command):
            times = measure.times_in(measure.run(command))
            return (max(times["end"]) - max(times["begin"])) / 1e6

        quick = self.options.quick
        cases = [(f"{ranks} ranks", lambda ranks=ranks: time_of(self.ours(ranks, "init")),
                  None if quick and ranks > 8
                  else lambda ranks=ranks: time_of(self.theirs(ranks, "init")))
                 for ranks in INIT_RANKS]
        cases.append((f"{INIT_RANKS_ALONE} ranks",
                      lambda: time_of(self.ours(INIT_RANKS_ALONE, "init")), None))
        self.compare("init_process_group(), from the last rank's call to the last return", cases)

    def death(self):
        def of(kind, command):
            command = [str(word) for word in command]
            done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            end = time.monotonic_ns()
            times = measure.times_in(done.stdout)
            if "error" not in times:
                sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
            until = max(times["error"]) if kind == "error" else end
            return (until - times["killed"][0]) / 1e6

        cases = [(f"{gb} GB, {what}",
                  lambda gb=gb, kind=kind: of(kind, self.ours(3, "kill", "--gb", gb)),
                  lambda gb=gb, kind=kind: of(kind, self.theirs(3, "kill", gb)))
                 for gb in RESIDENT_GB
                 for kind, what in (("error", "the last survivor's Error"),
                                    ("exit", "the launcher's exit"))]
        self.compare("from the SIGKILL of one of 3 ranks, with so much resident, to", cases)

    def rendezvous(self):
        rows = []
        for hosts in HOSTS:
            self.show(f"a rendezvous of {hosts} hosts")
            runs = []
            for _ in range(self.options.rounds):
                done = measure.run([
                    self.options.build / "bin" / "bench_rendezvous", "--hosts", hosts, "--ranks",
                    RANKS_OF_A_HOST
                ])
                runs.append(dict(re.findall(r"(\w+) ([\d.]+)", done)))
            figure = {key: statistics.median(float(run[key]) for run in runs) for key in runs[0]}
            self.figures.setdefault("rendezvous", {})[hosts] = figure
            ranks = hosts * RANKS_OF_A_HOST
            rows.append((ranks, hosts, f"{figure['agents_ms']:.1f}", f"{figure['ranks_ms']:.1f}",
                         f"{figure['bytes'] / ranks:.0f}", f"{figure['connections']:.0f}"))
        self.table("a rendezvous of many hosts, all on this one's loopback",
                   ("ranks", "hosts", "hosts started, ms", "ranks met in the store, ms",
                    "bytes a rank", "connections"), rows)


def main():
    options = parse_options()
    load = measure.warn_if_busy()
    bench = Bench(options)
    bench.figures["load"] = load
    for part in options.parts:
        getattr(bench, part)()
    measure.save(options, bench.figures)


if __name__ == "__main__":
    main()
