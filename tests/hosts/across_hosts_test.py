#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs across hosts, under every launcher and with every engine: undisturbed jobs, and faults.

across_hosts_test.py --lockstep LOCKSTEP --rank HOSTS_RANK --engines FOLDER [--mpi-rank PROGRAM]
"""

import os
import signal
import sys
import time
import unittest

import slurm
from across_hosts import (AcrossHosts, CORRUPT, MISUSE, NAMED_WITHIN, PEER_LOST, PREEMPTED, TIMEOUT,
                          UNREACHED_WITHIN, has_engine, main)
from relay import Relay
from slurm import Slurm

# Sends data that no rank sends, and prints how many listeners closed; others stay open.
UNAUTHENTICATED_PEER = """
import os, socket, sys
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as peer:
        try:
            peer.sendall(os.urandom(4096))
            while peer.recv(4096): pass
        except ConnectionResetError:
            pass
"""


class Launchers(AcrossHosts):
    def test_lockstep_run_on_two_hosts_says_what_it_chose(self):
        self.need("gloo")
        job = self.job(LOCKSTEP_LOG="info")
        job.by_lockstep_run((2, 2))
        self.assert_was_in_order(job, "shm+gloo")
        self.assertEqual(job.said().count("backend shm+gloo (4 ranks on 2 hosts; by eth0 "), 4,
                         job.said())

    def test_lockstep_run_on_three_hosts(self):
        self.need("oneccl")
        job = self.job(LOCKSTEP_BACKEND="shm+oneccl")
        job.by_lockstep_run((2, 2, 2))
        self.assert_was_in_order(job, "shm+oneccl", (2, 2, 2))

    def test_lockstep_run_with_more_ranks_on_one_host(self):
        self.need("gloo")
        job = self.job()
        job.by_lockstep_run((3, 1))
        self.assert_was_in_order(job, "shm+gloo", (3, 1))

    def test_bare_variables_with_each_engine(self):
        for backend in ("shm+gloo", "gloo", "shm+oneccl", "oneccl"):
            if not has_engine(backend.split("+")[-1]):
                continue
            with self.subTest(backend=backend):
                job = self.job(LOCKSTEP_BACKEND=backend)
                job.by_variables((2, 2))
                self.assert_was_in_order(job, backend)

    def test_one_rank_on_each_host_needs_no_shared_memory(self):
        self.need("gloo")
        job = self.job()
        job.by_variables((1, 1, 1))
        self.assert_was_in_order(job, "gloo", (1, 1, 1))

    def test_mpirun_with_each_engine(self):
        self.need_mpirun()
        for backend, chosen in ((None, "shm+mpi"), ("mpi", "mpi"), ("shm+gloo", "shm+gloo")):
            if not has_engine(chosen.split("+")[-1]):
                continue
            with self.subTest(backend=backend):
                job = self.job(**({"LOCKSTEP_BACKEND": backend} if backend else {}))
                job.by_mpirun((2, 2))
                self.assert_was_in_order(job, chosen)

    def test_mpirun_needs_no_token(self):
        self.need_mpirun()
        job = self.job(LOCKSTEP_JOB_TOKEN_FILE=None)
        job.by_mpirun((2, 2))
        self.assert_was_in_order(job, "shm+mpi")

    def test_mpirun_with_more_ranks_on_one_host(self):
        self.need_mpirun()
        job = self.job(LOCKSTEP_LOG="info")
        job.by_mpirun((3, 1))
        self.assert_was_in_order(job, "shm+mpi", (3, 1))
        self.assertIn("backend shm+mpi (4 ranks on 2 hosts; by eth0 ", job.said())

    def test_a_program_of_mpi_hands_over_a_part_of_its_processes(self):
        self.need_mpirun()
        job = self.job()
        job.by_mpirun((2, 2), program=self.options.mpi_rank)
        self.assert_was_in_order(job, "shm+mpi", (1, 2))
        self.assertIn("served sum=6\n", job.said())

    def test_ipv6(self):
        for name in ("gloo", "oneccl"):
            if not has_engine(name):
                continue
            with self.subTest(engine=name):
                job = self.job(LOCKSTEP_BACKEND=f"shm+{name}")
                job.by_variables((2, 2), master=self.hosts[0].address6, until_told=True)
                job.until("stepping", 4)
                listening = [address for host in self.hosts for address in host.listening()]
                if name == "gloo":  # The others' store is on IPv4.
                    self.assertEqual([one for one in listening if not one.startswith("[fd77")], [])
                job.tell_to_end()
                self.assert_was_in_order(job, f"shm+{name}")

    def test_contradictory_variables_are_shown(self):
        self.need_mpirun()
        job = self.job("--timeout", 10, RANK="5", WORLD_SIZE="8", LOCAL_RANK="0",
                       LOCAL_WORLD_SIZE="8")
        job.by_mpirun((1, 1))
        job.wait()
        for words in ("RANK=5", "WORLD_SIZE=8", "OMPI_COMM_WORLD_SIZE=2", "fault=misuse"):
            self.assertIn(words, job.said())


class WithoutIPv4(AcrossHosts):
    count, families = 2, (6,)

    def test_lockstep_run(self):
        self.need("gloo")
        job = self.job()
        job.by_lockstep_run((2, 2))
        self.assert_was_in_order(job, "shm+gloo")

    def test_mpirun(self):
        self.need_mpirun()
        job = self.job()
        job.by_mpirun((2, 2), until_told=True)
        job.until("stepping", 4)
        for host in self.hosts:
            own = f"[{host.address6}]:"
            mine = [one for one in host.listening() if one.startswith(own)]
            self.assertGreaterEqual(len(mine), 2)
        job.tell_to_end()
        self.assert_was_in_order(job, "shm+mpi")


class OtherNames(AcrossHosts):
    """Other interface names: this one sorts after lo, and oneCCL gets it, too."""

    count, families = 2, (4,)

    def setUp(self):
        for host in self.hosts:
            if "eth0" in host.run(["ls", "/sys/class/net"]).stdout.split():
                for words in (["down"], ["name", "wire0"]):
                    host.run(["ip", "link", "set", "eth0", *words])
                host.run(["ip", "link", "set", "wire0", "up"])

    def test_each_engine(self):
        for backend in ("gloo", "oneccl"):
            with self.subTest(backend=backend):
                self.need(backend)
                job = self.job(LOCKSTEP_BACKEND=backend)
                job.by_variables((1, 1))
                self.assert_was_in_order(job, backend, (1, 1))


class Protection(AcrossHosts):
    def test_without_a_token_the_error_says_so(self):
        job = self.job("--timeout", 10, LOCKSTEP_JOB_TOKEN_FILE=None)
        job.by_variables((1, 1))
        self.assertEqual(job.wait(), [MISUSE] * 2, job.said())
        self.assertEqual(job.said().count("LOCKSTEP_JOB_TOKEN_FILE"), 2, job.said())

    def test_a_wrong_token_and_another_job_are_refused_and_the_job_goes_on(self):
        self.need("gloo")
        job = self.job(LOCKSTEP_JOB_ID="right")
        job.by_variables((1, 1, 1), ranks=(0, 1))
        for wrong in ({"LOCKSTEP_JOB_TOKEN_FILE": job.token("other")},
                      {"LOCKSTEP_JOB_ID": "wrong"}):
            impostor = self.job("--timeout", 30, **{"LOCKSTEP_JOB_ID": "right", **wrong})
            impostor.by_variables((1, 1, 1), ranks=(2,), port=job.port)
            self.assertEqual(impostor.wait(), [MISUSE], impostor.said())
            self.assertIn("the store refused this rank", impostor.said())
            self.assertEqual(job.events("joined"), [], job.said())
        job.by_variables((1, 1, 1), ranks=(2,), port=job.port)
        self.assert_was_in_order(job, "gloo", (1, 1, 1))

    def test_an_unauthenticated_peer_that_sends_garbage_is_rejected_and_the_job_continues(self):
        self.need("gloo")
        job = self.job(LOCKSTEP_BACKEND="shm+gloo")
        job.by_variables((2, 2), until_told=True)
        job.until("stepping", 4)
        doors = self.hosts[0].listening() + self.hosts[1].listening()
        self.hosts[2].run([sys.executable, "-c", UNAUTHENTICATED_PEER, *doors])
        job.tell_to_end()
        self.assert_was_in_order(job, "shm+gloo")
        refused = ": closed a connection: it did not prove this job's token"
        for door in (f"store on port {job.port}",
                     *(f"connections of rank {rank}" for rank in range(4))):
            self.assertIn(door + refused, job.said())


class Harm(AcrossHosts):
    def start(self, backend, counts=(2, 2)):
        """Returns a job that has started its steps."""
        self.need(backend.split("+")[-1])
        job = self.job(LOCKSTEP_BACKEND=backend)
        if backend.endswith("mpi"):
            # Without -enable-recovery, mpirun also kills the survivors as fast as it can.
            job.by_mpirun(counts, "-enable-recovery", until_told=True)
        else:
            job.by_variables(counts, until_told=True)
        job.until("stepping", sum(counts))
        time.sleep(0.2)
        return job

    def kill_last(self, backend, counts=(2, 2)):
        job = self.start(backend, counts)
        last = sum(counts) - 1
        start = time.monotonic()
        os.kill(job.pid_of(last), signal.SIGKILL)
        self.assert_named(job, range(last), lambda _: {last}, start, NAMED_WITHIN)
        if not backend.endswith("mpi"):  # With -enable-recovery, mpirun itself never exits.
            self.assertEqual(sorted(job.wait()), [-signal.SIGKILL] + [PEER_LOST] * last, job.said())
        job.end()

    def test_a_killed_rank_is_named_on_three_hosts_with_gloo(self):
        self.kill_last("shm+gloo", (2, 2, 2))

    def test_a_killed_rank_is_named_where_hosts_have_different_numbers_of_ranks(self):
        self.kill_last("shm+gloo", (3, 1))

    def test_a_killed_rank_is_named_with_gloo_alone(self):
        self.kill_last("gloo")

    def test_a_killed_rank_is_named_with_oneccl(self):
        self.kill_last("shm+oneccl")

    def test_a_killed_rank_is_named_with_mpi(self):
        self.kill_last("shm+mpi")

    def test_a_killed_rank_is_named_under_lockstep_run(self):
        self.need("gloo")
        job = self.job("--ignore-sigterm")  # The launcher sends it 0.5 s after the failure.
        job.by_lockstep_run((2, 2), until_told=True)
        job.until("stepping", 4)
        start = time.monotonic()
        os.kill(job.pid_of(3), signal.SIGKILL)
        self.assert_named(job, (0, 1, 2), lambda _: {3}, start, NAMED_WITHIN)
        self.assertEqual(job.wait(), [128 + signal.SIGKILL] * 2, job.said())

    def test_mpirun_ends_the_job_of_a_killed_rank_and_who_still_speaks_names_it(self):
        self.need("mpi")
        job = self.job()
        job.by_mpirun((2, 2), until_told=True)
        job.until("stepping", 4)
        os.kill(job.pid_of(3), signal.SIGKILL)
        self.assertNotEqual(job.wait(), [0], job.said())
        self.assertEqual({event["lost"] for event in job.events("error")} - {"3"}, set(),
                         job.said())

    def unplug_one(self, backend):
        job = self.start(backend)
        start = time.monotonic()
        self.hosts[1].unplug()
        self.addCleanup(self.hosts[1].plug_in)
        self.assert_named(job, (0, 1, 2, 3), lambda rank: {2, 3} if rank < 2 else {0, 1}, start,
                          UNREACHED_WITHIN)
        if not backend.endswith("mpi"):  # Its mpirun has not detected the failure yet.
            self.assertEqual(job.wait(), [PEER_LOST] * 4, job.said())
        job.end()

    def test_a_host_without_a_link_is_lost_to_both_sides_with_gloo(self):
        self.unplug_one("shm+gloo")

    def test_a_host_without_a_link_is_lost_to_both_sides_with_oneccl(self):
        self.unplug_one("shm+oneccl")

    def test_a_host_without_a_link_is_lost_to_both_sides_with_mpi(self):
        self.unplug_one("shm+mpi")

    def through_relay(self, job, relay, until_told=False):
        """Starts a job whose second host reaches the others through the relay."""
        job.by_variables((1, 1), ranks=(0,), port=job.port, until_told=until_told)
        job.by_variables((1, 1), ranks=(1,), master=relay.address[0], port=relay.address[1],
                         until_told=until_told)

    def test_what_is_corrupted_on_the_way_to_the_store_is_an_error_on_both_sides(self):
        self.need("gloo")
        for position in (10, 150, 400):  # All positions are in the handshake.
            with self.subTest(position=position):
                job = self.job("--timeout", 3, LOCKSTEP_JOB_ID="relayed")
                with Relay("node1", job.port, self.hosts[1].address, on=self.hosts[1]) as relay:
                    relay.do("corrupt", position)
                    self.through_relay(job, relay)
                    there, here = job.wait()
                self.assertEqual(there, TIMEOUT, job.said())
                self.assertIn("of 2 ranks, these did not come: 1", job.said())
                self.assertIn(here, (CORRUPT, MISUSE), job.said())
        # In the ranks' descriptions of themselves; not every byte counts.
        for position in (560, 900):
            with self.subTest(position=position):
                job = self.job("--timeout", 3, LOCKSTEP_JOB_ID="relayed")
                with Relay("node1", job.port, self.hosts[1].address, on=self.hosts[1]) as relay:
                    relay.do("corrupt", position)
                    self.through_relay(job, relay)
                    codes = set(job.wait())
                self.assertEqual(codes - {0, CORRUPT, MISUSE, PEER_LOST, TIMEOUT}, set(),
                                 job.said())

    def test_a_cut_way_to_the_store_after_joining_does_not_harm_the_job(self):
        self.need("gloo")
        job = self.job(LOCKSTEP_JOB_ID="relayed")
        with Relay("node1", job.port, self.hosts[1].address, on=self.hosts[1]) as relay:
            self.through_relay(job, relay, until_told=True)
            job.until("stepping", 2)
            relay.do("cut")
            time.sleep(0.5)
            job.tell_to_end()
            self.assert_was_in_order(job, "gloo", (1, 1))


class TwoNetworks(AcrossHosts):
    count, networks = 2, 2

    def test_everything_listens_on_the_chosen_interface_only(self):
        for name in ("gloo", "oneccl"):
            if not has_engine(name):
                continue
            for wanted in ("eth1", "10.78.0.0/16"):
                with self.subTest(engine=name, interface=wanted):
                    job = self.job(LOCKSTEP_BACKEND=f"shm+{name}", LOCKSTEP_INTERFACE=wanted)
                    job.by_variables((2, 2), master="10.78.0.1", until_told=True)
                    job.until("stepping", 4)
                    for host in self.hosts:
                        listening = host.listening()
                        if name == "oneccl":  # Its libfabric also listens for ranks of the host.
                            listening = [one for one in listening if not one.startswith("127.")]
                        self.assertGreaterEqual(len(listening), 2)
                        own = f"10.78.0.{host.number}:"
                        self.assertEqual([one for one in listening if not one.startswith(own)], [])
                    job.tell_to_end()
                    self.assert_was_in_order(job, f"shm+{name}")


@unittest.skipIf(slurm.why_not(), slurm.why_not())
class UnderSlurm(AcrossHosts):
    count = 2

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cluster = Slurm(hosts=cls.hosts).__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)

    def test_tasks_of_srun_are_ranks(self):
        self.need("gloo")
        for protection in ({}, {"LOCKSTEP_JOB_TOKEN_FILE": None, "LOCKSTEP_TRUST_NETWORK": "1"}):
            with self.subTest(protection=protection):
                job = self.job(LOCKSTEP_LOG="info", **protection)
                job.by_srun(self.cluster, (2, 2))
                self.assert_was_in_order(job, "shm+gloo")
                self.assertIn("started by SLURM", job.said())

    def test_contradictory_variables_are_shown(self):
        job = self.job("--timeout", 10, RANK="5", WORLD_SIZE="8")
        job.by_srun(self.cluster, (1, 1))
        job.wait()
        for words in ("RANK=5", "WORLD_SIZE=8", "SLURM_NTASKS=2", "fault=misuse"):
            self.assertIn(words, job.said())

    def test_its_signal_is_preemption_on_all_ranks_at_the_same_step(self):
        self.need("gloo")
        job = self.job("--until-preempted")
        # SLURM checks times now and then: within 60 s after the signal is due.
        job.by_srun(self.cluster, (1, 1), "--time=2", "--signal=USR1@115")
        said = job.until("preempted", 2, patience=90)
        self.assertEqual(len({event["step"] for event in said}), 1, job.said())
        self.assertEqual(job.wait(), [PREEMPTED], job.said())
        self.assertEqual(len(job.events("bye")), 2, job.said())


if __name__ == "__main__":
    main(__doc__)
