# SPDX-License-Identifier: Apache-2.0
"""Common parts of tests of jobs across hosts: hosts, jobs on them, and assertions about both.

    class Launchers(AcrossHosts):
        def test_something(self):
            job = self.job()
            job.by_variables((2, 2))
            self.assert_was_in_order(job, "shm+gloo")

    if __name__ == "__main__":
        main(__doc__)
"""
import argparse
import pathlib
import shutil
import unittest

import network_hosts
from jobs_across import Job
from network_hosts import Hosts
from run_tests import run_tests

# Exit codes of rank_of_hosts.h.
MISUSE, MISMATCH, TIMEOUT, PEER_LOST, ABORTED, CORRUPT = 10, 11, 13, 14, 15, 16
PREEMPTED = 75
# Limits in seconds, with some for ranks that a busy machine lets stand still.
NAMED_WITHIN = 4  # For every surviving rank to name a killed rank: less than for a silent host.
UNREACHED_WITHIN = 9  # For ranks to report a host without a link: 5, and several for the machine.


def has_engine(name):
    return (pathlib.Path(AcrossHosts.options.engines) / f"liblockstep-engine-{name}.so").exists()


@unittest.skipIf(network_hosts.why_not(), network_hosts.why_not())
class AcrossHosts(unittest.TestCase):
    count, networks, families = 3, 1, (4, 6)
    options = None

    @classmethod
    def setUpClass(cls):
        cls.hosts = Hosts(cls.count, cls.networks, cls.families).__enter__()
        cls.addClassCleanup(cls.hosts.__exit__)

    def job(self, *words, **variables):
        job = Job(self.hosts, self.options, *words, **variables)
        self.addCleanup(job.end)
        return job

    def need(self, *engine_names):
        for name in engine_names:
            if not has_engine(name):
                self.skipTest(f"the engine {name} was not built")

    def need_mpirun(self):
        self.need("mpi")
        if not shutil.which("mpirun") or not self.options.mpi_rank:
            self.skipTest("there is no mpirun (Debian's package openmpi-bin)")

    def need_torchrun(self):
        self.need("gloo")
        if not self.options.python or not self.options.torch_rank:
            self.skipTest("there is no torchrun (set LOCKSTEP_PYTHON to a Python with torch)")

    def assert_was_in_order(self, job, backend, counts=(2, 2)):
        size = sum(counts)
        self.assertEqual(job.wait(), [0] * len(job.processes), job.said())
        self.assert_joined(job.events("joined"), backend, counts, job)
        for event in ("checked", "stepping", "bye"):
            self.assertEqual(len(job.events(event)), size, job.said())

    def assert_joined(self, joined, backend, counts, job):
        """Asserts that these are all ranks of one group, each in its expected place."""
        size = sum(counts)
        self.assertEqual(sorted(int(event["rank"]) for event in joined), list(range(size)),
                         job.said())
        self.assertEqual({(event["backend"], event["size"]) for event in joined},
                         {(backend, str(size))}, job.said())
        places = sorted((int(event["local_size"]), int(event["local_rank"])) for event in joined)
        self.assertEqual(places, sorted(
            (count, local) for count in counts for local in range(count)))

    def assert_named(self, job, survivors, lost, since, limit):
        """Asserts that each rank names the lost one within `seconds`."""
        errors = job.until("error", len(survivors), patience=limit + 10)
        self.assertEqual({int(event["rank"]) for event in errors}, set(survivors), job.said())
        for event in errors:
            self.assertEqual(event["fault"], "peer_lost", job.said())
            self.assertIn(int(event["lost"]), lost(int(event["rank"])), job.said())
        seconds = [float(event["at"]) - since for event in errors]
        print(f"{self.id()}: named after {min(seconds):.3f} to {max(seconds):.3f} s")
        self.assertLess(max(seconds), limit, job.said())


def main(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--rank", required=True)
    parser.add_argument("--mpi-rank")
    parser.add_argument("--torch-rank")
    parser.add_argument("--python", help="one that has torch, and torchrun beside it")
    parser.add_argument("--engines", required=True)
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--scratch", type=pathlib.Path)
    AcrossHosts.options, rest = parser.parse_known_args()
    run_tests(rest)
