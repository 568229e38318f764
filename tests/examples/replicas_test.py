#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy on Fashion-MNIST when replicas double, means of three seeds. 16 replicas with the linear
rule are within half a point of 8, where an unchanged rate loses more than 3. They are within 3
points of one replica. Takes some five minutes. Skipped where the dataset is not installed."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SKIPPED = 77


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    args = parser.parse_args()
    data = pathlib.Path(os.environ.get("LOCKSTEP_DATA", "/usr/share/datasets")) / "fashion-mnist"
    if not data.is_dir():
        print(f"skipped: there is no {data}")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.json"
        subprocess.run([sys.executable, args.bench, "--build", args.build, "--json", result,
                        "--methods", "unchanged", "linear", "--replicas", "1", "8", "16"],
                       check=True, stdin=subprocess.DEVNULL)
        results = json.loads(result.read_text())
    means = {method: {int(replicas): statistics.mean(seeds) for replicas, seeds in cases.items()}
             for method, cases in results.items()}
    unchanged, linear = means["unchanged"], means["linear"]
    if unchanged[8] - unchanged[16] <= 3:
        sys.exit(f"an unchanged rate loses nothing that could be made up for: {unchanged}")
    if linear[8] - linear[16] > 0.5:
        sys.exit(f"16 replicas lose more than half a point to 8: {linear}")
    if linear[1] - linear[16] > 3:
        sys.exit(f"16 replicas lose more than 3 points to one: {linear}")


if __name__ == "__main__":
    main()
