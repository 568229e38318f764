#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings that lose ranks, launchers and hosts, and continue from their checkpoints.

Several launchers on this host stand for several hosts, each with its own agent and ranks.
"""

import argparse
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from ports import free_port, listening_ports  # noqa: E402
from processes import descendants, is_running, kill_all, ranks_of, soon  # noqa: E402
from sample_logs import SampleLog  # noqa: E402
from small_datasets import write_fashion_mnist  # noqa: E402

PROGRAMS = None  # The programs named on the command line.
PREEMPTED = 75
UNAVAILABLE = 69


def hash_in(text):
    return re.search(r"sha256 ([0-9a-f]{64})", text)[1]


class Job:
    """A launcher and its output."""

    def __init__(self, folder, *arguments):
        self.log = tempfile.TemporaryFile("w+", dir=folder)
        command = [PROGRAMS.lockstep, "run", *arguments]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log,
                                        env=os.environ | {"OMP_NUM_THREADS": "1"})

    def output(self):
        return os.pread(self.log.fileno(), 1 << 24, 0).decode()

    def end(self):
        kill_all(self.process.pid)
        self.process.wait()
        self.log.close()

    def wait(self, limit=100):
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            kill_all(self.process.pid)
            raise AssertionError("the job hangs:\n" + self.output())


class Elastic(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.data = self.folder / "data"
        self.checkpoints = self.folder / "checkpoints"
        write_fashion_mnist(self.data)
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.samples = SampleLog(self.folder / "samples")
        self.addCleanup(self.samples.close)
        self.jobs = []
        self.addCleanup(lambda: [job.end() for job in self.jobs])

    def start(self, options, program, *arguments):
        job = Job(self.folder, *options, program, "--data", self.data, "--print-hash", *arguments)
        self.jobs.append(job)
        return job

    def undisturbed(self, ranks, program, *arguments):
        job = self.start(("-n", ranks), program, *arguments)
        self.assertEqual(job.wait(), 0, job.output())
        return hash_in(job.output())

    def held(self):
        """Options of a training that does not end before release(): it waits for this test."""
        return ("--log-samples", self.samples.path)

    def kept(self, every=5):
        return ("--checkpoint", self.checkpoints, "--checkpoint-every", every, "--keep", 3,
                "--resume", "auto")

    def until(self, holds, what, limit=60):
        if not soon(holds, limit):
            self.fail(f"{what} did not come:\n" + "\n".join(job.output() for job in self.jobs))

    def newest(self):
        steps = re.findall(r"step-(\d{10})(?![.\d])", " ".join(
            os.listdir(self.checkpoints) if self.checkpoints.is_dir() else []))
        return max(map(int, steps), default=0)

    def after_another_checkpoint(self):
        before = self.newest()

        def has_come():
            self.samples.read()
            return self.newest() > before

        self.until(has_come, "another checkpoint")

    def kill_rank(self, pid):
        """Afterwards, the rank completes no checkpoint."""
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: not is_running(pid), f"the end of process {pid}")

    def ends_well(self, job, expected_hash):
        self.assertEqual(job.wait(), 0, job.output())
        self.assertEqual(hash_in(job.output()), expected_hash)

    def test_killed_ranks_are_started_anew_and_the_weights_are_those_of_an_undisturbed_run(self):
        training = ("--steps", 100, "--batch-size", 16)
        whole = self.undisturbed(2, PROGRAMS.fashion_mnist, *training)
        job = self.start(("-n", 2, "--max-restarts", 3), PROGRAMS.fashion_mnist, *training,
                         *self.kept(), *self.held())
        for _ in range(3):
            self.after_another_checkpoint()
            time.sleep(random.uniform(0, 0.1))
            ranks = ranks_of(job.process.pid)
            if len(ranks) == 2:
                self.kill_rank(random.choice(ranks))
        self.samples.release()
        self.ends_well(job, whole)
        self.assertIn("attempt 1: 2 ranks on 1 host, restart 1 of 3", job.output())
        self.assertIn("lockstep run: caused by rank ", job.output())
        self.assertIn("resumed after step", job.output())

    def test_when_no_restart_is_left_the_job_ends_as_the_rank_did(self):
        job = self.start(("-n", 2, "--max-restarts", 1), PROGRAMS.fashion_mnist, "--steps", 100000,
                         *self.kept())
        for _ in range(2):
            self.after_another_checkpoint()
            self.kill_rank(ranks_of(job.process.pid)[0])
        self.assertEqual(job.wait(), 128 + signal.SIGKILL, job.output())
        self.assertIn("was killed by signal 9 (SIGKILL)", job.output())

    def two_hosts(self, nnodes, program, *arguments, restarts=3):
        hosts = ("-n", 1, "--nnodes", nnodes, "--rdzv-endpoint", self.endpoint, "--rdzv-id", "test",
                 "--max-restarts", restarts)
        first = self.start(hosts, program, *arguments)
        port = int(self.endpoint.rsplit(":", 1)[1])
        self.until(lambda: any(address.endswith(f":{port:04X}") for address in listening_ports()),
                   "the first launcher")
        return hosts, first, self.start(hosts, program, *arguments)

    def test_a_host_that_is_lost_and_comes_back_costs_a_restart_and_no_bit(self):
        training = ("--steps", 60, "--batch-size", 16)
        whole = self.undisturbed(2, PROGRAMS.fashion_mnist, *training)
        hosts, first, second = self.two_hosts(2, PROGRAMS.fashion_mnist, *training, *self.kept(),
                                              *self.held())
        self.after_another_checkpoint()
        kill_all(second.process.pid)
        self.samples.release()
        replacement = self.start(hosts, PROGRAMS.fashion_mnist, *training, *self.kept(),
                                 *self.held())
        self.ends_well(first, whole)
        self.assertEqual(replacement.wait(), 0, replacement.output())
        self.assertIn("attempt 1", first.output())

    def test_an_elastic_job_goes_on_on_the_hosts_that_are_left_with_the_same_bits(self):
        training = ("--steps", 60)
        whole = self.undisturbed(2, PROGRAMS.deterministic, *training)
        _, first, second = self.two_hosts("1:2", PROGRAMS.deterministic, *training, *self.kept(),
                                          *self.held())
        self.until(lambda: len(ranks_of(second.process.pid)) == 1, "a job of two hosts")
        self.after_another_checkpoint()
        kill_all(second.process.pid)
        self.samples.release()
        self.ends_well(first, whole)
        self.assertRegex(first.output(), r"was lost; attempt \d: 1 rank on 1 host")

    def test_the_loss_of_the_host_with_the_store_ends_the_others_within_five_seconds(self):
        _, first, second = self.two_hosts(2, PROGRAMS.fashion_mnist, "--steps", 100000,
                                          *self.kept())
        self.after_another_checkpoint()
        kill_all(first.process.pid)
        start = time.monotonic()
        self.assertEqual(second.wait(20), UNAVAILABLE, second.output())
        self.assertLess(time.monotonic() - start, 5)
        self.assertIn(f"lost host {socket.gethostname()}", second.output())

    def test_a_preempted_job_saves_and_continues_later(self):
        training = ("--steps", 400, "--batch-size", 16)
        whole = self.undisturbed(2, PROGRAMS.fashion_mnist, *training)
        kept = self.kept(every=30)
        for tell in (lambda job: job.process.send_signal(signal.SIGTERM),
                     lambda job: job.process.send_signal(signal.SIGUSR1),
                     lambda job: os.kill(ranks_of(job.process.pid)[1], signal.SIGUSR1)):
            self.samples.hold()
            job = self.start(("-n", 2, "--max-restarts", 3), PROGRAMS.fashion_mnist, *training,
                             *kept, *self.held())
            self.after_another_checkpoint()
            time.sleep(random.uniform(0, 0.05))
            tell(job)
            self.samples.release()
            self.assertEqual(job.wait(), PREEMPTED, job.output())
            self.assertNotIn("attempt 1", job.output())
        job = self.start(("-n", 2), PROGRAMS.fashion_mnist, *training, *kept)
        self.ends_well(job, whole)


def main():
    global PROGRAMS
    parser = argparse.ArgumentParser(description=__doc__)
    for program in ("lockstep", "fashion-mnist", "deterministic"):
        parser.add_argument(f"--{program}", required=True)
    PROGRAMS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
