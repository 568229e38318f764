#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random failures of the ranks of a training that survives them, under `lockstep run --on-failure
continue`. After each run: the exit code is 0, each sample of each epoch counted once, all ranks had
the same weights after each step, and no process or shared memory is left.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from ports import free_port  # noqa: E402
from processes import descendants, is_running, kill_all, soon  # noqa: E402

OPTIONS = None
PATIENCE = 60
SAMPLES = 4096

Done = collections.namedtuple("Done", "pid step group ranks hash time")


class Notes:
    """What the processes of a training have noted, in the order of their notes."""

    def __init__(self, folder):
        self.draws = collections.defaultdict(lambda: collections.defaultdict(list))
        self.begins = {}  # The first step of each group.
        self.done = []
        for file in pathlib.Path(folder).iterdir():
            # A process may be writing its last line, or have been killed while it did.
            for line in file.read_text().rpartition("\n")[0].splitlines():
                kind, *numbers = line.split()
                if kind == "draw":
                    epoch, step, group, *samples = map(int, numbers)
                    self.draws[epoch, step][group] += samples
                    self.begins[group] = min(step, self.begins.get(group, step))
                elif kind == "done" and len(numbers) == 5:
                    self.done.append(Done(int(file.name), *map(int, numbers)))

    def newest(self):
        return max(self.done, key=lambda done: (done.group, done.step), default=None)

    def members(self, victims=()):
        """Returns the processes of the newest group that has completed a step, without those that a
        signal may have reached. Each of them has the state of the training."""
        newest = self.newest()
        return [] if newest is None else sorted(
            pid for pid in {done.pid for done in self.done if done.group == newest.group}
            if is_running(pid) and pid not in victims)

    def samples(self, epoch):
        """Returns how often each sample of an epoch counted. Of repeated steps, the last counts."""
        ends, end = {}, float("inf")  # The first step that a later group made.
        for group in sorted(self.begins, reverse=True):
            ends[group] = end
            end = min(end, self.begins[group])
        return collections.Counter(
            sample for (of, step), groups in self.draws.items() if of == epoch
            for group, samples in groups.items() if step < ends[group] for sample in samples)

    def unequal_steps(self, repeats):
        """Returns steps after which ranks had different weights. `repeats`: whether a new group may
        repeat complete steps."""
        hashes = collections.defaultdict(set)
        for done in self.done:
            hashes[done.step, done.group if repeats else 0].add(done.hash)
        return [step for (step, _), found in sorted(hashes.items()) if len(found) > 1]


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "lockstep" in name}


class Job:
    """A job of one host or, on this machine, of several that share no memory: `ranks` are those of
    each host."""

    def __init__(self, ranks, epochs, *words, hosts=1, launcher=()):
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-test-")
        self.epochs = epochs
        self.before = shared_memory()
        self.seen = set()
        self.output = tempfile.TemporaryFile()
        endpoint = f"127.0.0.1:{free_port()}"
        places = [[] if hosts == 1 else ["--nnodes", hosts, "--node-rank", host, "--rdzv-endpoint",
                                         endpoint, "--rdzv-id", "t"] for host in range(hosts)]
        self.processes = [subprocess.Popen(
            [OPTIONS.lockstep, "run", *map(str, places[host]), "-n", str(ranks),
             "--on-failure", "continue", "--max-restarts", "1000", "--max-restart-delay", "0",
             *launcher, *shlex.split(OPTIONS.training), "--notes", self.folder.name,
             "--epochs", str(epochs), "--samples", str(SAMPLES), *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output,
            env=os.environ | {"OMP_NUM_THREADS": "1", "LOCKSTEP_ENGINE_PATH": OPTIONS.engines}
            | ({} if hosts == 1 else {"LOCKSTEP_HOST_ID": str(host)})) for host in range(hosts)]

    def text(self):
        return os.pread(self.output.fileno(), 1 << 24, 0).decode()

    def runs(self):
        for process in self.processes:
            self.seen.update(descendants(process.pid))
        return self.processes[0].poll() is None

    def notes(self):
        return Notes(self.folder.name)

    def when(self, holds, what):
        """Waits until `holds(notes)`; returns the notes, or nothing if the job has ended."""
        deadline = time.monotonic() + PATIENCE
        while self.runs():
            notes = self.notes()
            if holds(notes):
                return notes
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"not within {PATIENCE} s: {what}\n{self.text()}")
            time.sleep(0.01)
        return None

    def kill(self):
        for process in self.processes:
            kill_all(process.pid)
            process.wait()

    def end(self, test, repeats=False):
        try:
            codes = [process.wait(PATIENCE) for process in self.processes]
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the job hangs:\n" + self.text())
        test.assertEqual(set(codes), {0}, self.text())
        notes = self.notes()
        for epoch in range(self.epochs):
            counts = notes.samples(epoch)
            wrong = {sample: counts[sample] for sample in range(SAMPLES) if counts[sample] != 1}
            # The sampler repeats the beginning of an epoch that does not fill all ranks.
            repeated = sum(count - 1 for count in wrong.values())
            test.assertTrue(all(wrong.values()) and repeated < 8, f"epoch {epoch}: {wrong}")
        test.assertEqual(notes.unequal_steps(repeats), [], self.text())
        test.assertEqual([pid for pid in self.seen if is_running(pid)], [])
        test.assertEqual(shared_memory() - self.before, set())
        self.folder.cleanup()
        return notes


def has_variable(pid, entry):
    try:
        return entry.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # It has ended.
        return False


def catches(pid, number):
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return int(mask, 16) >> (number - 1) & 1 == 1


def recovered(since, victims=()):
    return lambda notes: len(notes.members(victims)) > 1 and notes.newest().group > since


class Failures(unittest.TestCase):
    def fail_at_random(self, seed, ranks, failures, ways, *flags, hosts=1, repeats=False, **words):
        """Lets ranks fail; a living rank with the state always remains."""
        choose = random.Random(seed)
        epochs = 2 + failures // 2  # More than the failures take.
        job = Job(ranks, epochs, "--pause-ms", 5, *flags,
                  *(word for name, value in words.items()
                    for word in ("--" + name.replace("_", "-"), value)), hosts=hosts)
        group, left, stopped, victims = -1, 0, {}, set()
        for _ in range(failures):
            if left < 2 or choose.random() < 0.5:
                notes = job.when(recovered(group, victims), f"a group after {group}")
                if notes is None:
                    break
                group, members = notes.newest().group, notes.members(victims)
                left = len(members)
                time.sleep(choose.uniform(0, 0.3))
            if left < 2:
                continue
            victim = members.pop(choose.randrange(left))
            left -= 1
            victims.add(victim)
            how = choose.choice(ways)
            try:
                os.kill(victim, how)
            except ProcessLookupError:
                continue
            if how == signal.SIGSTOP:
                stopped[victim] = time.monotonic() + choose.uniform(1, 6)
            for pid in [pid for pid, when in stopped.items() if when < time.monotonic()]:
                del stopped[pid]
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
        notes = job.end(self, repeats)
        changes = notes.newest().group
        print(f"seed {seed}: {ranks} ranks, {changes} changes of the group", flush=True)
        self.assertGreater(changes, failures // 4)

    def test_kills_and_exits(self):
        self.fail_at_random(OPTIONS.seed, 4, OPTIONS.failures, [signal.SIGKILL, signal.SIGUSR2])

    def test_stops(self):
        self.fail_at_random(OPTIONS.seed + 1, 3, max(2, OPTIONS.failures // 4), [signal.SIGSTOP],
                            timeout_ms=3000, patience_ms=1500)

    def test_orderly_leaving(self):
        self.fail_at_random(OPTIONS.seed + 2, 3, max(2, OPTIONS.failures // 4), [signal.SIGTERM])

    def test_fully_sharded(self):
        """All ranks continue from the newest checkpoint."""
        with tempfile.TemporaryDirectory() as checkpoints:
            self.fail_at_random(OPTIONS.seed + 4, 3, max(4, OPTIONS.failures // 3),
                                [signal.SIGKILL, signal.SIGUSR2], "--sharded", repeats=True,
                                checkpoints=checkpoints, every=50)

    def test_two_hosts(self):
        self.fail_at_random(OPTIONS.seed + 3, 2, max(4, OPTIONS.failures // 3), [signal.SIGKILL],
                            hosts=2)

    def test_leaving_instead_of_joining(self):
        """A replacement that gets SIGTERM while it waits to join ends at once, and in order."""
        job = Job(2, 1, "--pause-ms", 3000)
        victim = job.when(recovered(-1), "a first group").members()[-1]
        os.kill(victim, signal.SIGKILL)

        def waiting(_):
            return [pid for pid in descendants(job.processes[0].pid)
                    if has_variable(pid, "LOCKSTEP_INCARNATION=1") and catches(pid, signal.SIGTERM)]

        job.when(waiting, "a replacement that waits to join")
        for pid in waiting(None):
            os.kill(pid, signal.SIGTERM)
            self.assertTrue(soon(lambda: not is_running(pid), 10), job.text())
        time.sleep(0.5)  # For the launcher to start it again, which it must not.
        self.assertEqual(job.text().count("starting rank"), 1, job.text())
        self.assertNotIn("SIGTERM", job.text())
        self.assertTrue(job.runs(), job.text())
        job.kill()

    def test_leaving_out_stragglers(self):
        """The launcher's limit applies, instead of the program's 300 s. The stopped rank ends when
        it runs again, and is started again."""
        job = Job(3, 6, "--pause-ms", 5, launcher=["--leave-out-stragglers", "4"])
        victim = job.when(recovered(-1), "a first group").members()[-1]
        os.kill(victim, signal.SIGSTOP)
        job.when(recovered(0, {victim}), "a group without the stopped rank")
        os.kill(victim, signal.SIGCONT)
        notes = job.end(self)
        self.assertGreaterEqual(notes.newest().group, 2)
        self.assertIn("the other ranks continue without rank", job.text())

    def test_status_after_a_change(self):
        job = Job(3, 3, "--pause-ms", 20)
        os.kill(job.when(recovered(-1), "a first group").members()[-1], signal.SIGKILL)

        def shows_new_group(_):
            shown = subprocess.run([OPTIONS.lockstep, "status", "--json"], check=True,
                                   capture_output=True, text=True).stdout
            ours = descendants(job.processes[0].pid)
            ranks = [rank for one in json.loads(shown) for rank in one["ranks"]
                     if rank["pid"] in ours]
            return (sorted(rank["group_rank"] for rank in ranks) == [0, 1, 2]
                    and {rank["group_size"] for rank in ranks} == {3}
                    and [rank["rank"] for rank in ranks] == [0, 1, 2]
                    and sum(rank["incarnation"] for rank in ranks) == 1)

        self.assertTrue(job.when(shows_new_group, "the status of the new group"))
        job.end(self)

    def test_lost_host(self):
        """A whole host is lost, except the one with the endpoint: one change of the group."""
        job = Job(2, 3, "--pause-ms", 5, hosts=2)
        job.when(recovered(-1), "a first group")
        kill_all(job.processes.pop().pid)
        notes = job.end(self)
        self.assertEqual(notes.newest().group, 1)
        self.assertEqual(notes.newest().ranks, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lockstep", required=True)
    parser.add_argument("--training", required=True, help="the command of the training")
    parser.add_argument("--engines", required=True, help="the folder of engines")
    parser.add_argument("--failures", type=int, default=12)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    OPTIONS, rest = parser.parse_known_args()
    print("seed", OPTIONS.seed)
    unittest.main(argv=sys.argv[:1] + rest)
