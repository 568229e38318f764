# SPDX-License-Identifier: Apache-2.0
"""`./dev bench scale --simulate`: how the start and the changes of a job grow with its hosts, on
virtual time (tests/simulation/scale, explained in docs/internals/scaling.md)."""

import math
import re
import statistics
import sys

import measure

RANKS = 8
HOSTS = (1, 8, 32, 128, 1000, 10_000)
QUICK_HOSTS = (1, 8, 32, 128)
REAL_HOSTS = (8, 32, 128)
PHASES = {"agents_ms": "hosts start", "ranks_ms": "ranks connect to the store"}
FACTOR = 2  # The model's error.
MOST_CONNECTIONS = 10_000
# In larger jobs, the server's replies with the table of ranks have 1 TB, and simulated survivors
# ask for hours: only launchers are simulated.
MOST_HOSTS_OF_RANKS = 1000
# Assumed: no figure of this host can give it.
NETWORK = {"latency_ns": 50_000, "gigabits": 25}


def programs(options):
    folder = options.build / "tests"
    found = {name: folder / name for name in ("simulate_scale", "scale_costs")}
    found["bench_rendezvous"] = options.build / "bin" / "bench_rendezvous"
    for path in found.values():
        if not path.exists():
            sys.exit(f"no {path}: ./dev bench builds it, unless tests are disabled")
    return found


def measured_costs(found):
    """Returns nanoseconds of CPU time by name, and how much slower this host is for its load."""
    output = measure.run([found["scale_costs"]])
    costs = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", output)}
    return costs, costs.pop("slowness")


def words_of(costs):
    return [word for name, value in costs.items() for word in ("--cost", f"{name}={value}")]


def milliseconds(output):
    return {phase: float(re.search(rf"{phase} ([\d.]+)", output)[1]) for phase in PHASES}


# --- The model and the real rendezvous ----------------------------------------------------------

def compare(found, options, cores, show):
    """Returns the costs of all rounds, and the results of real and predicted rendezvous."""
    rounds, seen = [], {(hosts, phase): [] for hosts in REAL_HOSTS for phase in PHASES}
    for number in range(options.rounds):
        for hosts in measure.in_turn(number, REAL_HOSTS):
            show(f"round {number + 1} of {options.rounds}: a real rendezvous of {hosts} hosts")
            costs, slowness = measured_costs(found)
            rounds.append(costs)
            real = milliseconds(measure.run([found["bench_rendezvous"], "--hosts", hosts,
                                             "--ranks", RANKS]))
            model = milliseconds(measure.run([found["simulate_scale"], "--hosts", hosts, "--ranks",
                                              RANKS, "--one-machine", cores, *words_of(costs)]))
            for phase in PHASES:
                seen[hosts, phase].append((model[phase] * slowness, real[phase]))
    results = []
    for (hosts, phase), pairs in seen.items():
        results.append({"what": PHASES[phase], "hosts": hosts, "ranks": hosts * RANKS,
                        "model_ms": statistics.median(model for model, _ in pairs),
                        "real_ms": statistics.median(real for _, real in pairs),
                        **measure.spread([model / real for model, real in pairs])})
    return rounds, results


def medians(rounds):
    return {name: statistics.median(costs[name] for costs in rounds) for name in rounds[0]}


# --- Many hosts ---------------------------------------------------------------------------------

FIELDS = ("what", "seconds", "messages_in", "messages_out", "bytes_in", "bytes_out", "connections",
          "real_seconds", "note")


def simulate(found, hosts, costs, options):
    """Returns one result for each event of a job of so many hosts."""
    parts = ["--parts", "launchers", "tree"] if hosts > MOST_HOSTS_OF_RANKS else []
    output = measure.run([found["simulate_scale"], "--hosts", hosts, "--ranks", RANKS, "--limit",
                          options.limit, *parts, *words_of(costs)])
    results = []
    for line in output.splitlines():
        event = dict(zip(FIELDS, line.split("\t")))
        for name in FIELDS[2:7]:
            event[name] = int(event[name])
        event["seconds"] = None if event["seconds"] == "-" else float(event["seconds"])
        event["real_seconds"] = float(event["real_seconds"])
        results.append({"hosts": hosts} | event)
    return results


def of_bytes(count):
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count} B" if unit == "B" else f"{measure.short(count)} {unit}"
        count /= 1000


def of_seconds(seconds):
    return "-" if seconds is None else f"{measure.short(seconds * 1e3)} ms" if seconds < 1 else (
        f"{measure.short(seconds)} s")


def row_of(result, limit):
    time = of_seconds(result["seconds"]) if result["seconds"] is not None else f"> {limit} s"
    return (str(result["hosts"]), result["what"], time,
            f"{result['messages_in']}; {result['messages_out']}",
            f"{of_bytes(result['bytes_in'])}; {of_bytes(result['bytes_out'])}",
            str(result["connections"]), f"{result['real_seconds']:.1f}", result["note"])


def print_table(columns, rows):
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        print("  ".join(cells).rstrip())


def print_comparison(results):
    print("one machine: the model, and the real rendezvous")
    print_table(("hosts", "ranks", "", "model, ms", "real, ms", "model / real"),
                [(str(one["hosts"]), str(one["ranks"]), one["what"],
                  measure.short(one["model_ms"]), measure.short(one["real_ms"]),
                  f"{measure.short(one['ratio'])} ({measure.short(one['ratio_low'])} - "
                  f"{measure.short(one['ratio_high'])})") for one in results])


def growth(events):
    """Returns, for each event, how its time grows between the two largest jobs in which it ended:
    the exponent of the number of hosts, and whether it grows faster than its logarithm."""
    by_what = {}
    for one in events:
        if one["seconds"] and one["hosts"] > 1:
            by_what.setdefault(one["what"], []).append(one)
    found = []
    for what, ended in by_what.items():
        few, many = sorted(ended, key=lambda one: one["hosts"])[-2:] if len(ended) > 1 else (0, 0)
        if not many:
            continue
        times, hosts = many["seconds"] / few["seconds"], many["hosts"] / few["hosts"]
        found.append({"what": what, "from_hosts": few["hosts"], "to_hosts": many["hosts"],
                      "exponent": math.log(times) / math.log(hosts),
                      "faster_than_log": times > math.log(many["hosts"]) / math.log(few["hosts"])})
    return found


def judge(results):
    """Prints the ratios that are off, growth, and what needs too many connections to one host."""
    for one in results["comparison"]:
        if not 1 / FACTOR <= one["ratio"] <= FACTOR:
            print(f"the model is off by more than {FACTOR}: {one['hosts']} hosts, {one['what']}")
    for one in results["growth"]:
        if one["faster_than_log"]:
            print(f"grows faster than log N: {one['what']}, with N^{one['exponent']:.2f} from "
                  f"{one['from_hosts']} to {one['to_hosts']} hosts")
    for hosts in sorted({one["hosts"] for one in results["events"]}):
        launchers, ranks = hosts - 1, hosts * RANKS
        if launchers + ranks > MOST_CONNECTIONS:
            print(f"{hosts} hosts: {launchers + ranks} connections at the coordinator's host, "
                  f"{launchers} of launchers and {ranks} of ranks")


def run(options, cores, show):
    """Prints all, and returns the figures for --json and --svg."""
    found = programs(options)
    rounds, comparison = compare(found, options, cores, show)
    costs = medians(rounds) | NETWORK
    events = []
    for hosts in options.hosts or (QUICK_HOSTS if options.quick else HOSTS):
        show(f"simulating {hosts} hosts with {RANKS} ranks each")
        events += simulate(found, hosts, costs, options)
    show("")
    figures = {"costs_ns": costs, "comparison": comparison, "events": events,
               "growth": growth(events)}
    print("costs of this host, ns of CPU time: "
          + ", ".join(f"{name} {measure.short(value)}" for name, value in costs.items()
                      if name not in NETWORK))
    print(f"assumed network: {NETWORK['latency_ns'] / 1e3:.0f} us one way, "
          f"{NETWORK['gigabits']} Gbit/s at the coordinator's host\n")
    print_comparison(comparison)
    print(f"\n{RANKS} ranks on each host; at the coordinator's host: messages and bytes in; out")
    print_table(("hosts", "", "time", "messages", "bytes", "connections", "real s", ""),
                [row_of(one, options.limit) for one in events])
    judge(figures)
    return figures
