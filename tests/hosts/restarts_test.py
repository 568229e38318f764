#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs across hosts that `lockstep run` restarts after a fault.

restarts_test.py --lockstep LOCKSTEP --rank HOSTS_RANK --engines FOLDER
"""

import os
import pathlib
import signal
import sys

from across_hosts import AcrossHosts, main

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from processes import kill_all  # noqa: E402


class Restarts(AcrossHosts):
    count = 2

    def joined(self, job, attempt):
        return [event for event in job.events("joined") if event["attempt"] == str(attempt)]

    def assert_starts_anew(self, job, harm, counts=(2, 2), backend="shm+gloo"):
        """Asserts that after `harm` during the steps, the next attempt forms its group."""
        job.until("stepping", 4)
        self.assert_joined(self.joined(job, 0), "shm+gloo", (2, 2), job)
        harm()
        job.until("stepping", 4 + sum(counts))
        self.assert_joined(self.joined(job, 1), backend, counts, job)
        job.tell_to_end()

    def kill(self, job, rank):
        return lambda: os.kill(job.pid_of(rank), signal.SIGKILL)

    def assert_ended_well(self, job):
        self.assertEqual(job.wait(), [0, 0], job.said())
        self.assertEqual(len(job.events("bye")), 4, job.said())

    def test_a_fixed_number_of_hosts(self):
        self.need("gloo")
        job = self.job()
        job.by_lockstep_run((2, 2), "--max-restarts", 1, until_told=True)
        self.assert_starts_anew(job, self.kill(job, 3))
        self.assert_ended_well(job)

    def test_an_elastic_job_of_which_a_rank_is_killed(self):
        self.need("gloo")
        job = self.job()
        job.by_lockstep_run((2, 2), "--max-restarts", 1, nnodes="1:2", until_told=True)
        self.assert_starts_anew(job, self.kill(job, 0))
        self.assert_ended_well(job)

    def test_an_elastic_job_goes_on_without_a_host_that_is_lost(self):
        self.need("gloo")
        job = self.job()
        job.by_lockstep_run((2, 2), "--max-restarts", 1, nnodes="1:2", until_told=True)
        self.assert_starts_anew(job, lambda: kill_all(job.processes[1].pid), (2,), "shm")
        self.assertEqual(job.wait(), [0, -signal.SIGKILL], job.said())
        self.assertEqual(len(job.events("bye")), 2, job.said())


if __name__ == "__main__":
    main(__doc__)
