#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An example trains on a GPU as on the CPU, up to rounding. Skipped without a GPU."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from small_datasets import write_fashion_mnist  # noqa: E402

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
STEPS = 20
# Tolerance of the loss, which falls from 2.3: sums have another order, and convolutions use TF32.
TOLERANCE = 0.02


def train(arguments, folder, device):
    result = folder / f"{device}.json"
    command = [arguments.lockstep, "run", "-n", 1, arguments.program, "--data", folder / "data",
               "--steps", STEPS, "--batch-size", 32, "--json", result, "--device", device]
    done = subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    if device == "cuda" and "local_device: " in done.stdout:
        why = next(line for line in done.stdout.splitlines() if "local_device: " in line)
        print(f"skipped: {why.strip()}")
        sys.exit(SKIPPED)
    if done.returncode != 0:
        sys.exit(f"--device {device} ended with {done.returncode}:\n{done.stdout}")
    return json.loads(result.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for program in ("lockstep", "program"):
        parser.add_argument(f"--{program}", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        write_fashion_mnist(folder / "data")
        there, here = (train(arguments, folder, device) for device in ("cuda", "cpu"))
    print(f"loss {there['loss']} on CUDA, {here['loss']} on the CPU")
    if abs(there["loss"] - here["loss"]) > TOLERANCE or there["steps"] != here["steps"]:
        sys.exit("they differ by more than rounding does")


if __name__ == "__main__":
    main()
