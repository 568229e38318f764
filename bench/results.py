#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps the figures of docs/benchmarks.md and docs/more-benchmarks.md.

  bench/results.py record [NAME...]  runs all benchmarks of the pages, or these (an hour and a half
                                     on two cores), and keeps each one's figures in bench/results
  bench/results.py tables            writes the pages' tables and plots from these figures
"""

import argparse
import datetime
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, NamedTuple

import measure
import ratio_plot
from measure import short

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
PAGES = [ROOT / "docs" / name for name in ("benchmarks.md", "more-benchmarks.md")]
PLOTS = ("ddp", "model-parallel")  # In docs/images.


# --- Rows ---------------------------------------------------------------------------------------

class Rows(dict):
    """The cells of a table by row and column, both in the order of their first use."""

    def put(self, row, column, *texts):
        found = "; ".join(text for text in texts if text)
        if found:
            self.setdefault(row, {})[column] = found

    def columns(self):
        return list(dict.fromkeys(column for row in self.values() for column in row))


def ratio(spread):
    """Returns the median and, in brackets, the range; empty without a peer."""
    return (f"{short(spread['ratio'])} ({short(spread['ratio_low'])} - "
            f"{short(spread['ratio_high'])})") if spread and "ratio" in spread else ""


def middle(values):
    return short(statistics.median(values)) if values else "-"


def size_of(count):
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB"


def collectives(figures):
    rows = Rows()
    for case in figures["cases"]:
        times, size = case["microseconds"], case["bytes"]
        if not size:
            rows.put("barrier, 2 ranks", "1 KB", middle(times["Lockstep"]), ratio(case))
            continue
        row = f"{case['operation']}, {case['ranks']} ranks, {case['memory']}"
        rows.put(row, size_of(size), middle(times["Lockstep"]), ratio(case))
        if row == "all_reduce, 2 ranks, any":
            rows.put("all_reduce, 2 ranks: Open MPI; Gloo", size_of(size),
                     *(middle(times.get(peer)) for peer in ("Open MPI", "Gloo")))
    return rows


# By the name of a side of bench/ddp.
PEERS = {"PyTorch": "to PyTorch", "PyTorch amp": "to PyTorch with autocast",
         "PyTorch compile": "to PyTorch with torch.compile",
         "PyTorch amp compile": "to PyTorch with autocast and torch.compile",
         "Lockstep": "to eager Lockstep", "Lockstep amp": "to eager Lockstep with autocast",
         "all threads": "to all threads", "all threads amp": "to all threads with autocast",
         "small pages": "to small pages",
         "alone small pages": "bare copies, to small pages", "bind core": "to `--bind core`"}


def steps(figures):
    rows = Rows()
    for case in figures:
        batch = f"batch {case['batch']}"
        column = batch if case["model"] == "cnn" else f"{case['model']}, {batch}"
        kind = "`find_unused_parameters`: " if case["find_unused"] else ""
        if case["beside"]:
            kind = f"beside {case['beside']} busy processes of nice value {case['nice']}: "
        ours = "Lockstep amp" if "Lockstep amp" in case else "Lockstep"
        rows.put(f"{kind}samples/s", column, short(case[ours]["samples_per_second"]))
        for peer, spread in case["ratios"].items():
            rows.put(f"{kind}{PEERS[peer]}", column, ratio(spread))
        rows.put(f"{kind}to bare copies", column, ratio(case["efficiency"]))
    return rows


def shared_parameters(figures):
    rows = Rows()
    for case in figures["speed"]:
        column, model = f"batch {case['batch']}", f"shared parameters, {case['model']}"
        rows.put(f"{model}: samples/s", column, short(case["shared"]["samples_per_second"]))
        for peer, spread in case["comparisons"].items():
            rows.put(f"{model}: {peer.replace('alone', 'bare copies')}", column, ratio(spread))
    return rows


def compiled(figures):
    rows = Rows()
    for case in figures:
        column = f"batch {case['batch']}"
        rows.put("compiled: samples/s", column, short(case["medians"]["compiled"]))
        for peer, spread in case["ratios"].items():
            rows.put(f"compiled: {PEERS[peer]}", column, ratio(spread))
    return rows


def deterministic(figures):
    rows = Rows()
    for case in figures:
        for name, spread in case.items():
            if name.endswith("microbatches"):
                rows.put(f"deterministic, {name}: to plain steps", f"batch {case['batch']}",
                         ratio(spread))
    return rows


def prune(figures):
    rows = Rows()
    for case in figures:
        rows.put("half of the channels pruned: to the whole model",
                 f"{case['model']}, batch {case['batch']}", ratio(case))
    return rows


def model_parallel(figures):
    rows = Rows()
    for case in figures:
        labels = [name for name in case if name not in ("kind", "width", "rounds")]
        ours = next(iter(case["rounds"][0]))
        rows.put("; ".join([case["kind"], *labels]),
                 f"width {case['width']}", middle([one[ours] for one in case["rounds"]]),
                 *(ratio(case[label]) for label in labels))
    return rows


def inference(figures):
    rows = Rows()
    for case in figures:
        for name, cost in case.get("us a call", {}).items():
            rows.put("us of Python a call", name, short(cost))
        for side in case["rounds"][0] if "rounds" in case else ():
            times = [one[side] for one in case["rounds"]]
            shares = [one["communication"] for one in times if one.get("communication")]
            share = f"{statistics.median(shares):.0%} communication" if shares else ""
            rows.put(f"{side}, ms a token", f"width {case['width']}",
                     middle([one["ms"] for one in times]), share, ratio(case["ratios"].get(side)))
    return rows


def plan(figures):
    rows = Rows()
    for case in figures:
        column, first = f"width {case['width']}", case["layouts"][0]
        rows.put("first choice of `lockstep plan`: predicted; measured, ms", column,
                 short(first["step_seconds"] * 1e3), middle(first["ms"]))
        rows.put(f"its time, to the fastest of {len(case['layouts'])} layouts", column,
                 ratio(case["first choice"]))
    return rows


def memory(figures):
    rows = Rows()
    for case in figures:
        row = case["parallel"]
        if case["exit"] != 0:
            rows.put(row, "most, GB", f"does not fit (exit code {case['exit']})")
            continue
        rows.put(row, "most, GB", short(case["peak"] / 1e9))
        rows.put(row, "model between steps, GB",
                 short((case["resident"] - case["without_model"]) / 1e9))
        rows.put(row, "predicted, GB", short(case["predicted"] / 1e9))
    return rows


def data(figures):
    rows = Rows()
    for case in figures:
        (ours, own), *others = case["sides"].items()
        for name, side in others:
            row = f"{case['unit']}: {ours}, {name}"
            rows.put(row, "first", short(own["cost"]))
            rows.put(row, "second", short(side["cost"]))
            rows.put(row, "second / first", ratio(side))
    return rows


def python(figures):
    rows = Rows()
    for case in figures:
        column = case["launcher"]
        if case.get("case") == "fake":
            rows.put('all_reduce, 1 KB: us more than with the backend "fake"', column,
                     short(case["over"]))
            continue
        if "case" in case:
            operation, size, kind = case["case"].split(":")
            operation = {"asynchronous": "all_reduce, async_op", "send_recv": "send and recv"}.get(
                operation, operation)
            row = f"{operation}, {size_of(int(size))}{', registered' * (kind == 'registered')}, us"
        else:
            row = f"{case['program']}, ms{' a sample' * case['program'].startswith('DDP')}"
        rows.put(row, column, middle(case["lockstep"]), middle(case["gloo"]), ratio(case))
    return rows


def checkpoint(figures):
    rows = Rows()
    names = {"save": "save", "load": "load from the page cache",
             "load_cold": "load without the page cache"}
    for place in figures:
        column = place["place"]
        for figure, name in names.items():
            times = [one["Lockstep"][figure] for one in place["rounds"]
                     if figure in one["Lockstep"]]
            if times:
                rows.put(f"{name}, s; to DCP; to dd", column, middle(times),
                         *(ratio(of_base[figure]) for of_base in place["ratios"].values()))
        for which, spread in place["stall"].items():
            rows.put(f"asynchronous save, {which}: stop of training, of a synchronous save",
                     column, ratio(spread))
        for which, spread in place["memory"].items():
            rows.put(f"memory, {which}: of the checkpoint's bytes", column, ratio(spread))
    return rows


def hosts(figures):
    rows = Rows()
    for case in figures["all_reduce"]:
        row = (f"{case['link'].replace('as it is', 'veth')}, {case['ranks_a_host']} a host, "
               f"{case['engine']}, {case['memory']}")
        rows.put(row, size_of(case["bytes"]),
                 middle([one / 1e3 for one in case["microseconds"]["Lockstep"]]),
                 ratio(case.get("to_flat")) or "-", ratio(case["to_own"]))
    return rows


def hosts_training(figures):
    rows = Rows()
    for case in figures["ddp"]:
        column = f"{case['ranks_a_host']} a host, batch {case['batch']}"
        rows.put("Lockstep, samples/s", column, middle(case["samples_per_second"]["Lockstep"]))
        for name, spread in case["ratios"].items():
            rows.put(name, column, ratio(spread))
    for case in figures["local_steps"]:
        for name, spread in case["ratios"].items():
            rows.put(f"local steps: {name}", f"{case['ranks_a_host']} a host, batch 32",
                     ratio(spread))
    return rows


def launcher(figures):
    rows = Rows()
    for title, cases in figures.items():
        if title == "rendezvous":
            for count, case in cases.items():
                rows.put(f"rendezvous of {count} hosts with 8 ranks each: hosts; ranks",
                         "Lockstep, ms", short(case["agents_ms"]), short(case["ranks_ms"]))
        elif title != "load":
            for name, case in cases.items():
                row = title if "/bin/true" in title else f"{title}: {name}"
                rows.put(row, "Lockstep, ms", short(case["lockstep_ms"]))
                if "ratio" in case:
                    rows.put(row, "PyTorch, ms", short(case["pytorch_ms"]))
                    rows.put(row, "ratio", ratio(case))
    return rows


def survival(figures):
    names = {"survival": "Survival, `lockstep run --on-failure continue`",
             "restart": "restart from a checkpoint, `lockstep run --max-restarts 3`",
             "torchrun": "restart from a checkpoint, torchrun"}
    columns = {"next step": "SIGKILL to the next step, ms", "lost": "samples lost",
               "pause to join": "pause for the replacement, ms"}
    rows = Rows()
    for side, rounds in figures.items():
        for figure, column in columns.items():
            if None in rounds:
                rows.put(names[side], column, "did not go on")
                continue
            found = [one[figure] for one in rounds if figure in one]
            if found:
                rows.put(names[side], column,
                         f"{middle(found)} ({short(min(found))} - {short(max(found))})")
    return rows


def scale(figures):
    rows = Rows()
    cases = figures["results"]
    most = max(case["ranks"] for case in cases)
    for case in cases:
        if case["ranks"] != most or not case["predicted"]:
            continue
        is_sum = case["what"] == "all_reduce"
        row = f"all_reduce, {'registered' if case['registered'] else 'any'}" if is_sum else "others"
        column = size_of(case["bytes"])
        texts = [f"{short(case['microseconds'])} / {short(case['predicted'])}", ratio(case)]
        rows.put(row if is_sum else case["what"], column if is_sum else "1 KB", *texts)
    return rows


def tune(figures):
    rows = Rows()
    for case in figures:
        row = f"{case['model'].split(',')[0]}, global batch {case['global batch']}"
        rows.put(row, "choices within 3 %", f"{case['close']} of {len(case['choices'])}")
        rows.put(row, "choice to the fastest", ratio(case["choice to the fastest"]))
        rows.put(row, "longest, s", f"{max(case['seconds']):.0f}")
        rows.put(row, "samples/s by ranks x threads",
                 *(f"{name}: {middle(found)}" for name, found in case["speeds"].items()))
    return rows


# --- Results ------------------------------------------------------------------------------------

class Result(NamedTuple):
    """A file of bench/results: the options of `./dev bench`, and what makes rows of its figures."""
    options: str
    rows: Callable


OF = {
    "collectives": Result("collectives --rounds 3", collectives),
    "collectives-staged": Result("LOCKSTEP_READ_PEERS=0 collectives --quick --rounds 3",
                                 collectives),
    "ddp": Result("ddp --small-pages --rounds 3", steps),
    "ddp-bf16": Result("ddp --amp bf16 --rounds 3", steps),
    "ddp-models": Result("ddp --models resnet18 efficientnet_b0 gpt --ranks 2 --quick --rounds 3",
                         steps),
    "ddp-busy": Result("ddp --quick --rounds 3 --batches 32 --beside 2 --nice 0 19 --bind core",
                       steps),
    "shared-parameters": Result("shared-parameters --rounds 3 --models cnn", shared_parameters),
    "compiled": Result("compiled --batches 32 128 --rounds 3", compiled),
    "deterministic": Result("deterministic --rounds 3", deterministic),
    "prune": Result("prune --rounds 3", prune),
    "model-parallel": Result("model-parallel --kinds tensor fully-sharded pipeline pipeline-hosts "
                             "fully-sharded-hosts --rounds 3", model_parallel),
    "schedules": Result("model-parallel --kinds zb1p interleaved --rounds 3", model_parallel),
    "inference": Result("inference --rounds 3", inference),
    "plan": Result("plan --widths 128 256 --rounds 3", plan),
    "memory": Result("memory", memory),
    "data": Result("data --rounds 3", data),
    "python": Result("python --launchers torchrun --rounds 2", python),
    "checkpoint": Result("checkpoint --rounds 3", checkpoint),
    "hosts": Result("hosts --only all_reduce --quick --rounds 2", hosts),
    "hosts-training": Result("hosts --only ddp local_steps --links '1 Gbit/s' --quick --rounds 2",
                             hosts_training),
    "launcher": Result("launcher --rounds 3", launcher),
    "survival": Result("survival --rounds 3", survival),
    "scale": Result("scale --rounds 3", scale),
    "tune": Result("tune --models cnn gpt --repetitions 2", tune),
}


def commit():
    """Returns the checked out commit, with "-dirty" if files differ from it, except results."""
    def output(*words):
        return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()

    dirty = output("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return output("rev-parse", "--short=10", "HEAD") + ("-dirty" if dirty else "")


def command_of(name):
    """Returns the variables and the words of a command."""
    words = shlex.split(OF[name].options)
    variables = [word for word in words if re.match("[A-Z_]+=", word)]
    return variables, ["./dev", "bench", *words[len(variables):]]


def record(name):
    """Runs a benchmark. Returns whether it succeeded; otherwise the file is unchanged."""
    variables, command = command_of(name)
    text = shlex.join([*variables, *command])
    print(f"{name}: {text}", flush=True)
    began, of_commit = time.monotonic(), commit()
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder) / "figures.json"
        done = subprocess.run(["env", *variables, *command, "--json", figures], cwd=ROOT,
                              check=False)
        if done.returncode != 0 or not figures.exists():
            print(f"{name}: exit code {done.returncode}", file=sys.stderr)
            return False
        kept = {"command": text, "commit": of_commit, "host": measure.host(),
                "date": datetime.date.today().isoformat(),
                "figures": json.loads(figures.read_text())}
    measure.replace(RESULTS / f"{name}.json", json.dumps(kept, indent=1) + "\n")
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return True


def load(name):
    """Returns a result. Exits if there is none."""
    file = RESULTS / f"{name}.json"
    if name not in OF:
        sys.exit(f"a page names '{name}', which is no result")
    if not file.exists():
        sys.exit(f"no {file}: run bench/results.py record {name}")
    return json.loads(file.read_text())


def plot_of(name):
    """Returns a plot of all ratios of a result, as SVG."""
    kept = load(name)
    return ratio_plot.picture(kept["command"], ratio_plot.ratios_in(kept["figures"]))


# --- The pages ----------------------------------------------------------------------------------

def table_of(names):
    """Returns a table of these results, one below the other; the first cell of each is its
    command."""
    parts = [(kept["command"], OF[name].rows(kept["figures"]))
             for name, kept in ((name, load(name)) for name in names)]
    columns = list(dict.fromkeys(column for _, rows in parts for column in rows.columns()))
    lines = []
    for command, rows in parts:
        lines.append(line_of([f"`{command}`", *([""] * len(columns) if lines else columns)]))
        if len(lines) == 1:
            lines.append("|" + "---|" * (len(columns) + 1))
        lines += [line_of([row, *(cells.get(column, "") for column in columns)])
                  for row, cells in rows.items()]
    return "\n".join(lines) + "\n"


def line_of(cells):
    return re.sub(r"\|  (?=\|)", "| ", "| " + " | ".join(cells) + " |")


def page_of(text):
    """Returns the page with new tables after the marks."""
    page = re.sub(r"(<!-- results: (.*) -->\n)\n*(?:(?:\|.*\n)+\n*)?",
                  lambda mark: f"{mark[1]}\n{table_of(mark[2].split())}\n", text)
    return page.rstrip("\n") + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True, metavar="record|tables")
    names = commands.add_parser("record").add_argument("names", nargs="*", metavar="NAME")
    names.help = f"of {' '.join(OF)}: all"
    commands.add_parser("tables")
    options = parser.parse_args()
    if options.what == "tables":
        for page in PAGES:
            measure.replace(page, page_of(page.read_text()))
        for name in PLOTS:
            measure.replace(ROOT / f"docs/images/{name}.svg", plot_of(name))
        subprocess.run([sys.executable, ROOT / "docs/site/speed.py"], check=True)
        return 0
    for name in options.names:
        if name not in OF:
            parser.error(f"no result '{name}'; there are: {' '.join(OF)}")
    RESULTS.mkdir(exist_ok=True)
    return 0 if all([record(name) for name in options.names or OF]) else 1


if __name__ == "__main__":
    sys.exit(main())
