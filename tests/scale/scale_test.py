#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model of bench/scale: its counts are those in shared memory, for up to 64 ranks; its tables
are those of docs/internals/scaling.md. Bare copies have the cores of ranks. The benchmark prints a
line for each of its cases, with the model's prediction where ranks have cores."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

KB = 1 << 10
PRINT_TABLES = "python3 bench/scale/model.py prints the tables"
ARGUMENTS = argparse.ArgumentParser(description=__doc__)
ARGUMENTS.add_argument("--lockstep", required=True)
ARGUMENTS.add_argument("--counts", required=True)
ARGUMENTS.add_argument("--bench", type=pathlib.Path, required=True)
ARGUMENTS.add_argument("--build", type=pathlib.Path, required=True)


def outputs_of(*command, **variables):
    done = subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          env=os.environ | variables)
    if done.returncode != 0:
        raise AssertionError(f"{done.stdout}{done.stderr}exit code {done.returncode}")
    return done.stdout, done.stderr


def output_of(*command):
    return outputs_of(*command)[0]


class Model(unittest.TestCase):
    def compare_counts(self, ranks, read_peers):
        """Expects no reads if the kernel does not let ranks read each other's memory."""
        sizes = (1 * KB, 4 * KB, 64 * KB, 320 * KB)  # The last one in three chunks.
        cases = ["barrier:any:0"] + [
            f"{operation}:{memory}:{size}"
            for operation in ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
            for size in sizes for memory in ("any", "registered")]
        output, errors = outputs_of(args.lockstep, "run", "-n", ranks, args.counts, *cases,
                                    LOCKSTEP_READ_PEERS=read_peers, LOCKSTEP_LOG="info")
        reads = read_peers == "1" and "cannot read its peers' memory" not in errors
        lane, room = map(int, re.search(r"segment (\d+) (\d+)", output).groups())
        self.assertEqual((lane, room), (model.LANE, model.staging_bytes(ranks)))
        found = re.findall(r"counts (\w+) (\w+) (\d+) (\d+) (\d+)", output)
        self.assertEqual(len(found), len(cases))
        for operation, memory, size, syncs, written in found:
            with self.subTest(ranks=ranks, operation=operation, memory=memory, size=size,
                              read_peers=read_peers):
                counts = model.counts_of(operation, ranks, int(size), memory == "registered",
                                         crowded=ranks > len(os.sched_getaffinity(0)), reads=reads)
                self.assertEqual((int(syncs), int(written)), (counts.syncs, counts.host_writes))

    def test_counts_are_those_in_shared_memory(self):
        for ranks in (2, 4, 8, 64):
            self.compare_counts(ranks, "1")
        for ranks in (2, 4):
            self.compare_counts(ranks, "0")

    def test_tables_are_those_of_the_page(self):
        page = (args.bench.parent.parent / "docs" / "internals" / "scaling.md").read_text()
        one_host, _ = page.split("## Many hosts\n")
        lines = [line for line in one_host.splitlines() if line.startswith("|")]
        tables = [line for line in model.tables() if line]
        self.assertIn(tables[0], lines, PRINT_TABLES)
        self.assertEqual(lines[lines.index(tables[0]):], tables, PRINT_TABLES)


class Copies(unittest.TestCase):
    def divide(self, ranks, siblings, packages):
        """Divides the CPUs of a host by the kernel's description of each of them."""
        with tempfile.TemporaryDirectory() as folder:
            for cpu, (threads, package) in enumerate(zip(siblings, packages)):
                topology = pathlib.Path(folder) / f"cpu{cpu}" / "topology"
                topology.mkdir(parents=True)
                (topology / "thread_siblings_list").write_text(f"{threads}\n")
                (topology / "physical_package_id").write_text(f"{package}\n")
            return sides.divide_cpus(range(len(siblings)), ranks, pathlib.Path(folder))

    def test_of_the_bare_model_get_whole_cores_as_ranks_do(self):
        threads = ["0,4", "1,5", "2,6", "3,7"] * 2
        self.assertEqual(self.divide(4, threads, [0] * 8), [[0, 4], [1, 5], [2, 6], [3, 7]])
        self.assertEqual(self.divide(2, threads, [0] * 8), [[0, 4, 1, 5], [2, 6, 3, 7]])
        self.assertEqual(self.divide(5, threads, [0] * 8), [[]] * 5)

    def test_of_the_bare_model_get_cores_of_one_socket(self):
        self.assertEqual(self.divide(2, range(4), [0, 1, 0, 1]), [[0, 2], [1, 3]])

    def test_have_a_core_for_each_cpu_that_the_kernel_does_not_describe(self):
        self.assertEqual(sides.divide_cpus([3, 1], 2, pathlib.Path("/nowhere")), [[1], [3]])


class Bench(unittest.TestCase):
    def test_prints_a_line_for_each_case(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "scale.json"
            output = output_of(sys.executable, args.bench / "bench.py", "--build", args.build,
                               "--quick", "--ranks", 1, 2, 3, "--only", "all_reduce", "init",
                               "--json", file)
            figures = json.loads(file.read_text())
        rows = [line for line in output.splitlines() if re.match(r" +\d+  [a-z]", line)]
        self.assertEqual(len(rows), len(figures["results"]))
        cores = figures["host"]["cores"]
        for n in (1, 2, 3):
            seen = {(one["what"], one["registered"], one["bytes"]): one
                    for one in figures["results"] if one["ranks"] == n}
            self.assertEqual({key for key in seen if key[0] != "copy"},
                             {("barrier", False, 0), ("init", False, 0)} |
                             {("all_reduce", registered, size) for registered in (True, False)
                              for size in (1 * KB, 64 * KB, 1024 * KB)})
            for (what, *_), one in seen.items():
                self.assertGreater(one["microseconds"], 0)
                self.assertEqual(one["predicted"] is not None,
                                 1 < n <= cores and what != "copy", one)
        if cores > 1:
            self.assertTrue(all(time > 0 for times in figures["host"]["reaches"].values()
                                for time in times.values()))

    def test_simulates_the_events_of_each_job(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "simulated.json"
            output_of(sys.executable, args.bench / "bench.py", "--build", args.build, "--simulate",
                      "--rounds", 1, "--hosts", 1, 8, "--json", file)
            figures = json.loads(file.read_text())
        self.assertEqual(len(figures["comparison"]), 6)
        for one in figures["comparison"]:
            self.assertGreater(one["model_ms"], 0)
            self.assertGreater(one["real_ms"], 0)
        self.assertTrue(all(one["seconds"] is not None for one in figures["events"]))
        self.assertEqual([sum(one["hosts"] == hosts for one in figures["events"])
                          for hosts in (1, 8)], [5, 14])

    def test_a_wrong_number_of_ranks_is_refused(self):
        done = subprocess.run([sys.executable, args.bench / "bench.py", "--build", args.build,
                               "--ranks", "0"], stderr=subprocess.PIPE, text=True, check=False,
                              env=os.environ)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--rounds and --ranks are positive", done.stderr)


if __name__ == "__main__":
    args, rest = ARGUMENTS.parse_known_args()
    sys.path[:0] = [str(args.bench), str(args.bench.parent / "ddp")]
    import model  # noqa: E402, whose folder is an argument
    import sides  # noqa: E402, from bench/ddp
    unittest.main(argv=[sys.argv[0], *rest])
