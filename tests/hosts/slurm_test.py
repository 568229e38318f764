#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real SLURM sets the variables that Lockstep reads, and its signals reach the ranks."""

import json
import subprocess
import sys
import unittest

import network_hosts
import slurm
from network_hosts import Hosts
from run_tests import run_tests
from slurm import Slurm


# Variables that lockstep/job/launcher_variables.cpp and variables.cpp read.
READ = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID",
        "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
        "SLURM_JOB_ID", "SLURM_STEP_ID")
# srun splits lines of more than a kilobyte, and would mix those of several tasks.
OTHERS = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
TELL = (f"import json, os\nprint(json.dumps({{name: os.environ[name] for name in {READ + OTHERS} "
        "if name in os.environ}), flush=True)")
WAIT_FOR_SIGNAL = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
print(signal.sigwait([signal.SIGUSR1]).name, flush=True)
"""


@unittest.skipIf(slurm.why_not(), slurm.why_not())
class SlurmTest(unittest.TestCase):
    rank = ""  # A program that joins the job of its launcher.

    @classmethod
    def setUpClass(cls):
        cls.slurm = Slurm(nodes=2)
        cls.slurm.__enter__()
        cls.addClassCleanup(cls.slurm.__exit__)

    def tasks(self, *options):
        """Returns the environments of a step's tasks, by rank."""
        program = [sys.executable, "-c", TELL]
        lines = self.slurm.run(["srun", *options, *program]).stdout.splitlines()
        tasks = [json.loads(line) for line in lines]
        return sorted(tasks, key=lambda task: int(task["SLURM_PROCID"]))

    def test_a_task_of_srun_has_all_variables_that_are_read(self):
        tasks = self.tasks("-n", "2")
        self.assertEqual([task["SLURM_PROCID"] for task in tasks], ["0", "1"])
        self.assertEqual([task["SLURM_LOCALID"] for task in tasks], ["0", "1"])
        for task in tasks:
            self.assertEqual([name for name in READ if name not in task], [])
            self.assertEqual(task["SLURM_NTASKS"], "2")
            self.assertEqual(task["SLURM_STEP_TASKS_PER_NODE"], "2")

    def test_tasks_on_two_nodes_are_told_who_is_where(self):
        tasks = self.tasks("-n", "3", "-N", "2")
        self.assertEqual([task["SLURM_NODEID"] for task in tasks], ["0", "0", "1"])
        self.assertEqual([task["SLURM_LOCALID"] for task in tasks], ["0", "1", "0"])
        for task in tasks:
            self.assertEqual(task["SLURM_STEP_TASKS_PER_NODE"], "2,1")
            self.assertEqual(task["SLURM_STEP_NODELIST"], "node[1-2]")

    def test_pmi2_comes_beside_slurms_own_variables_without_local_ranks(self):
        for task in self.tasks("--mpi=pmi2", "-n", "2"):
            self.assertEqual((task["PMI_RANK"], task["PMI_SIZE"]),
                             (task["SLURM_PROCID"], task["SLURM_NTASKS"]))
            self.assertNotIn("MPI_LOCALRANKID", task)

    def test_the_script_of_sbatch_is_task_0_of_no_step(self):
        script = self.slurm.folder / "script.sh"
        script.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c \"{TELL}\"\n")
        out = self.slurm.folder / "script.out"
        self.slurm.run(["sbatch", "--wait", "-n", "2", "-o", out, script])
        said = json.loads(out.read_text())
        self.assertEqual((said["SLURM_PROCID"], said["SLURM_NTASKS"]), ("0", "2"))
        self.assertNotIn("SLURM_STEP_ID", said)

    def test_a_program_in_the_script_of_sbatch_fails_at_once_and_advises_srun(self):
        script = self.slurm.folder / "without_srun.sh"
        script.write_text(f"#!/bin/sh\nexec '{self.rank}' --steps 1\n")
        out = self.slurm.folder / "without_srun.out"
        done = self.slurm.run(["sbatch", "--wait", "-n", "2", "-o", out, script], check=False)
        self.assertNotEqual(done.returncode, 0)
        for words in ("fault=misuse", "has 2 tasks", "srun PROGRAM"):
            self.assertIn(words, out.read_text())

    def test_tasks_of_one_srun_may_be_independent_jobs(self):
        done = self.slurm.run(["srun", "-n", "2", "env", "LOCKSTEP_LAUNCHER=none", self.rank,
                               "--steps", "1"])
        self.assertEqual(done.stdout.count(" size=1 "), 2, done.stdout)

    def test_a_signal_of_scancel_reaches_each_task(self):
        with self.waiting_tasks() as step:
            # Jobs of earlier tests may still be completing.
            jobs = self.slurm.run(["squeue", "-h", "-t", "RUNNING", "-o", "%A"]).stdout.split()
            self.assertEqual(len(jobs), 1)
            self.slurm.run(["scancel", "--signal=USR1", f"{jobs[0]}.0"])
            self.assert_signalled(step)

    def test_the_signal_before_the_time_limit_reaches_each_task(self):
        with self.waiting_tasks("--time=2", "--signal=USR1@110") as step:
            self.assert_signalled(step)

    def waiting_tasks(self, *options):
        step = self.slurm.popen(
            ["srun", "-n", "2", *options, sys.executable, "-c", WAIT_FOR_SIGNAL],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True)
        self.addCleanup(step.kill)  # Does nothing to a step that has ended.
        self.assertEqual([step.stdout.readline() for _ in range(2)], ["ready\n"] * 2)
        return step

    def assert_signalled(self, step):
        said, _ = step.communicate(timeout=100)
        self.assertEqual(said.split(), ["SIGUSR1"] * 2)
        self.assertEqual(step.returncode, 0)


@unittest.skipIf(slurm.why_not() or network_hosts.why_not(),
                 slurm.why_not() or network_hosts.why_not())
class SlurmOnHostsTest(unittest.TestCase):
    def test_srun_starts_tasks_on_hosts_that_are_apart(self):
        tell = ["sh", "-c", "echo $(hostname) $SLURM_NODEID $SLURM_STEP_NODELIST"]
        with Hosts(2) as hosts, Slurm(hosts=hosts) as cluster:
            for mpi in ("none", "pmi2", "pmix"):
                step = ["srun", f"--mpi={mpi}", "-N", "2", "-n", "2", *tell]
                done = cluster.run(step, check=False)
                if "Couldn't find the specified plugin" in done.stderr:
                    self.skipTest(f"this SLURM has no {mpi}")
                # srun may exit with 0 although it could not start a task.
                self.assertEqual(sorted(done.stdout.splitlines()),
                                 ["node1 0 node[1-2]", "node2 1 node[1-2]"], done.stderr)


if __name__ == "__main__":
    SlurmTest.rank = sys.argv[1]
    run_tests(sys.argv[2:])
