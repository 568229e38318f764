#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The MPI engine with another MPI than this system's: one of PyPI's wheels, in a venv.

Compiles the plugin and the program that uses MPI itself with the wheel's mpicxx, and starts ranks
with its mpiexec.

mpi_wheels_test.py --venv DIR --source DIR --scratch DIR --rank ENGINE_ABI_RANK --foreign PLUGIN
"""

import argparse
import pathlib
import sys

from mpi_cases import SKIPPED, Cases, run

PROGRAM = ("mpi_program_rank", "collective_checks", "engine_checks", "engine_plugin", "serial")


def compile_with(mpicxx, source, output, *words):
    output.parent.mkdir(parents=True, exist_ok=True)
    code, _ = run([
        mpicxx, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-I",
        source, *words, "-o", output
    ],
                  limit=300)
    if code != 0:
        sys.exit(f"it does not compile with {mpicxx}")
    return output


def plugin_of(mpicxx, source, folder):
    sources = sorted((source / "lockstep/comm/engine/mpi").glob("*.cpp"))
    return compile_with(mpicxx, source, folder / "liblockstep-engine-mpi.so", "-fPIC", "-shared",
                        *sources)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for path in ("venv", "source", "scratch", "rank", "foreign"):
        parser.add_argument(f"--{path}", type=pathlib.Path, required=True)
    args = parser.parse_args()
    binaries = args.venv / "bin"
    if not (args.venv / "complete").exists():
        print(f"skipped: there is no {args.venv} (./dev test fetches it)")
        sys.exit(SKIPPED)

    checks = args.source / "tests/engines"
    program = compile_with(binaries / "mpicxx", args.source, args.scratch / "mpi_program_rank",
                           *(checks / f"{unit}.cpp" for unit in PROGRAM), "-ldl", "-pthread")
    plugin = plugin_of(binaries / "mpicxx", args.source, args.scratch)
    cases = Cases(binaries / "mpiexec", plugin, args.rank, program)
    cases.all()

    # One process cannot contain two different MPIs, and the mpiexec of one cannot start programs of
    # the other.
    if "mpich" in args.venv.name:
        foreign = Cases(binaries / "mpiexec", args.foreign, args.rank, program)
        foreign.another_mpi_in_the_program()
        foreign.another_launcher("PMI_SIZE")

    # MPI's own ABI, if the wheel has it: one plugin for all libraries with that ABI.
    if (binaries / "mpicxx_abi").exists():
        abi = plugin_of(binaries / "mpicxx_abi", args.source, args.scratch / "abi")
        Cases(binaries / "mpiexec", abi, args.rank, program).succeed(
            3, args.rank, "collectives", says="all of 3 ranks")


if __name__ == "__main__":
    main()
