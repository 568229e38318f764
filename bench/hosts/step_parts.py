# SPDX-License-Identifier: Apache-2.0
"""Where a training step between hosts goes: a part of bench.py.

Its gradients are followed by their packets, which the kernel records where a device sends them, and
the rest by a rank's own clock. What a pause of that length alone costs a step is measured beside
it, in PyTorch without any communication."""

import collections
import contextlib
import os
import pathlib
import re
import statistics

from jobs import HERE, HOSTS, measure, sides

LINK, RANKS = "1 Gbit/s", 1
BYTES_PER_MS = 125_000
CASE = sides.Case("cnn", 32, RANKS, False, 5, 100)

TRACING = pathlib.Path("/sys/kernel/tracing")
BUFFER_KB = 32 << 10  # Of a CPU: many times the need of CASE.steps.

# Of each packet on the wire: Ethernet, IP, and TCP with timestamps. A device is given many packets
# as one, with the headers of a single one.
HEADER_BYTES = 66
# Smaller packets carry no gradients.
LEAST_BYTES = 1000
# A step begins after a pause as long as this if the last one has sent as many bytes: somewhat less
# than the CNN's gradients.
PAUSE_MS, STEP_BYTES = 12, 8_500_000
LATE_MS = 3  # Over the median.

# A pause between backward and optimizer, for as long as the link needs for the gradients.
PAUSES = ("none", "sleep", "spin", "copy")
PAUSE_OF_STEP_MS = 70

Step = collections.namedtuple("Step", "sending wire rest")  # All in ms.


def why_not(options):
    """Returns why this cannot be measured here; empty when it can."""
    if not os.access(TRACING / "instances", os.W_OK):
        return f"no tracefs at {TRACING}: mount -t tracefs tracefs {TRACING}"
    return measure.why_no_torch(options.python)


def measure_step_parts(options, job, number, say):
    """Returns the parts of steps by their packets, a rank's own figures, and those with pauses."""
    work = CASE._replace(steps=CASE.steps // 3) if options.quick else CASE
    say("parts of a step")
    with recorded_packets() as packets:
        figures = job.train("Lockstep", work)
    paused = {}
    for pause in measure.in_turn(number, PAUSES):
        say(f"a step with a pause: {pause}")
        words = [] if pause == "none" else ["--pause", pause, "--pause-ms", PAUSE_OF_STEP_MS]
        paused[pause] = sides.copies(
            [options.python, HERE.parent / "ddp" / "train_pytorch.py", *sides.work_of(work),
             "--alone", "--on-cue", *words], HOSTS, sides.MALLOC)
    return {"steps": packets, "rank": figures, "paused": paused}


@contextlib.contextmanager
def recorded_packets():
    """Yields a list that has the Steps of all packets sent meanwhile when the context has ended."""
    steps = []
    trace = TRACING / "instances" / f"lockstep-{os.getpid()}"  # With buffers of its own.
    trace.mkdir()
    try:
        (trace / "buffer_size_kb").write_text(str(BUFFER_KB))
        event = trace / "events" / "net" / "net_dev_start_xmit"
        (event / "filter").write_text(f"len > {LEAST_BYTES}")
        (event / "enable").write_text("1")
        yield steps
        (event / "enable").write_text("0")
        for packets in packets_by_device((trace / "trace").read_text()).values():
            steps += steps_of(packets)
    finally:
        trace.rmdir()


def packets_by_device(text):
    """Returns the times in ms and the bytes on the wire of all packets of a trace, by the device
    that leads to a host."""
    found = {f"node{i + 1}": [] for i in range(HOSTS)}
    pattern = re.compile(r"([\d.]+): .*\bdev=(\S+) .*\blen=(\d+) .*\bgso_segs=(\d+)")
    for seconds, device, size, segments in pattern.findall(text):
        if device in found:
            headers = HEADER_BYTES * max(0, int(segments) - 1)
            found[device].append((float(seconds) * 1e3, int(size) + headers))
    return found


def steps_of(packets):
    """Returns the Steps of packets to one host, without those of the warm-up and the last one."""
    bursts, sent, last = [], STEP_BYTES, -PAUSE_MS
    for begin, size in packets:
        if sent >= STEP_BYTES and begin - last >= PAUSE_MS:
            bursts.append([])
            sent = 0
        bursts[-1].append((begin, size))
        sent, last = sent + size, begin
    bursts = bursts[CASE.warmup:]
    # The last packet of a step is on the wire after its time.
    return [Step(burst[-1][0] - burst[0][0],
                 sum(size for _, size in burst[:-1]) / BYTES_PER_MS,
                 following[0][0] - burst[-1][0])
            for burst, following in zip(bursts, bursts[1:])]


# --- Results --------------------------------------------------------------------------------------

def rows(figures):
    """Returns the parts of all rounds' steps as one row."""
    steps = [step for entry in figures for step in entry["steps"]]
    own = {name: statistics.mean(entry["rank"][name] for entry in figures)
           for name in ("forward", "optimizer")}
    rest = spread([step.rest for step in steps])
    ms = {
        "from the first byte of the gradients to the last": spread([s.sending for s in steps]),
        "  bytes on the wire": spread([s.wire for s in steps]),
        "  the link is idle": spread([s.sending - s.wire for s in steps]),
        "from the last byte to the next step's first": rest,
        "  forward": {"mean": own["forward"]},
        "  optimizer": {"mean": own["optimizer"]},
        "  backward before the first large gradient": {"mean": rest["mean"] - sum(own.values())},
        "the whole step": spread([s.sending + s.rest for s in steps])
    }
    late, while_sending = late_steps(steps)
    paused = {pause: {name: statistics.median(entry["paused"][pause][name] for entry in figures)
                      for name in ("forward", "backward", "optimizer")} for pause in PAUSES}
    return [{"steps": len(steps), "ms": ms, "late_share": len(late) / len(steps),
             "late_ms_a_step": sum(late) / len(steps),
             "late_ms_a_step_while_sending": while_sending / len(steps), "ms_with_pause": paused}]


def spread(values):
    deciles = statistics.quantiles(values, n=10)
    return {"mean": statistics.mean(values), "low": deciles[0], "high": deciles[-1]}


def late_steps(steps):
    """Returns by how much each late step is over the median, and how much of it all is between its
    first byte and its last."""
    median = statistics.median(step.sending + step.rest for step in steps)
    median_sending = statistics.median(step.sending for step in steps)
    late = [step for step in steps if step.sending + step.rest > median + LATE_MS]
    return ([step.sending + step.rest - median for step in late],
            sum(step.sending - median_sending for step in late))


def print_rows(row):
    print(f"\nWhere a step of the CNN goes, one rank a host, batch {CASE.batch}, link {LINK},\n"
          "by the packets of its gradients, both ways")
    for name, value in row["ms"].items():
        low_high = (f" ({measure.short(value['low'])} - {measure.short(value['high'])})"
                    if "low" in value else "")
        print(f"{name:<50}{measure.short(value['mean']):>7}{low_high}")
    print(f"ms, mean (first - last decile) of {row['steps']} steps. Those over {LATE_MS} ms longer "
          f"than the median,\n{row['late_share']:.0%}, cost "
          f"{measure.short(row['late_ms_a_step'])} ms a step, "
          f"{measure.short(row['late_ms_a_step_while_sending'])} of them before the last byte.")
    print("\nA step of PyTorch without communication, in two processes, with a pause of "
          f"{PAUSE_OF_STEP_MS} ms before its optimizer\n"
          f"{'pause':<8}{'forward':>9}{'backward':>10}{'optimizer':>11}")
    for pause, parts in row["ms_with_pause"].items():
        print(f"{pause:<8}{measure.short(parts['forward']):>9}"
              f"{measure.short(parts['backward']):>10}{measure.short(parts['optimizer']):>11}")
