#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Explores the models of shared memory with Spin: docs/internals/memory-order.md, "Models".

models_test.py quotes: the code that the models quote is still there.
models_test.py MODEL --scratch FOLDER [--long]: no state of the model violates its properties, and
each planted fault does.
"""

import argparse
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODELS = ROOT / "lockstep/comm/shm/models"
sys.path.insert(0, str(HERE.parent))

from commands import run, skip  # noqa: E402

QUOTED = {"barrier.cpp": "lockstep/comm/shm/barrier.cpp",
          "mailbox.cpp": "lockstep/comm/core/mailbox.cpp",
          "point_to_point.cpp": "lockstep/comm/point_to_point.cpp",
          "regions.cpp": "lockstep/comm/shm/regions.cpp",
          "shm_backend.cpp": "lockstep/comm/shm/shm_backend.cpp",
          "shm_pipes.cpp": "lockstep/comm/shm/shm_pipes.cpp",
          "staging.cpp": "lockstep/comm/shm/staging.cpp"}
LEAST_QUOTES = 10  # In each model.


@dataclasses.dataclass(frozen=True)
class Bounds:
    """One verifier: the model's macros, and the planted faults that it must find."""
    macros: str
    faults: tuple = ()


SHORT = {
    "barrier": [
        Bounds("N=2", ("no_switch_of_entries", "sleepers_before_value", "skips_last_peer",
                       "relaxed_flag", "absent_before_left")),
        Bounds("N=2 ABORTS=1 EARLY", ("reason_after_state",)),
        Bounds("N=2 CROWDED ABORTS=2", ("relaxed_flag", "sleepers_before_value",
                                        "misses_one_arrival")),
        Bounds("N=2 GROUPS=2 CALLS=1 ABORTS=2 SLICES=0", ("one_name",)),
        Bounds("N=3 WAITS_IN_ONE_STEP", ("skips_last_peer",)),
        Bounds("N=3 WAITS_IN_ONE_STEP CROWDED CALLS=1")],
    "messages": [
        Bounds("N=2", ("written_before_copy", "read_before_copy", "relaxed_written", "no_acquire",
                       "bell_after_look", "sleepers_before_bell", "left_after_pipes",
                       "no_look_for_space")),
        Bounds("N=2 EARLY STOPS=1"),
        Bounds("N=2 STOPS=0", ("no_drop",)),
        Bounds("N=3 MESSAGES=1 WAITS_IN_ONE_STEP STOPS=0"),
        Bounds("N=3 MESSAGES=1 WAITS_IN_ONE_STEP DEATHS=0", ("left_after_pipes",))],
    "staging": [
        Bounds("N=2 EARLY", ("one_chunk", "no_step", "relaxed_flag", "cursor_stays",
                             "takes_too_early")),
        Bounds("N=3 MOST_CHUNKS=3", ("one_chunk",))],
    "regions": [
        Bounds("N=2 USES=2 EARLY", ("no_last_step", "number_is_reused", "relaxed_flag",
                                    "peers_are_not_kept")),
        Bounds("N=2 COMMON EARLY", ("no_last_step", "relaxed_flag", "withdrawn_too_early",
                                    "one_step_in_refusals", "number_after_step")),
        Bounds("N=3"),
        Bounds("N=3 COMMON ROUNDS=1")],
}

LONG = {
    "barrier": [
        Bounds("N=2 SLICES=2 CALLS=3 ABORTS=1 EARLY"),
        Bounds("N=2 GROUPS=2 CALLS=2 ABORTS=1 EARLY SLICES=0 CROWDED"),
        Bounds("N=3 SLICES=0"),
        Bounds("N=3 SLICES=0 CROWDED CALLS=1"),
        Bounds("N=3 WAITS_IN_ONE_STEP ABORTS=2 DEATHS=2 EARLY CALLS=1")],
    "messages": [
        Bounds("N=2 SLICES=1 EARLY"),
        Bounds("N=2 MESSAGES=4"),
        Bounds("N=3 MESSAGES=1 WAITS_IN_ONE_STEP")],
    "staging": [
        Bounds("N=2 CALLS=3 MOST_CHUNKS=5"),
        Bounds("N=3 MOST_CHUNKS=4 EARLY")],
    "regions": [
        Bounds("N=2 USES=2 ROUNDS=3 EARLY"),
        Bounds("N=3 USES=2 DEATHS=2"),
        Bounds("N=3 COMMON")],
}


def check_quotes():
    """A comment that begins with a file's name and a colon quotes that file."""
    total = 0
    for model in sorted(SHORT):
        text = (MODELS / f"{model}.pml").read_text()
        quotes = re.findall(r"/\* (\w+\.cpp): (.*?) \*/", text, re.S)
        assert len(quotes) >= LEAST_QUOTES, f"{model}.pml quotes the code only {len(quotes)} times"
        for name, quote in quotes:
            code = " ".join((ROOT / QUOTED[name]).read_text().split())
            assert " ".join(quote.split()) in code, (
                f"{QUOTED[name]} no longer contains what {model}.pml models: {quote}\n"
                "Change the model as the code, then the quote.")
        total += len(quotes)
    print(f"the code contains {total} quotes")


def fault_numbers(model):
    text = (MODELS / f"{model}.pml").read_text()
    return {name: int(number)
            for name, number in re.findall(r"^#define ([a-z_]+) (\d+)$", text, re.M)}


def compile_verifier(model, bounds, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for source in MODELS.glob("*.pml"):
        shutil.copy(source, folder)
    macros = [f"-D{macro}" for macro in bounds.macros.split()]
    run("spin", *macros, "-a", f"{model}.pml", folder=folder)
    run("cc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=6000", "-o",
        "verify", "pan.c", folder=folder)


def explore(folder, fault):
    """Returns the verifier's output, the number of states, and whether it found a violation."""
    done = subprocess.run(["./verify", "-m200000", "-w22"], cwd=folder, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={"FAULT": str(fault)})
    errors = re.search(r"errors: (\d+)", done.stdout)
    states = re.search(r"(\d+) states, stored", done.stdout)
    assert errors and states and "max search depth" not in done.stdout, done.stdout
    found = errors[1] != "0"
    assert found or "Search not completed" not in done.stdout, done.stdout
    return done.stdout, int(states[1]), found


def shown_trail(model, folder, fault):
    """The steps to the violation that was found last."""
    return subprocess.run(["./verify", "-r", "-p"], cwd=folder, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={"FAULT": str(fault)}).stdout


def verify(model, all_bounds, scratch):
    numbers = fault_numbers(model)
    for place, bounds in enumerate(all_bounds):
        folder = scratch / f"{model}_{place}"
        compile_verifier(model, bounds, folder)
        output, states, found = explore(folder, 0)
        if found:
            print(output, shown_trail(model, folder, 0))
            sys.exit(f"{model}.pml ({bounds.macros}) violates its properties: see the steps above")
        print(f"{model}.pml ({bounds.macros}): {states:,} states", flush=True)
        for fault in bounds.faults:
            output, states, found = explore(folder, numbers[fault])
            if not found:
                sys.exit(f"{model}.pml ({bounds.macros}): the planted fault {fault} was not found")
            violation = re.search(r"^pan:1: (.*?) \(at", output, re.M)
            print(f"  {fault}: {violation[1][:70]}, after {states:,} states", flush=True)
        shutil.rmtree(folder)


def check_that_all_faults_are_planted(model):
    used = {fault for bounds in SHORT[model] for fault in bounds.faults}
    unused = {name for name in fault_numbers(model) if f"fault == {name}" in
              (MODELS / f"{model}.pml").read_text()} - used
    assert not unused, f"no bounds find these faults of {model}.pml: {sorted(unused)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["quotes", *SHORT])
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--long", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "quotes":
        return check_quotes()
    check_that_all_faults_are_planted(arguments.what)
    for tool in ("spin", "cc"):
        if shutil.which(tool) is None:
            skip(f"there is no {tool}")
    chosen = (LONG if arguments.long else SHORT)[arguments.what]
    return verify(arguments.what, chosen, arguments.scratch)


if __name__ == "__main__":
    main()
