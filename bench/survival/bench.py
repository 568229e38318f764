#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what the death of a rank costs a training: with lockstep::Survival, which continues, and
with restarts from a checkpoint, by `lockstep run` and by torchrun. In each round each side trains,
loses a rank by SIGKILL, and goes on. The results, as median and range over the rounds:

  next step     milliseconds from the kill to the first step after the interrupted one
  lost          samples whose training was lost, or is repeated
  pause to join milliseconds by which the step before which a replacement joins is longer

A side that does not go on within two minutes is not measured again.
"""

import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402, from the folder above

EXAMPLES = """examples:
  ./dev bench survival
  ./dev bench survival --width 200000 --rounds 3
"""

SIDES = ("survival", "restart", "torchrun")
WARM_STEPS = 60
PATIENCE = 120  # Seconds.


def parse_options():
    parser = measure.arguments(__doc__, EXAMPLES, drawn="")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs: 5")
    parser.add_argument("--ranks", type=int, default=3, help="3")
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank in a step: 8")
    parser.add_argument("--width", type=int, default=32,
                        help="width of the model; its state has about 120 bytes for each: 32")
    parser.add_argument("--pause-ms", type=int, default=5, help="added to each step: 5")
    parser.add_argument("--every", type=int, default=100,
                        help="steps between the checkpoints of a side that restarts: 100")
    options = parser.parse_args()
    if options.rounds < 1 or options.ranks < 2:
        parser.error("there must be at least one round and two ranks")
    if not (options.build / "tests" / "surviving_training").exists():
        parser.error(f"no surviving_training in {options.build}/tests; ./dev bench builds it")
    return options


def command_of(side, options, folder):
    common = ["--notes", folder / "notes", "--batch", options.batch, "--width", options.width,
              "--pause-ms", options.pause_ms]
    restart = ["--checkpoints", folder / "checkpoints", "--every", options.every]
    if side == "torchrun":
        return measure.torchrun(options.python, options.ranks, HERE / "peers.py", *common,
                                *restart, launcher=["--standalone", "--max-restarts", "20"])
    launcher = ["--on-failure", "continue"] if side == "survival" else ["--max-restarts", "3"]
    program = [options.build / "tests" / "surviving_training", *common, "--epochs", 10**6]
    return [options.build / "bin" / "lockstep", "run", *launcher, "-n", options.ranks, *program,
            *(restart if side == "restart" else [])]


def steps_of(folder):
    """Returns (step, group, ranks, time, process) of each completed step of each process."""
    found = []
    for file in (folder / "notes").iterdir():
        for line in file.read_text().splitlines():
            words = line.split()
            if words[0] == "done" and len(words) == 6:
                step, group, ranks, _, when = map(int, words[1:])
                found.append((step, group, ranks, when, int(file.name)))
    return found


def wait_for(folder, process, holds):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if (found := holds(steps_of(folder))) is not None:
            return found
        time.sleep(0.02)
    raise TimeoutError


def after_kill(side, options, folder, process):
    """Kills a rank in a running training; returns the figures of what follows."""
    wait_for(folder, process,
             lambda steps: steps if any(step[0] >= WARM_STEPS for step in steps) else None)
    victim = max(steps_of(folder))[4]
    killed = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)

    def gone_on(steps):
        before = max(step[0] for step in steps if step[3] <= killed)
        later = [step for step in steps if step[3] > killed and step[0] > before + 1]
        return (before, min(later, key=lambda step: step[3]), steps) if later else None

    before, first, steps = wait_for(folder, process, gone_on)
    again = [step[0] for step in steps if step[3] > killed and step[1:3] == first[1:3]]
    figures = {"next step": (first[3] - killed) / 1e6,
               "lost": max(0, before + 1 - min(again)) * options.batch * options.ranks}
    if side == "survival":
        figures["pause to join"] = pause_to_join(options, folder, process, victim, first)
    return figures


def pause_to_join(options, folder, process, victim, first):
    """Returns the extra milliseconds of the step before which the replacement joined."""
    def joined(steps):
        late = [step for step in steps
                if step[2] == options.ranks and step[3] > first[3] and step[1] > 0]
        return steps if len(late) > 20 * options.ranks else None

    steps = wait_for(folder, process, joined)
    one = min({step[4] for step in steps} - {victim})
    own = sorted(step[3] for step in steps if step[4] == one)
    gaps = [(then - now) / 1e6 for now, then in zip(own, own[1:])]
    usual = statistics.median(gaps)
    # The longest is that of the death, unless the replacement joined in the same change.
    changes = len({step[1] for step in steps})
    return sorted(gaps)[-min(2, max(1, changes - 1))] - usual


def run(side, options):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "notes").mkdir()
        (folder / "checkpoints").mkdir()
        process = subprocess.Popen([str(word) for word in command_of(side, options, folder)],
                                   env=os.environ | {"OMP_NUM_THREADS": "1"},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            return after_kill(side, options, folder, process)
        except TimeoutError:  # Its restart has failed.
            return None
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def text_of(values):
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:.0f} ({least:.0f} - {most:.0f})"


def main():
    options = parse_options()
    why_not = measure.why_no_torch(options.python)
    sides = [side for side in SIDES if side != "torchrun" or not why_not]
    measure.warn_if_busy()
    found = {side: [] for side in sides}
    started = time.monotonic()
    for number in range(options.rounds):
        for side in measure.in_turn(number, sides):
            if None in found[side]:
                continue
            measure.progress(started, f"round {number + 1} of {options.rounds}, {side}")
            found[side].append(run(side, options))
    measure.progress(started, "")
    print(f"{options.ranks} ranks, {options.rounds} rounds, a checkpoint every {options.every} "
          "steps for restarts")
    for side, rounds in found.items():
        if None in rounds:
            print(f"  {side:10} did not go on within {PATIENCE} s after the kill")
            continue
        names = rounds[0].keys()
        print(f"  {side:10}", "; ".join(
            f"{name} {text_of([one[name] for one in rounds])}" for name in names))
    if why_not:
        print(f"  no torchrun: {why_not}")
    measure.save(options, found)


if __name__ == "__main__":
    main()
