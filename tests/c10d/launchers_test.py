#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""init_process_group("lockstep") finds its rank by the variables of launchers other than torchrun:
under mpirun, and with those of MPICH's, SLURM's and Flux's. A program's own settings are kept."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import unittest

import plugin_or_skip  # noqa: F401, skips this test

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import ports  # noqa: E402, from the folder above

PROGRAM = """
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("lockstep")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
words = [dist.get_rank(), total.item(), *[os.environ.get(name, "-") for name in names]]
sys.stdout.write(" ".join(map(str, words)) + "\\n")  # At once: mpirun mixes what comes in parts.
dist.destroy_process_group()
"""

STEPS = """
import json
import subprocess
import sys
import torch
import torch.distributed as dist
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], 0.1)
optimizer.step()  # Before there is a group: not counted.
dist.init_process_group("lockstep")
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
dist.barrier()
if dist.get_rank() == 0:
    state = "does not answer"  # The launcher has a second to do so.
    while state == "does not answer":
        status = subprocess.run([sys.argv[1], "status", "--json", "steps"], capture_output=True)
        state = json.loads(status.stdout)[0]["state"]
    sys.stdout.write(status.stdout.decode())
dist.barrier()
dist.destroy_process_group()
optimizer.step()
"""

PATIENCE = 100  # Seconds on a busy machine.


def clean_environment():
    """Without any launcher's variables."""
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "SLURM_",
                 "FLUX_", "LOCKSTEP_LAUNCHER", "LOCKSTEP_JOB", "LOCKSTEP_AGENT", "TORCHELASTIC")
    return {name: value for name, value in os.environ.items() if not name.startswith(launchers)}


def start(variables, *wrapper, **options):
    return subprocess.Popen([*wrapper, sys.executable, "-c", PROGRAM],
                            env=clean_environment() | variables, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def outputs(ranks):
    """Returns the words of each rank's line. Ranks that fail make the test fail."""
    try:
        ended = [(rank, *rank.communicate(timeout=PATIENCE)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()  # The ranks that wait for the failed one.
    for rank, output, errors in ended:
        assert rank.returncode == 0, output + errors
    return [output.split() for _, output, _ in ended]


def slurm(rank, **others):
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(rank),
            "SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(os.getpid()), "SLURM_STEP_NUM_NODES": "1",
            "SLURM_STEP_TASKS_PER_NODE": "2"} | others


class Launchers(unittest.TestCase):
    def check(self, lines):
        for rank, line in enumerate(sorted(lines)):
            self.assertEqual(line[:6], [str(rank), "3.0", str(rank), "2", str(rank), "2"])
        self.assertEqual(lines[0][6:], lines[1][6:])

    def test_of_open_mpi(self):
        if not shutil.which("mpirun"):
            self.skipTest("there is no mpirun")
        done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                               sys.executable, "-c", PROGRAM], env=clean_environment(), text=True,
                              capture_output=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check([line.split() for line in done.stdout.splitlines()])

    def test_of_mpich(self):
        job = {"PMI_SIZE": "2", "PMI_JOBID": str(os.getpid()), "MPI_LOCALNRANKS": "2"}
        self.check(outputs([start(job | {"PMI_RANK": str(rank), "MPI_LOCALRANKID": str(rank)})
                            for rank in range(2)]))

    def test_of_mpichs_own_mpiexec(self):
        """It has no job id, but connects the ranks of one job, each through a socket."""
        ranks = []
        for rank in range(2):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ranks.append(start({"PMI_SIZE": "2", "PMI_RANK": str(rank), "MPI_LOCALNRANKS": "2",
                                    "MPI_LOCALRANKID": str(rank), "PMI_FD": str(theirs.fileno())},
                                   "sh", "-c", '"$@"; exit $?', "sh", pass_fds=[theirs.fileno()]))
        self.check(outputs(ranks))

    def test_of_mpich_without_the_name_of_the_job(self):
        """Two jobs would use one port."""
        job = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "HYDI_CONTROL_FD": "7"}
        rank = start(job | {"PMI_RANK": "0", "MPI_LOCALRANKID": "0"})
        _, errors = rank.communicate(timeout=PATIENCE)
        self.assertNotEqual(rank.returncode, 0)
        self.assertIn("ValueError: PMI does not say which of this host's jobs this is: set "
                      "MASTER_PORT on all ranks", errors)
        port = str(ports.free_port())
        lines = outputs([start(job | {"PMI_RANK": str(rank), "MPI_LOCALRANKID": str(rank),
                                      "MASTER_PORT": port}) for rank in range(2)])
        self.check(lines)
        self.assertEqual(lines[0][6:], ["127.0.0.1", port])

    def test_of_slurm(self):
        self.check(outputs([start(slurm(rank)) for rank in range(2)]))

    def test_of_flux(self):
        job = {"FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "1", "FLUX_JOB_ID": f"f{os.getpid()}"}
        self.check(outputs([start(job | {"FLUX_TASK_RANK": str(rank),
                                         "FLUX_TASK_LOCAL_ID": str(rank)}) for rank in range(2)]))

    def test_with_none_each_process_is_a_job_of_its_own(self):
        port = str(ports.free_port())
        lines = outputs([start(slurm(rank, LOCKSTEP_LAUNCHER="none", RANK="7", MASTER_PORT=port))
                         for rank in range(2)])
        self.assertEqual(lines, [["0", "1.0", "0", "1", "0", "1", "127.0.0.1", "0"]] * 2)

    def test_a_port_that_kubernetes_has_set_for_a_service_is_ignored_with_a_warning(self):
        link = "tcp://10.0.0.1:29400"
        ranks = [start(slurm(rank, MASTER_PORT=link)) for rank in range(2)]
        ended = [rank.communicate(timeout=PATIENCE) for rank in ranks]
        self.check([output.split() for output, _ in ended])
        for _, errors in ended:
            self.assertEqual(errors.count(f"lockstep warning: ignoring MASTER_PORT={link}"), 1)

    def test_a_script_of_sbatch_is_advised_to_use_srun(self):
        variables = slurm(0)
        del variables["SLURM_STEP_ID"]
        rank = start(variables)
        _, errors = rank.communicate(timeout=PATIENCE)
        self.assertNotEqual(rank.returncode, 0)
        self.assertIn("start the program with srun", errors)

    def test_of_lockstep_shows_the_steps_of_optimizers(self):
        done = subprocess.run([LOCKSTEP, "run", "-n", "2", "--rdzv-id", "steps", sys.executable,
                               "-c", STEPS, LOCKSTEP], env=clean_environment(), text=True,
                              capture_output=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        job, = json.loads(re.sub(r"(?m)^\[0\] ", "", done.stdout))
        self.assertEqual([rank["step"] for rank in job["ranks"]], [3, 3])

    def test_what_is_set_stays(self):
        port = str(ports.free_port())
        lines = outputs([start(slurm(rank, MASTER_ADDR="localhost", MASTER_PORT=port))
                         for rank in range(2)])
        self.check(lines)
        self.assertEqual(lines[0][6:], ["localhost", port])

    def test_several_hosts_need_an_address(self):
        rank = start({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2",
                      "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
        _, errors = rank.communicate(timeout=PATIENCE)
        self.assertNotEqual(rank.returncode, 0)
        self.assertIn("Open MPI does not say on which host rank 0 is: set MASTER_ADDR", errors)

    def test_without_a_launcher_torch_says_what_it_misses(self):
        for variables in ({}, slurm(0, LOCKSTEP_WRAP_NAMES="0")):
            rank = start(variables)
            _, errors = rank.communicate(timeout=PATIENCE)
            self.assertNotEqual(rank.returncode, 0)
            self.assertIn("environment variable RANK expected, but not set", errors)


if __name__ == "__main__":
    LOCKSTEP = sys.argv.pop(1)
    unittest.main()
