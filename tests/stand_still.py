#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command while cores stand still at random, as on a busy host; needs root.

Examples:
  tests/stand_still.py ctest --test-dir build/release -LE '^long$'
  tests/stand_still.py --seed 7 --share 0.3 build/release/tests/comm_test

A test that fails here, and passes alone, waits too briefly or relies on an order of events."""

import argparse
import os
import random
import signal
import subprocess
import sys
import time

PAUSES = (0.2, 0.4, 0.8, 1.2, 1.8)  # Seconds.


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the random pauses (default: 1)")
    parser.add_argument("--share", type=float, default=0.12,
                        help="of the time that some core stands still (default: 0.12)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("a command is missing")
    if not 0 < options.share < 1:
        parser.error("--share must be between 0 and 1")
    return options


def occupy(core, seconds):
    """Starts a process that lets no other run on a core, and returns its id."""
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {core})
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
        os._exit(0)
    return pid


def disturb(seed, share, parent):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    choice = random.Random(seed)
    cores = sorted(os.sched_getaffinity(0))
    while os.getppid() == parent:
        seconds = choice.choice(PAUSES)
        chosen = choice.sample(cores, choice.randint(1, len(cores)))
        for pid in [occupy(core, seconds) for core in chosen]:
            os.waitpid(pid, 0)
        time.sleep(choice.expovariate(share / (seconds * (1 - share))))


def main():
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("stand_still.py: real-time priority needs root")
    parent = os.getpid()
    disturber = os.fork()
    if disturber == 0:
        disturb(options.seed, options.share, parent)
        os._exit(0)
    try:
        return subprocess.run(options.command).returncode
    finally:
        os.kill(disturber, signal.SIGKILL)
        os.waitpid(disturber, 0)


if __name__ == "__main__":
    sys.exit(main())
