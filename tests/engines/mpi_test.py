#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The MPI engine with the MPI of this system.

mpi_test.py PLUGIN PLUGIN_OF_SMALL_CHUNKS ENGINE_ABI_RANK MPI_PROGRAM_RANK
"""

import shutil
import sys

from mpi_cases import SKIPPED, Cases


def main():
    plugin, in_chunks, rank, program = sys.argv[1:]
    if not shutil.which("mpiexec"):
        print("skipped: there is no mpiexec (Debian's package openmpi-bin)")
        sys.exit(SKIPPED)
    Cases("mpiexec", plugin, rank, program).all()
    Cases("mpiexec", in_chunks, rank, program).succeed(3,
                                                       rank,
                                                       "collectives",
                                                       says="all of 3 ranks")


if __name__ == "__main__":
    main()
