#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the backend "lockstep" of torch.distributed with Gloo. The Python programs differ in
nothing else, on two ranks of this host with one thread each.

Calls: both backends have a group in the same two processes, and blocks of calls alternate. A figure
is the median over all blocks. "any" is memory of torch.zeros(), "registered" that of
lockstep.empty(), "object" a Python object of so many bytes. torch's backend "fake", which does
nothing, shows the cost of Python.

Steps: each of several rounds runs training programs of bench/ddp and bench/model_parallel. A ratio
is Gloo's time over ours in one round.

Both run under torchrun, which leaves ranks on any core, and under `lockstep run`, which binds them.
A ratio above its target is marked with *.
"""

import json
import os
import pathlib
import re
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench python
  ./dev bench python --only calls --launchers torchrun
  ./dev bench python --only steps --rounds 3 --json steps.json
"""

KB, MB = 1 << 10, 1 << 20
# By case: required speed relative to Gloo.
CALLS = {
    f"all_reduce:{KB}:any": 60,
    f"all_reduce:{64 * KB}:any": 40,
    f"all_reduce:{MB}:any": 6,
    f"all_reduce:{MB}:registered": 10,
    f"all_reduce:{64 * MB}:any": 2.5,
    f"all_reduce:{64 * MB}:registered": 4,
    f"all_gather:{MB}:any": 8,
    f"all_gather:{MB}:registered": 8,
    f"reduce_scatter:{MB}:any": 8,
    f"reduce_scatter:{MB}:registered": 8,
    f"asynchronous:{KB}:any": 30,
    f"send_recv:{KB}:any": 8,
    **{f"{operation}:{50 * MB}:object": 1
       for operation in ("all_gather_object", "gather_object", "broadcast_object",
                         "scatter_object", "send_object")},
}
FAKE = f"all_reduce:{KB}:any"  # The case that is compared with torch's "fake" backend,
MOST_OVER_FAKE = 3  # and how many microseconds longer it may take.

DDP = HERE.parent / "ddp" / "train_pytorch.py"
PARALLEL = [HERE.parent / "model_parallel" / "train_pytorch.py", "--width", 256, "--layers", 4,
            "--heads", 8, "--vocabulary", 8192, "--length", 128, "--steps", 12]
# By program: its command, and required speed relative to Gloo.
STEPS = {
    "DDP, batch 4": ([DDP, "--batch", 4, "--warmup", 40, "--steps", 200], 1.4),
    "DDP, batch 32": ([DDP, "--batch", 32, "--warmup", 10, "--steps", 60], 1.15),
    "DDP, batch 128": ([DDP, "--batch", 128, "--warmup", 4, "--steps", 20], 1.0),
    "FSDP2": ([*PARALLEL, "--parallel", "fully-sharded", "--batch", 2], 1.2),
    "tensor parallel": ([*PARALLEL, "--parallel", "tensor", "--batch", 4], 1.1),
}
LAUNCHERS = ("torchrun", "lockstep run")


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES)
    parser.add_argument("--only", choices=("calls", "steps"), help="both without")
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--rounds", type=int, default=5, help="how often each program runs: 5")
    parser.add_argument("--blocks", type=int, default=15, help="of calls, of each backend: 15")
    options = parser.parse_args()
    if min(options.rounds, options.blocks) < 1:
        parser.error("at least one round and one block")
    if not list((options.build / "python" / "lockstep").glob("_C*.so")):
        parser.error(f"no package lockstep in {options.build}/python; ./dev bench builds it")
    return options


def run(launcher, options, script, *arguments):
    """Runs a script on two ranks; returns what it printed."""
    if launcher == "torchrun":
        command = measure.torchrun(options.python, 2, script, *arguments)
    else:
        command = [options.build / "bin" / "lockstep", "run", "-n", 2, options.python, script,
                   *arguments]
    path = os.pathsep.join([str(options.build / "python"), os.environ.get("PYTHONPATH", "")])
    printed = measure.run(command, PYTHONPATH=path.rstrip(os.pathsep))
    return re.sub(r"^\[\d+\] ", "", printed, flags=re.M)  # Removes the rank.


# --- Calls --------------------------------------------------------------------------------------

def blocks_of(launcher, options, peer, cases):
    """Returns the microseconds of each case's blocks, by backend."""
    printed = run(launcher, options, HERE / "calls.py", *cases, "--peer", peer,
                  "--blocks", options.blocks)
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {line.pop("case"): line for line in lines}


def compare_calls(launcher, options):
    print(f"\nus a call under {launcher}\n{'':<32}{'Lockstep':>10}{'Gloo':>10}{'ratio':>8} "
          f"{'(low - high)':<16}{'target':>7}")
    figures = []
    for case, times in blocks_of(launcher, options, "gloo", CALLS).items():
        ratio = measure.spread([theirs / ours for ours, theirs in
                                zip(times["lockstep"], times["gloo"])])
        figures.append({"launcher": launcher, "case": case, **times, **ratio,
                        "target": CALLS[case]})
        print(row(name_of(case), statistics.median(times["lockstep"]),
                  statistics.median(times["gloo"]), ratio, CALLS[case]), flush=True)
    times = blocks_of(launcher, options, "fake", [FAKE])[FAKE]
    over = statistics.median(times["lockstep"]) - statistics.median(times["fake"])
    figures.append({"launcher": launcher, "case": "fake", **times, "over": over})
    print(f"{name_of(FAKE)}: {measure.short(over)} us more than torch's \"fake\" backend"
          f"{' *' * (over <= MOST_OVER_FAKE)}", flush=True)
    return figures


def name_of(case):
    operation, size, kind = case.split(":")
    size = int(size)
    number = f"{size // MB} MB" if size >= MB else f"{size // KB} KB"
    operation = {"asynchronous": "all_reduce, async"}.get(operation, operation)
    return f"{operation:<18}{number:>6} {kind}"


def row(name, ours, theirs, ratio, target):
    spread = f"({measure.short(ratio['ratio_low'])} - {measure.short(ratio['ratio_high'])})"
    mark = "*" if ratio["ratio"] >= target else ""
    return (f"{name:<32}{measure.short(ours):>10}{measure.short(theirs):>10}"
            f"{measure.short(ratio['ratio']):>8} {spread:<16}{target:>7} {mark}")


# --- Steps --------------------------------------------------------------------------------------

def milliseconds(launcher, options, backend, command):
    """Returns the time of a step; per sample, if the program prints samples per second."""
    printed = run(launcher, options, *command, "--backend", backend)
    for line in printed.splitlines():
        if line.startswith("samples_per_second"):
            return 1e3 / float(line.split()[1])
        if line.startswith("{"):
            return json.loads(line)["ms"]
    return sys.exit(f"{command} printed no figure: {printed}")


def compare_steps(launcher, options, started):
    print(f"\nms a step (FSDP2, tensor parallel) or a sample (DDP) under {launcher}\n"
          f"{'':<32}{'Lockstep':>10}{'Gloo':>10}{'ratio':>8} {'(low - high)':<16}{'target':>7}")
    figures = []
    for name, (command, target) in STEPS.items():
        times = {"lockstep": [], "gloo": []}
        for number in range(options.rounds):
            for backend in measure.in_turn(number, times):
                measure.progress(started, f"{name}, round {number + 1} of {options.rounds}: "
                                          f"{backend}, {launcher}")
                times[backend].append(milliseconds(launcher, options, backend, command))
        measure.progress(started, "")
        ratio = measure.spread([theirs / ours for ours, theirs in
                                zip(times["lockstep"], times["gloo"])])
        figures.append({"launcher": launcher, "program": name, **times, **ratio, "target": target})
        print(row(name, statistics.median(times["lockstep"]), statistics.median(times["gloo"]),
                  ratio, target), flush=True)
    return figures


def main():
    options = parse_options()
    measure.warn_if_busy()
    started, figures = time.monotonic(), []
    for launcher in options.launchers:
        if options.only != "steps":
            figures += compare_calls(launcher, options)
        if options.only != "calls":
            figures += compare_steps(launcher, options, started)
        measure.save(options, figures)


if __name__ == "__main__":
    main()
