#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Promises of `lockstep run` when its ranks, its agent or the launcher itself are harmed."""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from ports import free_port, listening_ports  # noqa: E402
from processes import descendants, is_running, kill_all, ranks_of, soon  # noqa: E402

OPTIONS = None
UNAVAILABLE = 69
MISMATCH = 76
# Machines differ, and other tests run concurrently: limits that check no guarantee are wide.
PATIENCE = 30
# For tests in which each survivor must write, though it may stand still for a while.
SURVIVORS = {"FAULT_RANK_IGNORES_SIGTERM": "1"}
SCRATCH = "lockstep-test-"  # Prefix of the folders of other tests that run at the same time.


def names_left():
    return {name for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder)}


class Job:
    def __init__(self, *words, **variables):
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen([OPTIONS.lockstep, "run", *map(str, words)],
                                        stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        env=self.environment() | variables)
        self.seen = set()  # All processes seen below the launcher.

    @staticmethod
    def environment():
        return os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_LOG": "info"}

    def read(self, file):
        return os.pread(file.fileno(), 1 << 24, 0).decode()

    def output(self):
        return self.read(self.out)

    def errors(self):
        return self.read(self.err)

    def family(self):
        self.seen.update(descendants(self.process.pid))
        return self.seen

    def when_ready(self, ranks):
        def are_ready():
            return self.output().count("ready") >= ranks

        soon(lambda: are_ready() or self.process.poll() is not None, PATIENCE)
        if not are_ready():
            raise AssertionError("the ranks did not come:\n" + self.errors())
        self.family()

    def wait(self, limit=PATIENCE):
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            kill_all(self.process.pid)
            raise AssertionError("the launcher hangs:\n" + self.output() + self.errors())


def record_in(text):
    """Returns the fields of the first lockstep-fail line."""
    line = re.search(r"lockstep-fail (job=.*)", text)[1]
    return dict(field.split("=", 1) for field in line.split())


class Faults(unittest.TestCase):
    def setUp(self):
        self.names, self.ports = names_left(), listening_ports()
        self.jobs = []

    def tearDown(self):
        for job in self.jobs:
            kill_all(job.process.pid)
            job.process.wait()
            job.out.close()
            job.err.close()
            self.assertEqual([pid for pid in job.seen if is_running(pid)], [], "processes are left")
        mine = {name for name in names_left() - self.names
                if "lockstep" in name and not name.startswith(SCRATCH)}
        self.assertEqual(mine, set(), "names are left")
        left = listening_ports() - self.ports
        self.assertFalse(left and self.still_listening(left), "ports are left")

    def still_listening(self, ports):
        """Waits for `ports` to close, as those of other tests do. Returns the others."""
        soon(lambda: not ports & listening_ports(), PATIENCE)
        return ports & listening_ports()

    def until_listening(self, port):
        def is_listening():
            return any(address.endswith(f":{port:04X}") for address in listening_ports())

        self.assertTrue(soon(is_listening, PATIENCE), "nobody listens")

    def start(self, *words, **variables):
        self.jobs.append(Job(*words, **variables))
        return self.jobs[-1]

    def reducing(self, ranks, *options, seconds=1000, **variables):
        job = self.start("-n", ranks, *options, OPTIONS.rank, "reduce-for", seconds, **variables)
        job.when_ready(ranks)
        return job

    def test_a_random_rank_may_be_killed_at_a_random_moment(self):
        for number in range(OPTIONS.kills):
            job = self.start("-n", 3, OPTIONS.rank, "reduce-for", 1000)
            deadline = time.monotonic() + random.choice((0.002, 0.02, 0.1))
            while time.monotonic() < deadline and not ranks_of(job.process.pid):
                time.sleep(0.001)
            if number % 2:
                job.when_ready(3)
            time.sleep(random.uniform(0, 0.02))
            job.family()
            ranks = ranks_of(job.process.pid)
            if not ranks:  # Too early: disturb the launcher itself instead.
                ranks = [job.process.pid]
            victim = random.choice(ranks)
            start = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            code = job.wait()
            # The guarantee is two seconds, on a host with a core for each rank.
            self.assertLess(time.monotonic() - start, 8, job.errors())
            if victim != job.process.pid:
                self.assertEqual(code, 128 + signal.SIGKILL, job.errors())
                self.assertIn(f"(pid {victim} ", job.errors())
            self.wait_until_gone(job)

    def wait_until_gone(self, job, limit=8):
        soon(lambda: not any(map(is_running, job.seen)), limit)
        self.assertEqual([pid for pid in job.seen if is_running(pid)], [], job.errors())

    def test_every_survivor_and_the_launcher_write_one_line_that_programs_can_read(self):
        job = self.reducing(3, **SURVIVORS)
        victim = ranks_of(job.process.pid)[1]
        os.kill(victim, signal.SIGKILL)
        self.assertEqual(job.wait(), 128 + signal.SIGKILL)
        lines = re.findall(r"^(.*)lockstep-fail (.*)$", job.errors(), re.M)
        writers = sorted(prefix.split()[0] for prefix, _ in lines)
        self.assertEqual(writers, ["[0]", "[2]", "lockstep"], job.errors())
        for _, fields in lines:
            record = dict(field.split("=", 1) for field in fields.split())
            self.assertEqual((record["rank"], record["pid"], record["cause"], record["op"]),
                             ("1", str(victim), "signal:9(SIGKILL)", "all_reduce"))
            self.assertEqual(record["group"], "world")
            self.assertEqual(record["oom"], "no" if record["oom"] != "unknown" else "unknown")
            self.assertGreater(int(record["seq"]), 0)
            self.assertLess(int(record["after_ms"]), 3000)

    def test_the_text_of_the_exception_is_shown_by_everybody(self):
        for what in ("throw", "throw-in-thread"):
            for variables in ({}, {"FAULT_RANK_WITHOUT_RECORD": "1"}):
                job = self.start("-n", 3, OPTIONS.rank, what, "the loss is not finite",
                                 **SURVIVORS, **variables)
                code = job.wait()
                aborted = what == "throw-in-thread" or variables
                self.assertEqual(code, 128 + signal.SIGABRT if aborted else 1, job.errors())
                errors = job.errors()
                summary = re.search(r"lockstep run: rank 1 .*", errors)[0]
                self.assertIn("std::runtime_error: the loss is not finite", summary)
                for rank in (0, 2):
                    self.assertRegex(errors, rf"\[{rank}\] .*the loss is not finite")

    def test_the_rank_that_gave_a_group_up_is_the_cause_though_others_end_first(self):
        for variables in ({}, {"FAULT_RANK_WITHOUT_RECORD": "1"}):
            job = self.start("-n", 3, OPTIONS.rank, "abort-then-throw", "no such layer",
                             **variables)
            code = job.wait()
            self.assertEqual(code, 128 + signal.SIGABRT if variables else 1, job.errors())
            self.assertRegex(job.errors(), r"lockstep run: rank 1 .*runtime_error: no such layer")

    def test_ranks_that_end_with_the_same_error_are_named_together(self):
        for variables, exit_code in (({}, 64), ({"FAULT_RANK_WITHOUT_RECORD": "1"},
                                                128 + signal.SIGABRT)):
            job = self.start("-n", 2, OPTIONS.rank, "agree-to-fail", "a layer was changed",
                             **variables)
            self.assertEqual(job.wait(), exit_code, job.errors())
            own = [line for line in job.errors().splitlines()
                   if line.startswith("lockstep run: ") and "lockstep-fail" not in line]
            self.assertEqual(len(own), 3, job.errors())
            self.assertRegex(own[0], r"^lockstep run: ranks 0-1 ended with the same exception: "
                                     r"lockstep::Error: misuse: on rank 1 a layer was changed")
            self.assertEqual(own[1], f"lockstep run: caused by ranks 0-1; exit code {exit_code}")
            self.assertTrue(own[2].startswith("lockstep run: to do: "), job.errors())
            # A rank may see the other one's end before its own, and then records that.
            record = re.search(r"^lockstep run: lockstep-fail .*", job.errors(), re.MULTILINE)[0]
            self.assertEqual(record_in(record)["rank"], "-1", job.errors())
            self.assertNotIn("AgreedError", job.errors())
            self.assertNotIn("terminate called", job.errors())
            self.assertIn("[1] lockstep info: ended with lockstep::Error: misuse: on rank 1 a "
                          "layer was changed", job.errors())

    def test_by_default_the_ranks_do_not_repeat_what_the_launcher_reports(self):
        for what in ("throw", "agree-to-fail"):
            for variables in ({}, {"FAULT_RANK_WITHOUT_RECORD": "1"}):
                job = self.start("-n", 3, OPTIONS.rank, what, "no more", LOCKSTEP_LOG="",
                                 **variables)
                self.assertNotEqual(job.wait(), 0)
                lines = job.errors().splitlines()
                self.assertEqual(len(lines), 3, job.errors())
                self.assertEqual(job.errors().count("no more"), 1, job.errors())

    def test_ranks_of_several_hosts_that_end_with_the_same_error_are_named_together(self):
        endpoint = f"127.0.0.1:{free_port()}"
        hosts = ("--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "alike")
        for ranks in (1, 2):
            jobs = [self.start("-n", ranks, *hosts, OPTIONS.rank, "agree-to-fail", "no such layer")
                    for _ in range(2)]
            for job in jobs:
                self.assertEqual(job.wait(), 64, job.errors())
            for job in jobs:
                self.assertIn(f"lockstep run: ranks 0-{2 * ranks - 1} ended with the same "
                              "exception: lockstep::Error: misuse: ", job.errors())
                self.assertNotIn("failed too", job.errors())

    def test_an_error_of_init_process_group_is_shown_without_record_too(self):
        job = self.start("-n", 2, OPTIONS.rank, "reduce-for", 1, LOCKSTEP_BACKEND="none-such",
                         FAULT_RANK_WITHOUT_RECORD="1")
        self.assertEqual(job.wait(), 128 + signal.SIGABRT, job.errors())
        headline = re.search(r"lockstep run: (rank.*)", job.errors())[1]
        self.assertRegex(headline, r"misuse: .*'none-such'")

    def assert_blamed(self, errors, rank, others):
        """Asserts that the errors name the last rank, which did not join the last all_reduce.
        A rank whose timeout has not yet passed may receive another host's timeout.
        """
        headline = re.search(r"lockstep run: (rank.*)", errors)[1]
        waited = "|".join(map(str, others))
        self.assertRegex(
            headline,
            rf"^rank {rank} did not come to all_reduce #3 of group world "
            rf"(within 4 s; rank ({waited}) waited$|"
            rf"in time; rank ({waited}) waited for rank {rank}: .* another host wait no longer)")
        self.assertRegex(errors, rf"lockstep run: caused by rank {rank}\b")
        for line in re.findall(r"lockstep-fail (job=.*)", errors):
            record = dict(field.split("=", 1) for field in line.split())
            self.assertEqual((record["rank"], record["cause"], record["waits_for"]),
                             (str(rank), "timeout", str(rank)), errors)

    def test_the_rank_that_did_not_come_is_blamed_and_not_those_that_waited(self):
        # All at once, because each takes longer than its timeout of 4 s.
        jobs = [(how, variables, self.start("-n", 3, "--shutdown-timeout", 1, OPTIONS.rank,
                                            "stay-away", how, **variables))
                for how in ("asleep", "busy", "stopped")
                for variables in ({}, {"FAULT_RANK_WITHOUT_RECORD": "1"})]
        for how, variables, job in jobs:
            code = 128 + signal.SIGABRT if variables else UNAVAILABLE
            self.assertEqual(job.wait(), code, job.errors())
            self.assert_blamed(job.errors(), 2, (0, 1))
            self.assertEqual("STOPPED" in job.errors(), how == "stopped", job.errors())

    def test_on_several_hosts_too_the_rank_that_did_not_come_is_blamed(self):
        layouts = [("", "")]
        if os.path.exists(os.path.join(OPTIONS.engines, "liblockstep-engine-gloo.so")):
            layouts.append(("a", "b"))  # Otherwise they are two launchers of one host.
        jobs = []
        for names in layouts:
            endpoint = f"127.0.0.1:{free_port()}"
            hosts = ("--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "away")
            jobs += [self.start("-n", 2, "--shutdown-timeout", 1, *hosts, OPTIONS.rank,
                                "stay-away", "asleep", LOCKSTEP_ENGINE_PATH=OPTIONS.engines,
                                **({"LOCKSTEP_HOST_ID": name} if name else {})) for name in names]
        for job in jobs:
            self.assertEqual(job.wait(), UNAVAILABLE, job.errors())
        for job in jobs:
            self.assert_blamed(job.errors(), 3, (0, 1, 2))

    def test_ranks_that_call_different_things_are_named_with_what_each_called(self):
        job = self.start("-n", 3, OPTIONS.rank, "stay-away", "elsewhere")
        self.assertEqual(job.wait(), MISMATCH, job.errors())
        headline = re.search(r"lockstep run: (rank.*)", job.errors())[1]
        self.assertRegex(headline, r"^ranks disagree in \S+ #3 of group world: rank 0 called "
                                   r"all_reduce\(sum\) of 1000 float32, rank 2 called barrier; "
                                   r"rank 1 called what rank 0 did$")
        for line in re.findall(r"lockstep-fail (job=.*)", job.errors()):
            record = dict(field.split("=", 1) for field in line.split())
            self.assertEqual((record["rank"], record["cause"], record["differ"]),
                             ("2", "mismatch", "2"))
            self.assertIn("rank%202%20called%20barrier", record["called"])

    def test_a_thread_that_goes_on_after_a_mismatch_does_not_hide_it(self):
        for how, code in (("throw", MISMATCH), ("return", 1)):
            job = self.start("-n", 2, OPTIONS.rank, "differ", how)
            self.assertEqual(job.wait(), code, job.errors())
            self.assertRegex(job.errors(), r"lockstep run: ranks disagree in \S+ #\d+ of group "
                                           r"world: rank 0 called all_reduce.*"
                                           r"rank 1 called barrier")
            causes = {record_in(line)["cause"] for line in job.errors().splitlines()
                      if "lockstep-fail" in line}
            self.assertEqual(causes, {"mismatch"}, job.errors())

    def test_a_program_that_goes_on_after_a_mismatch_ends_for_another_cause(self):
        for how in ("go-on", "go-on-in-background"):
            job = self.start("-n", 2, OPTIONS.rank, "differ", how)
            self.assertEqual(job.wait(), 1, job.errors())
            self.assertRegex(job.errors(), r"lockstep run: rank \d exited with code 1 ")

    def test_a_rank_that_drops_its_last_handle_is_blamed_and_not_the_one_that_waits(self):
        job = self.start("-n", 2, OPTIONS.rank, "drop-handle", "-")
        self.assertEqual(job.wait(), UNAVAILABLE, job.errors())
        headline = re.search(r"lockstep run: (rank.*)", job.errors())[1]
        self.assertEqual(headline, "rank 0 left its group before the others")
        self.assertRegex(job.errors(), r"lockstep run: caused by rank 0 \(pid \d+ on \S+\), "
                                       r"last seen in ")
        self.assertRegex(job.errors(),
                         r"\[1\] .*rank 0 left it without destroy_process_group\(\)")
        self.assertNotIn("unknown cause", job.errors())
        records = [dict(field.split("=", 1) for field in line.split())
                   for line in re.findall(r"lockstep-fail (job=.*)", job.errors())]
        self.assertEqual({(record["rank"], record["cause"]) for record in records},
                         {("0", "left")}, job.errors())

    def test_a_signal_that_ends_the_child_of_a_shell_is_named_by_everybody(self):
        script = '"$0" die 11; code=$?; exit $code'
        for log in ("text", "json"):
            job = self.start("-n", 2, "--log-format", log, "/bin/sh", "-c", script, OPTIONS.rank,
                             **SURVIVORS)
            self.assertEqual(job.wait(), 128 + signal.SIGSEGV, job.errors())
            lines = job.errors().splitlines()
            if log == "json":
                parsed = [json.loads(line) for line in lines]
                lines = [line.get("message") or line["line"] for line in parsed]
            records = [record_in(line)["cause"] for line in lines if "lockstep-fail" in line]
            texts = [line for line in lines
                     if "flight record" not in line and
                     re.search(r"\brank 1 (\(pid \d+ on \S+\) )?(exited|was)\b", line)]
            seen = (("exit:139(SIGSEGV)",
                     "exited with code 139 (as a shell reports a child killed by SIGSEGV)"),
                    ("signal:11(SIGSEGV)", "was killed by signal 11 (SIGSEGV)"))
            # Rank 0 detects the signal itself if it checks before the shell has reaped its child.
            self.assertTrue(any(set(records) == {cause} and all(words in text for text in texts)
                                for cause, words in seen), job.errors())
            self.assertEqual((len(records), len(texts)), (2, 2), job.errors())

    def test_a_world_size_that_contradicts_the_launchers_is_an_error_on_all_ranks_at_once(self):
        script = 'test "$RANK" != 1 || export WORLD_SIZE=5; exec "$0" fail-to-join -'
        endpoint = f"127.0.0.1:{free_port()}"
        several = ("--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "sizes")
        for hosts, ranks in (((), 2), (several, 4)):
            jobs = [self.start("-n", 2, *hosts, "/bin/sh", "-c", script, OPTIONS.rank)
                    for _ in range(2 if hosts else 1)]
            for job in jobs:
                self.assertEqual(job.wait(), MISMATCH, job.errors())
                lines = [line for line in job.output().splitlines() if "mismatch" in line]
                self.assertEqual(len(lines), 2, job.output() + job.errors())
                for line in lines:
                    self.assertIn("rank 1 expects 5 ranks, ", line)
                    self.assertIn(f"the launcher has started {ranks} (WORLD_SIZE)", line)

    def test_a_python_rank_that_records_its_exception_is_quoted(self):
        if not OPTIONS.python:
            self.skipTest("no Python with torch")
        script = ("from torch.distributed.elastic.multiprocessing.errors import record\n"
                  "@record\ndef main():\n    raise ValueError('no such batch')\nmain()\n")
        job = self.start("-n", 1, OPTIONS.python, "-c", script)
        self.assertEqual(job.wait(100), 1, job.errors())
        self.assertRegex(job.errors(), r"lockstep run: rank 0 .*ValueError: no such batch")

    def test_when_all_are_stopped_for_five_seconds_nobody_is_blamed(self):
        port = free_port()
        hosts = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "stopped")
        jobs = [self.start("-n", 1, *hosts, OPTIONS.rank, "reduce-for", 9) for _ in range(2)]
        for job in jobs:
            job.when_ready(1)
        everybody = [pid for job in jobs for pid in (job.process.pid, *job.family())]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5)
        for pid in reversed(everybody):
            os.kill(pid, signal.SIGCONT)
        for job in jobs:
            self.assertEqual(job.wait(), 0, job.errors())
            self.assertNotIn("lost", job.errors())
            self.assertNotIn("lockstep-fail", job.errors())

    def test_nothing_lives_a_second_after_the_launcher_or_the_agent_was_killed(self):
        script = ("sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; "
                  "echo ready; exec sleep 1000")
        for who in ("launcher", "agent"):
            job = self.start("-n", 2, "/bin/sh", "-c", script)
            job.when_ready(2)
            soon(lambda: len(job.family()) >= 1 + 2 * 5, PATIENCE)
            agent = descendants(job.process.pid)[0]
            os.kill(job.process.pid if who == "launcher" else agent, signal.SIGKILL)
            start = time.monotonic()
            job.process.wait(PATIENCE)
            self.wait_until_gone(job)
            # The guarantee is one second, on an idle host.
            self.assertLess(time.monotonic() - start, 8)

    def test_stopped_ranks_that_are_interrupted_are_no_failure(self):
        for _ in range(10):
            job = self.reducing(3)
            ranks = ranks_of(job.process.pid)
            for pid in ranks:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(0.2)  # Heartbeats are due when they continue.
            job.process.send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 128 + signal.SIGINT, job.errors())
            self.assertNotIn("lockstep-fail", job.errors())

    def test_two_ranks_that_die_at_once_and_all_but_one(self):
        for victims in ((0, 1), (0, 1, 2), (0,)):
            job = self.reducing(4)
            ranks = ranks_of(job.process.pid)
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):  # The launcher may be faster.
                    os.kill(ranks[victim], signal.SIGKILL)
            self.assertEqual(job.wait(), 128 + signal.SIGKILL, job.errors())
            self.assertIn(int(record_in(job.errors())["rank"]), victims)

    def test_the_status_of_a_job_says_who_is_stopped_and_who_waits_for_whom(self):
        job = self.reducing(3)
        pids = ranks_of(job.process.pid)

        def ranks_when(holds):
            deadline = time.monotonic() + PATIENCE
            while True:
                shown = subprocess.run([OPTIONS.lockstep, "status", "--json"], text=True,
                                       check=True, stdout=subprocess.PIPE).stdout
                for ranks in [it["ranks"] for it in json.loads(shown)]:
                    if {rank["pid"] for rank in ranks} == set(pids) and holds(ranks):
                        return ranks
                self.assertLess(time.monotonic(), deadline, shown)
                time.sleep(0.05)

        ranks_when(lambda ranks: all(rank["step"] > 0 for rank in ranks))
        os.kill(pids[1], signal.SIGSTOP)
        waiting = [("waiting", [1]), ("stopped", []), ("waiting", [1])]
        ranks = ranks_when(lambda ranks: waiting == [(rank["state"], rank["waits_for"])
                                                     for rank in ranks])
        self.assertGreater(ranks[0]["step"], 0)
        table = subprocess.run([OPTIONS.lockstep, "status"], text=True, check=True,
                               stdout=subprocess.PIPE).stdout
        self.assertRegex(table, r"stopped")
        os.kill(pids[1], signal.SIGCONT)
        job.process.terminate()
        self.assertEqual(job.wait(), 128 + signal.SIGTERM)

    def test_jobs_that_start_at_once_do_not_mix(self):
        jobs = [self.start("-n", 2, OPTIONS.rank, "agree-on", number) for number in range(8)]
        for number, job in enumerate(jobs):
            self.assertEqual(job.wait(), 0, job.errors())
            self.assertEqual(job.output().count(f"of 2 agree on {number}"), 2)

    def test_the_second_job_on_a_port_is_refused_and_the_first_is_not_disturbed(self):
        port = free_port()
        first = self.start("-n", 1, "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}",
                           "--rdzv-id", "one", OPTIONS.rank, "agree-on", 1)
        self.until_listening(port)
        other = self.start("-n", 1, "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}",
                           "--rdzv-id", "other", OPTIONS.rank, "agree-on", 2)
        self.assertNotEqual(other.wait(), 0)
        self.assertRegex(other.errors(), r"\bone\b|another job")
        second = self.start("-n", 1, "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}",
                            "--rdzv-id", "one", OPTIONS.rank, "agree-on", 1)
        for job in (first, second):
            self.assertEqual(job.wait(), 0, job.errors())

    def test_a_job_token_is_in_no_environment_of_a_rank(self):
        token = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"
        port = free_port()
        hosts = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "token")
        jobs = [
            self.start("-n", 1, *hosts, OPTIONS.rank, "reduce-for", 1000, LOCKSTEP_JOB_TOKEN=token)
            for _ in range(2)
        ]
        for job in jobs:
            job.when_ready(1)
            for pid in (job.process.pid, *job.family()):
                for file in ("environ", "cmdline"):
                    self.assertNotIn(token.encode(),
                                     pathlib.Path(f"/proc/{pid}/{file}").read_bytes())
        for job in jobs:
            job.process.terminate()
        for job in jobs:
            self.assertEqual(job.wait(), 128 + signal.SIGTERM, job.errors())
            self.assertNotIn(token, job.errors() + job.output())


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--rank", required=True)
    parser.add_argument("--python", default="")
    parser.add_argument("--engines", default="", help="a folder of plugins")
    parser.add_argument("--kills", type=int, default=200)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
