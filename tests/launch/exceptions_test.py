#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchrun shows the exception that ends a rank of ours, recorded or not; PyTorch's own @record
works under `lockstep run`.

exceptions_test.py THROWING_RANK --lockstep LOCKSTEP --python PYTHON
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
BARE = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_SIZE", "OMPI_"))}
TEXT = "std::runtime_error: loss is nan"

PROGRAM = """
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("loss is nan")

main()
"""


def run(command):
    done = subprocess.run(command, env=BARE | {"OMP_NUM_THREADS": "1"}, capture_output=True,
                          text=True, timeout=100)
    print(f"--- {' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}", flush=True)
    return done


def under_torchrun(python, rank):
    torchrun = [python, "-m", "torch.distributed.run", "--no-python", "--standalone",
                "--nproc-per-node", "2"]
    done = run(torchrun + rank)
    assert done.returncode != 0
    summary = done.stderr.split("Root Cause (first observed failure):")[-1]
    assert re.search(r"rank +: 1 ", summary), "another rank is shown as the root cause"
    assert TEXT in summary, "torchrun does not show the exception"


def under_lockstep_run(lockstep, python):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(PROGRAM)
        program.flush()
        done = run([lockstep, "run", "-n", "2", python, program.name])
    assert done.returncode == 1
    assert re.search(r"^\[1\] Traceback", done.stderr, re.MULTILINE)
    assert re.search(r"^\[1\] ValueError: loss is nan$", done.stderr, re.MULTILINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("throwing_rank")
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--python", required=True, help="a Python that has torch, or nothing")
    options = parser.parse_args()
    if not options.python:
        print("skipped: LOCKSTEP_PYTHON names no Python that has torch")
        sys.exit(SKIPPED)
    under_torchrun(options.python, [options.throwing_rank])
    under_torchrun(options.python, [options.throwing_rank, "record"])
    under_lockstep_run(options.lockstep, options.python)


if __name__ == "__main__":
    main()
