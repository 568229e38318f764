#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same binary forms its group under torchrun, under mpirun, and with bare environment
variables.

other_launchers_test.py LAUNCHED_GROUP_TEST --python PYTHON
"""

import argparse
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
BARE = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_SIZE", "OMPI_"))}


def start(command, **variables):
    return subprocess.Popen(command, env=BARE | {"OMP_NUM_THREADS": "1"} | variables)


def succeed(name, processes):
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"under {name}: exit codes {codes}")
    print(f"formed its group under {name}", flush=True)


@functools.cache
def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--python", default="")
    parser.add_argument("--torch-store-group", help="a program that meets through PyTorch's store")
    options = parser.parse_args()
    rank = [options.program, "--lockstep-rank", "works", "", "", ""]
    sends_and_ends = [options.program, "--lockstep-rank", "sends and ends", "", "", ""]

    succeed("bare variables", [start(rank, RANK=str(number), WORLD_SIZE="2", MASTER_PORT="29876")
                               for number in range(2)])
    absent = []
    if options.python:
        torchrun = [options.python, "-m", "torch.distributed.run", "--no-python", "--standalone",
                    "--nproc-per-node", "2"]
        succeed("torchrun", [start(torchrun + rank)])
        with tempfile.TemporaryDirectory() as folder:
            succeed("torchrun, and keeps messages after their sender's end", [
                start([*torchrun[:-1], "3", *sends_and_ends], LOCKSTEP_TEST_FOLDER=folder)])
        if options.torch_store_group:  # torchrun listens; then rank 0 does, as without torchrun.
            succeed("torchrun, with its store", [start(torchrun + [options.torch_store_group])])
            succeed("bare variables, with PyTorch's store", [
                start([options.torch_store_group], RANK=str(number), WORLD_SIZE="2",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port()) for number in range(2)])
    else:
        absent.append("torchrun (set LOCKSTEP_PYTHON to a Python with torch)")
    if shutil.which("mpirun"):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        succeed("mpirun", [start(mpirun + rank)])
    else:
        absent.append("mpirun (Debian's package openmpi-bin)")
    if absent:
        print("skipped: there is no", " and no ".join(absent))
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
