#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of two hosts whose network is slow, loses packets, ends silently, or corrupts data.

harmed_wire_test.py --lockstep LOCKSTEP --rank HOSTS_RANK --engines FOLDER
"""

import time
import unittest

import wire
from across_hosts import (ABORTED, AcrossHosts, CORRUPT, MISMATCH, PEER_LOST, TIMEOUT,
                          UNREACHED_WITHIN, main)
from processes import soon
from wire import Wire


@unittest.skipIf(wire.why_not(), wire.why_not())
class OverAHarmedWire(AcrossHosts):
    count = 2

    def setUp(self):
        self.need("gloo")
        self.wire = Wire(*self.hosts)
        self.addCleanup(self.wire.__exit__)
        self.addCleanup(lambda: self.assertEqual(self.wire.lost_by_itself(), 0))

    def start(self, *words, counts=(2, 2)):
        """Starts a job whose store is elsewhere: only its connections and its engine use the wire.
        """
        job = self.job(*words, LOCKSTEP_INTERFACE=wire.NAME)
        job.by_variables(counts, until_told=True)
        return job

    def at_its_steps(self, *words, counts=(2, 2)):
        job = self.start(*words, counts=counts)
        job.until("stepped", sum(counts))
        return job

    def run_in_order(self, *harm):
        self.wire.do(*harm)
        job = self.start()
        job.until("stepping", 4)
        job.tell_to_end()
        self.assert_was_in_order(job, "shm+gloo")

    def test_a_way_of_20_ms_is_no_failure(self):
        self.run_in_order("delay", 0.02)

    def test_lost_packets_are_repeated(self):
        self.run_in_order("lose", 50)

    def cut_it(self, *end):
        job = self.at_its_steps()
        start = time.monotonic()
        self.wire.do("cut", *end)
        self.assert_named(job, (0, 1, 2, 3), lambda rank: {2, 3} if rank < 2 else {0, 1}, start,
                          UNREACHED_WITHIN)
        self.assertEqual(job.wait(), [PEER_LOST] * 4, job.said())

    def test_a_wire_that_is_cut_for_good_is_noticed_on_both_sides(self):
        self.cut_it()

    def test_a_wire_that_is_cut_one_way_is_noticed_on_both_sides(self):
        self.cut_it(1)

    def test_a_wire_that_is_cut_the_other_way_is_noticed_on_both_sides(self):
        self.cut_it(2)

    def flip_until_it_shows(self, job, position):
        """Flips bits until a rank detects it."""
        for _ in range(5):
            self.wire.do("flip", "line", position)
            if soon(lambda: job.events("error"), 5):  # Longer than the job's own limit.
                return

    def test_a_bit_that_is_flipped_in_a_line_ends_the_job_with_an_error_and_no_wrong_sum(self):
        # Fields of the frame in which a rank describes its call: comm/tcp/frames.h,
        # comm/core/signature.h.
        parts = {"length": 0, "kind": 4, "group": 5, "number": 13, "count": 21, "operation": 49,
                 "dtype": 50}
        for part, position in parts.items():
            with self.subTest(part=part):
                job = self.at_its_steps("--step-timeout", 2, counts=(1, 1))
                self.flip_until_it_shows(job, position)
                codes = job.wait()
                ends = {MISMATCH, TIMEOUT, PEER_LOST, CORRUPT}
                if CORRUPT in codes:  # The rank that detected it may have notified the other one.
                    ends.add(ABORTED)
                self.assertEqual(set(codes) - ends, set(), job.said())
                print(f"{self.id()}: {part}: {[event['fault'] for event in job.events('error')]}")
                job.end()


if __name__ == "__main__":
    main(__doc__)
