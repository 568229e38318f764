# SPDX-License-Identifier: Apache-2.0
"""Tests of the MPI engine, for every MPI for which it is compiled and by which it is started."""

import os
import subprocess
import sys
import time

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HYDRA_", "MPI_LOCAL")
# mpiexec of Open MPI 4 and 5 refuses to run as root, and to start more ranks than cores.
BARE = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)} | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def run(command, limit=120):
    """Returns the exit code and all output; a hang fails the test."""
    command = [str(word) for word in command]
    print("+", *command, flush=True)
    try:
        done = subprocess.run(command, env=BARE, text=True, stdin=subprocess.DEVNULL, timeout=limit,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as late:
        print(late.stdout, flush=True)
        sys.exit(f"still running after {limit} s")
    print(done.stdout, flush=True)
    return done.returncode, done.stdout


class Cases:
    """`mpiexec` starts the ranks; `rank` and `program` are the two programs of tests/engines."""

    def __init__(self, mpiexec, plugin, rank, program):
        self.mpiexec = mpiexec
        self.plugin = plugin
        self.rank = rank
        self.program = program

    def succeed(self, ranks, program, *mode, says=""):
        code, output = run([self.mpiexec, "-n", ranks, program, self.plugin, *mode])
        if code != 0 or says not in output:
            sys.exit(f"exit code {code}" if code else f"it does not say '{says}'")

    def all(self):
        for ranks in (2, 3):
            self.succeed(ranks, self.rank, "collectives", says=f"all of {ranks} ranks")
        self.succeed(2, self.rank, "identify")
        self.succeed(1, self.rank, "identify")
        self.without_launcher()
        self.deserted()
        self.succeed(1, self.program, "supports", says="as it should be")
        self.succeed(4, self.program, "odd", says="the odd ranks")
        self.succeed(2, self.program, "single", says="MPI runs with MPI_THREAD_SINGLE")

    def without_launcher(self):
        code, _ = run([self.rank, self.plugin, "refused", "no launcher of MPI", "mpirun"])
        if code != 0:
            sys.exit(f"exit code {code}")

    def deserted(self):
        """A rank that fails does not wait for the others, so the launcher kills them."""
        start = time.monotonic()
        code, _ = run([self.mpiexec, "-n", 3, self.rank, self.plugin, "deserted"], limit=60)
        if code == 0:
            sys.exit("the launcher has not noticed that a rank failed")
        print(f"ended after {time.monotonic() - start:.1f} s", flush=True)

    def another_mpi_in_the_program(self):
        """The plugin is bound to the program's own MPI, but was compiled for another one."""
        self.succeed(1, self.program, "foreign", says="refused: this plugin was compiled for")

    def another_launcher(self, variable):
        """An MPI that the launcher does not know would start one job per process.

        Only one of two does: Open MPI 4 may fail if two jobs create its folder in /tmp at once
        (open-mpi/ompi#8510).
        """
        self.succeed(1, self.rank, "refused", "belong to different installations", variable, ":",
                     "-n", 1, "true")
