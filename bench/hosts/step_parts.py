# SPDX-License-Identifier: Apache-2.0
"""Where a training step between hosts goes: a part of bench.py.

Its gradients are followed by their packets, which perf records where a device sends them, and the
rest by a rank's own clock. What a pause of that length alone costs a step is measured beside it, in
PyTorch without any communication."""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import statistics
import struct
import subprocess
import tempfile
import time

from jobs import HERE, HOSTS, measure, sides

LINK, RANKS = "1 Gbit/s", 1
BYTES_PER_MS = 125_000
CASE = sides.Case("cnn", 32, RANKS, False, 5, 100)

EVENT = "net:net_dev_start_xmit"
# Of each packet on the wire: Ethernet, IP, and TCP with timestamps. A device is given many packets
# as one, with the headers of a single one.
HEADER_BYTES = 66
# Smaller packets carry no gradients.
LEAST_BYTES = 1000
# Within the gradients of a step, the link is never idle for as long as between two steps.
PAUSE_MS = 12
# Less than the CNN's gradients: steps of which perf has lost packets do not count.
LEAST_STEP_BYTES = 8_500_000
LATE_MS = 3  # Over the median.

# A pause between backward and optimizer, for as long as the link needs for the gradients.
PAUSES = ("none", "sleep", "spin", "copy")
PAUSE_OF_STEP_MS = 70

Step = collections.namedtuple("Step", "sending wire rest")  # All in ms.


def why_not(options):
    """Returns why this cannot be measured here; empty when it can."""
    if not shutil.which("perf"):
        return "no perf in PATH: it is in linux-perf"
    return measure.why_no_torch(options.python)


def measure_step_parts(options, job, number, say):
    """Returns the parts of steps by their packets, a rank's own figures, and those with pauses."""
    work = CASE._replace(steps=CASE.steps // 3) if options.quick else CASE
    say("parts of a step")
    with awake_cores(), recorded_packets() as packets:
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
def awake_cores():
    """Keeps idle cores from sleeping: a virtual one is late when the link's timer wakes it."""
    with contextlib.ExitStack() as stack:
        quality = pathlib.Path("/dev/cpu_dma_latency")
        if os.access(quality, os.W_OK):  # For as long as the file is open.
            file = stack.enter_context(quality.open("wb", buffering=0))
            file.write(struct.pack("i", 0))
        yield


@contextlib.contextmanager
def recorded_packets():
    """Yields a list that has all whole Steps when the context has ended."""
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "packets"
        perf = subprocess.Popen(
            ["perf", "record", "-q", "-a", "-m", "4096", "-e", EVENT, "-o", data],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(0.5)  # Until it records.
            yield steps
        finally:
            perf.send_signal(signal.SIGINT)
            perf.wait()
        text = measure.run(["perf", "script", "-i", data, "-F", "time,trace"])
    for packets in packets_by_device(text).values():
        steps += steps_of(packets)


def packets_by_device(text):
    """Returns the times in ms and the bytes on the wire of all packets with gradients, by the
    device that leads to a host."""
    found = {f"node{i + 1}": [] for i in range(HOSTS)}
    pattern = re.compile(r"([\d.]+): .*\bdev=(\S+) .*\blen=(\d+) .*\bgso_segs=(\d+)")
    for seconds, device, size, segments in pattern.findall(text):
        size = int(size) + HEADER_BYTES * max(0, int(segments) - 1)
        if device in found and size > LEAST_BYTES:
            found[device].append((float(seconds) * 1e3, size))
    return found


def steps_of(packets):
    """Returns the Steps of packets to one host, without those of the warm-up and the last one."""
    bursts = [[]]
    for packet in packets:
        if bursts[-1] and packet[0] - bursts[-1][-1][0] > PAUSE_MS:
            bursts.append([])
        bursts[-1].append(packet)
    bursts = bursts[CASE.warmup:]
    whole = [sum(size for _, size in burst) > LEAST_STEP_BYTES for burst in bursts]
    return [Step(burst[-1][0] - burst[0][0],
                 sum(size for _, size in burst[:-1]) / BYTES_PER_MS,
                 following[0][0] - burst[-1][0])
            for burst, following, is_whole, follows in zip(bursts, bursts[1:], whole, whole[1:])
            if is_whole and follows]


# --- Results --------------------------------------------------------------------------------------

def rows(figures):
    """Returns the parts of all rounds' steps as one row."""
    steps = [step for entry in figures for step in entry["steps"]]
    own = {name: statistics.mean(entry["rank"][name] for entry in figures)
           for name in ("forward", "optimizer")}
    row = {"ms_with_pause": {pause: {name: statistics.median(entry["paused"][pause][name]
                                                             for entry in figures)
                                     for name in ("forward", "backward", "optimizer")}
                             for pause in PAUSES}}
    if len(steps) < 10:
        return [row]
    rest = spread([step.rest for step in steps])
    row["steps"] = len(steps)
    row["ms"] = {
        "from the first byte of the gradients to the last": spread([s.sending for s in steps]),
        "  bytes on the wire": spread([s.wire for s in steps]),
        "  the link is idle": spread([s.sending - s.wire for s in steps]),
        "from the last byte to the next step's first": rest,
        "  forward": {"mean": own["forward"]},
        "  optimizer": {"mean": own["optimizer"]},
        "  backward before the first large gradient": {"mean": rest["mean"] - sum(own.values())},
        "the whole step": spread([s.sending + s.rest for s in steps])
    }
    late = late_steps([step.sending + step.rest for step in steps])
    row["late_share"], row["late_ms_a_step"] = len(late) / len(steps), sum(late) / len(steps)
    return [row]


def spread(values):
    deciles = statistics.quantiles(values, n=10)
    return {"mean": statistics.mean(values), "low": deciles[0], "high": deciles[-1]}


def late_steps(times):
    """Returns by how much each late step is over the median."""
    median = statistics.median(times)
    return [time - median for time in times if time > median + LATE_MS]


def print_rows(row):
    print(f"\nWhere a step of the CNN goes, one rank a host, batch {CASE.batch}, link {LINK}, "
          "cores that do not sleep:\nby the packets of its gradients, both ways")
    if "ms" not in row:
        print("perf has recorded too few whole steps")
    for name, value in row.get("ms", {}).items():
        low_high = (f" ({measure.short(value['low'])} - {measure.short(value['high'])})"
                    if "low" in value else "")
        print(f"{name:<50}{measure.short(value['mean']):>7}{low_high}")
    if "ms" in row:
        print(f"ms, mean (first - last decile) of {row['steps']} steps. Those over {LATE_MS} ms "
              f"longer than the median,\n{row['late_share']:.0%}, cost "
              f"{measure.short(row['late_ms_a_step'])} ms a step.")
    print("\nA step of PyTorch without communication, in two processes, with a pause of "
          f"{PAUSE_OF_STEP_MS} ms before its optimizer\n"
          f"{'pause':<8}{'forward':>9}{'backward':>10}{'optimizer':>11}")
    for pause, parts in row["ms_with_pause"].items():
        print(f"{pause:<8}{measure.short(parts['forward']):>9}"
              f"{measure.short(parts['backward']):>10}{measure.short(parts['optimizer']):>11}")
