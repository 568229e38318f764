#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs across hosts under torchrun, whose ranks find each other in torchrun's store.

torchrun_test.py --lockstep LOCKSTEP --rank HOSTS_RANK --engines FOLDER
                 [--torch-rank HOSTS_TORCH_RANK --python PYTHON]
"""

import os
import signal
import time

from across_hosts import AcrossHosts, NAMED_WITHIN, main
from jobs_across import PATIENCE
from processes import soon


def is_pending(number, pid):
    """True if the signal is pending for the process."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        masks = dict(line.split(":", 1) for line in status)
    return bool(int(masks["ShdPnd"], 16) >> (number - 1) & 1)


class UnderTorchrun(AcrossHosts):
    count = 2

    def setUp(self):
        self.need_torchrun()

    def test_ranks_meet_at_its_store(self):
        job = self.job(LOCKSTEP_LOG="info")
        job.by_torchrun((2, 2))
        self.assert_was_in_order(job, "shm+gloo")
        self.assertIn("started by torchrun", job.said())

    def test_a_killed_rank_is_named_on_the_other_host(self):
        job = self.job()
        job.by_torchrun((2, 2), until_told=True)
        job.until("stepping", 4)
        start = time.monotonic()
        os.kill(job.pid_of(3), signal.SIGKILL)
        self.assertEqual(job.wait(), [1, 1], job.said())
        errors = job.events("error")
        self.assertEqual({event["lost"] for event in errors}, {"3"}, job.said())
        # torchrun kills a host's other ranks as soon as one has exited: which ranks still report is
        # random.
        there = [float(event["at"]) - start for event in errors if event["rank"] in ("0", "1")]
        self.assertTrue(there, job.said())
        self.assertLess(max(there), NAMED_WITHIN, job.said())


class StartedAnew(AcrossHosts):
    count = 2

    def setUp(self):
        self.need_torchrun()

    def assert_ends_well_after_second_start(self, job):
        job.until("stepping", 8)
        self.assert_joined(job.events("joined")[4:], "shm+gloo", (2, 2), job)
        job.tell_to_end()
        self.assertEqual(job.wait(), [0, 0], job.said())
        self.assertEqual(len(job.events("bye")), 4, job.said())

    def until_told_to_end(self, stopped, job):
        """Waits until the agent has sent SIGTERM to each stopped process. The signal arrives
        when the process continues."""
        self.assertTrue(soon(lambda: all(is_pending(signal.SIGTERM, pid) for pid in stopped),
                             PATIENCE), job.said())

    def test_its_store_serves_the_second_start_too(self):
        for meeting in ("c10d", "static"):
            with self.subTest(meeting=meeting):
                job = self.job()
                job.by_torchrun((2, 2), "--max-restarts", 1, meeting=meeting, until_told=True)
                job.until("stepping", 4)
                os.kill(job.pid_of(3), signal.SIGKILL)
                self.assert_ends_well_after_second_start(job)

    def test_its_agents_may_have_counted_different_numbers_of_restarts(self):
        job = self.job()
        job.by_torchrun((2, 2), "--max-restarts", 1, until_told=True)
        job.until("stepping", 4)
        # The second host's agent detects a failure. The first one only detects that the other one
        # restarts, which does not count.
        unaware = [job.pid_of(rank) for rank in (0, 1)]
        for pid in unaware:
            os.kill(pid, signal.SIGSTOP)
        os.kill(job.pid_of(3), signal.SIGKILL)
        self.until_told_to_end(unaware, job)
        for pid in unaware:
            os.kill(pid, signal.SIGCONT)
        self.assert_ends_well_after_second_start(job)
        counted = {event["attempt"] for event in job.events("joined")[4:]}
        self.assertEqual(counted, {"0", "1"}, job.said())


if __name__ == "__main__":
    main(__doc__)
