# SPDX-License-Identifier: Apache-2.0
"""A part of bench.py: how the time of a training step between hosts is spent.

The kernel records the packets of gradients when a device sends them; a rank's own clock measures
the rest. For comparison, PyTorch without communication shows the cost of a pause of the same
length.
"""

import collections
import contextlib
import math
import os
import pathlib
import re
import statistics
import sys
import tempfile

from jobs import HERE, HOSTS, measure, network_hosts, sides

LINK, RANKS = "1 Gbit/s", 1
BYTES_PER_MS = 125_000
CASE = sides.Case("cnn", 32, RANKS, False, 5, 100)

TRACING = pathlib.Path("/sys/kernel/tracing")
EVENT = pathlib.Path("events", "net", "net_dev_start_xmit")
BUFFERS_KB = 32 << 10  # For all CPUs: several times the need of CASE.steps.

# Headers of each packet on the wire: Ethernet, IP, and TCP with timestamps. A device gets many
# packets as one, with the headers of a single one.
HEADER_BYTES = 66
# Smaller packets carry no gradients.
LEAST_BYTES = 1000
# A step begins after a pause of this length if the previous one has sent as many bytes. The CNN's
# gradients have 8.49 million, and 8.88 with headers.
PAUSE_MS, STEP_BYTES, MOST_STEP_BYTES = 12, 8_700_000, 9_100_000
LATE_MS = 3  # Over the median.

# A pause between backward and optimizer, as long as the link needs for the gradients.
PAUSES = ("none", "sleep", "spin", "copy")
PAUSE_OF_STEP_MS = 70

# In ms. An idle link later sends some bytes at once, to compensate. `wire` is the minimum time for
# sending the bytes: `sending` without what it could not compensate, until BEGIN_BYTES were sent,
# later, and at the end.
Step = collections.namedtuple("Step", "sending wire lost_at_begin lost_later lost_at_end rest")
BEGIN_BYTES = 500_000


def why_not(options):
    """Returns why this cannot be measured here; empty if it can."""
    if not (TRACING / "instances").is_dir():
        return f"no tracefs: mount -t tracefs tracefs {TRACING}"
    if not os.access(TRACING / "instances", os.W_OK) or not (TRACING / EVENT).is_dir():
        return f"{TRACING} may not be written, or has no {EVENT}"
    return measure.why_no_torch(options.python)


def measure_step_parts(options, job, number, say):
    """Returns the parts of steps by their packets, a rank's own figures, and those with pauses."""
    work = CASE._replace(steps=CASE.steps // 3) if options.quick else CASE
    say("parts of a step")
    with traced_packets() as packets:
        figures = job.train("Lockstep", work)
    paused = {}
    for pause in measure.in_turn(number, PAUSES):
        say(f"a step with a pause: {pause}")
        paused[pause] = sides.copies(
            [options.python, HERE.parent / "ddp" / "train_pytorch.py", *sides.work_of(work),
             "--alone", "--on-cue", "--pause", pause, "--pause-ms", PAUSE_OF_STEP_MS],
            HOSTS, sides.MALLOC)
    return {"steps": [steps_of(sent, work) for sent in packets.values()], "rank": figures,
            "paused": paused}


@contextlib.contextmanager
def traced_packets():
    """Yields a dict. When the context has ended, it contains all packets sent meanwhile. Each host
    has a list of their times in ms and their bytes on the wire."""
    packets = {f"node{i + 1}": [] for i in range(HOSTS)}  # By the device that leads there.
    with trace_instance() as trace:
        (trace / "trace_clock").write_text("mono")  # The same on all CPUs.
        (trace / "buffer_size_kb").write_text(str(max(1024, BUFFERS_KB // os.cpu_count())))
        (trace / EVENT / "filter").write_text(f'len > {LEAST_BYTES} && name ~ "node*"')
        (trace / EVENT / "enable").write_text("1")
        yield packets
        (trace / EVENT / "enable").write_text("0")
        text = (trace / "trace").read_text()
    kept, written = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text).groups()
    if kept != written:
        sys.exit(f"the kernel has kept {kept} of {written} packets: BUFFERS_KB is too small")
    pattern = re.compile(r"([\d.]+): .*\bdev=(\S+) .*\blen=(\d+) .*\bgso_segs=(\d+)")
    for seconds, device, size, segments in pattern.findall(text):
        if device in packets:  # Another job may have more hosts.
            headers = HEADER_BYTES * max(0, int(segments) - 1)
            packets[device].append((float(seconds) * 1e3, int(size) + headers))


@contextlib.contextmanager
def trace_instance():
    """Yields the folder of a trace with its own buffers, and removes it at the end. Also removes
    remains of a killed run."""
    prefix = "lockstep-bench-"
    for stale in (TRACING / "instances").glob(f"{prefix}*"):
        if not pathlib.Path("/proc", stale.name.removeprefix(prefix).partition("-")[0]).exists():
            stale.rmdir()
    trace = pathlib.Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-",
                                          dir=TRACING / "instances"))
    try:
        yield trace
    finally:
        trace.rmdir()


def steps_of(packets, work):
    """Returns the Steps of the packets to one host, without those of the warm-up and the last one.
    None if a step cannot be distinguished from the next one, or from another job's."""
    bursts, sent, last = [], STEP_BYTES, -math.inf
    for begin, size in packets:
        if sent >= STEP_BYTES and begin - last >= PAUSE_MS:
            bursts.append([])
            sent = 0
        bursts[-1].append((begin, size))
        sent, last = sent + size, begin
    # Rank 0's host also sends the weights once, before all steps.
    if len(bursts) - work.warmup - work.steps not in (0, 1):
        return None
    bursts = bursts[-work.steps:]
    if any(sum(size for _, size in burst) > MOST_STEP_BYTES for burst in bursts):
        return None
    return [Step(burst[-1][0] - burst[0][0], *link_of(burst), following[0][0] - burst[-1][0])
            for burst, following in zip(bursts, bursts[1:])]


def link_of(burst):
    """Returns the parts of a Step between its first byte and its last."""
    at_once = network_hosts.BURST_BYTES  # Bytes that may be sent now; more is lost.
    sent, last = 0, burst[0][0]
    lost = {True: 0, False: 0}
    for begin, size in burst:
        at_once += (begin - last) * BYTES_PER_MS
        over = max(0, at_once - network_hosts.BURST_BYTES)
        lost[sent < BEGIN_BYTES] += over
        at_once -= over + size
        sent, last = sent + size, begin
    return [bytes_ / BYTES_PER_MS for bytes_ in (sent - network_hosts.BURST_BYTES, lost[True],
                                                 lost[False], at_once)]


# --- Results --------------------------------------------------------------------------------------

def rows(figures):
    """Returns the parts of all rounds' steps as one row."""
    recordings = [steps for entry in figures for steps in entry["steps"]]
    steps = [step for whole in recordings for step in whole or []]
    paused = {pause: {name: statistics.median(entry["paused"][pause][name] for entry in figures)
                      for name in ("forward", "backward", "optimizer")} for pause in PAUSES}
    row = {"recordings": len(recordings), "unclear": recordings.count(None),
           "ms_with_pause": paused}
    return [row | parts_of(steps, [entry["rank"] for entry in figures]) if steps else row]


def parts_of(steps, ranks):
    """Returns the parts of all Steps together; `ranks` are the figures of one rank per round."""
    own = {name: statistics.mean(figures[name] for figures in ranks)
           for name in ("forward", "optimizer")}
    rest = spread([step.rest for step in steps])
    late, while_sending = late_steps(steps)
    return {"steps": len(steps), "late_share": len(late) / len(steps),
            "late_ms_a_step": sum(late) / len(steps),
            "late_ms_a_step_while_sending": while_sending / len(steps),
            "ms": {"sending": spread([step.sending for step in steps]),
                   "least_of_link": spread([step.wire for step in steps]),
                   "lost_at_begin": spread([step.lost_at_begin for step in steps]),
                   "lost_later": spread([step.lost_later for step in steps]),
                   "lost_at_end": spread([step.lost_at_end for step in steps]),
                   "between": rest, "forward": {"mean": own["forward"]},
                   "optimizer": {"mean": own["optimizer"]},
                   "backward": {"mean": rest["mean"] - sum(own.values())},
                   "step": spread([step.sending + step.rest for step in steps])}}


def spread(values):
    deciles = statistics.quantiles(values, n=10)
    return {"mean": statistics.mean(values), "median": statistics.median(values),
            "low": deciles[0], "high": deciles[-1]}


def late_steps(steps):
    """Returns by how much each late step exceeds the median, and how much of it is between its
    first byte and its last."""
    median = statistics.median(step.sending + step.rest for step in steps)
    median_sending = statistics.median(step.sending for step in steps)
    late = [step for step in steps if step.sending + step.rest > median + LATE_MS]
    return ([step.sending + step.rest - median for step in late],
            sum(step.sending - median_sending for step in late))


def print_rows(row):
    print(f"\nWhere a step of the CNN goes, one rank a host, batch {CASE.batch}, link {LINK}, by "
          "the packets of its\ngradients. After a pause, "
          f"{network_hosts.BURST_BYTES >> 10} KiB pass the link at once.\n"
          "Milliseconds: means, and the first and the last decile.")
    if row["unclear"]:
        print(f"{row['unclear']} of {row['recordings']} recordings do not count: steps could not "
              "be told from each other, or from another job's")
    if "ms" in row:
        print_parts(row)
    print("\nA step of PyTorch without communication, in two processes, with a pause of "
          f"{PAUSE_OF_STEP_MS} ms before its\noptimizer. Milliseconds: medians of the rounds.\n"
          f"{'pause':<8}{'forward':>9}{'backward':>10}{'optimizer':>11}")
    for pause, parts in row["ms_with_pause"].items():
        print(f"{pause:<8}{measure.short(parts['forward']):>9}"
              f"{measure.short(parts['backward']):>10}{measure.short(parts['optimizer']):>11}")


LABELS = {
    "sending": "from the first byte of the gradients to the last",
    "least_of_link": "  the link's least time for the bytes",
    "lost_at_begin": f"  lost until {BEGIN_BYTES / 1e6} MB were sent",
    "lost_later": "  lost later",
    "lost_at_end": "  lost at the end",
    "between": "from the last byte to the next step's first",
    "forward": "  forward, by rank 0's clock",
    "optimizer": "  optimizer, by rank 0's clock",
    "backward": "  the rest, mostly backward",
    "step": "the whole step",
}


def print_parts(row):
    for name, value in row["ms"].items():
        low_high = (f" ({measure.short(value['low'])} - {measure.short(value['high'])})"
                    if "low" in value else "")
        print(f"{LABELS[name]:<50}{measure.short(value['mean']):>7}{low_high}")
    print(f"{row['steps']} intervals, each step's in both directions. {row['late_share']:.0%} took "
          f"over {LATE_MS} ms longer than the median:\n"
          f"that costs {measure.short(row['late_ms_a_step'])} ms a step, "
          f"{measure.short(row['late_ms_a_step_while_sending'])} of them while bytes are sent.")
