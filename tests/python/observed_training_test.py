#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The timeline of a training under `lockstep run`, its run.json, and its event file as TensorBoard
and Perfetto read them."""

import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from ports import free_port  # noqa: E402

OPTIONS = None
STEPS = 12
# Runs a command with another monotonic clock, as on another host; needs root.
OTHER_CLOCK = ["unshare", "--time", "--monotonic", "1000", "--fork"]
PHASES = {"data", "forward", "backward", "reduce", "wait", "optimizer"}


def has_other_clock():
    clock = [sys.executable, "-c", "import time; print(time.monotonic())"]
    try:
        theirs = subprocess.run([*OTHER_CLOCK, *clock], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return float(theirs) > time.monotonic() + 500


class Training:
    """A run of observed_training.cpp; its files lie in `folder`. `prefixes` has the first words of
    each host's command."""

    def __init__(self, test, *words, steps=STEPS, hosts=1, prefixes=((), ()), options=(),
                 **variables):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        test.addCleanup(shutil.rmtree, self.folder)
        self.timeline = self.folder / "t.json"
        self.variables = {key: value.format(self.folder) for key, value in variables.items()}
        if "LOCKSTEP_TIMELINE_DIR" not in variables:
            options = ["--timeline", str(self.timeline), *options]
        command = [OPTIONS.lockstep, "run", "-n", str(2 // hosts), *options]
        if hosts > 1:
            command += ["--nnodes", str(hosts), "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        command += [OPTIONS.program, str(self.folder), str(steps), *words]
        self.processes = [self.start(command, host, hosts, prefixes[host])
                          for host in range(hosts)]
        self.said = [process.communicate(timeout=90)[0] for process in self.processes]
        self.codes = [process.returncode for process in self.processes]

    def start(self, command, host, hosts, prefix):
        variables = {"OMP_NUM_THREADS": "1"} | self.variables
        if hosts > 1:
            # Each launcher must write its own file. The file of rank 0's host has all ranks.
            command = [word.replace("t.json", "other.json") if host else word for word in command]
            command[2:2] = ["--node-rank", str(host)]
            variables |= {"LOCKSTEP_HOST_ID": f"host-{host}", "LOCKSTEP_BACKEND": "shm+gloo",
                          "LOCKSTEP_ENGINE_PATH": OPTIONS.engines}
        return subprocess.Popen([*prefix, *command], env=os.environ | variables, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def merged(self):
        return json.loads(self.timeline.read_text())

    def events(self):
        return self.merged()["traceEvents"]


def read_events(test, training):
    """Returns TensorBoard's view of the training's event file."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as failure:
        test.skipTest(f"{sys.executable} cannot import tensorboard ({failure})")
    events = EventAccumulator(str(training.folder / "runs"))
    events.Reload()
    return events


def spans(events, category):
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def by_rank(events):
    return collections.Counter(event["pid"] for event in events)


class Timeline(unittest.TestCase):
    def assert_whole(self, training):
        self.assertEqual(set(training.codes), {0}, training.said)
        events = training.events()
        names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(len(names), 2)
        for rank in (0, 1):
            found = collections.Counter(
                event["name"] for event in spans(events, "phase") if event["pid"] == rank)
            self.assertLessEqual(PHASES - {"wait"}, set(found))
            # Once each in a step; collectives interrupt other phases.
            self.assertEqual((found["data"], found["optimizer"]), (STEPS, STEPS))
        collectives = spans(events, "collective")
        of_rank = collections.defaultdict(set)
        for event in collectives:
            arguments = event["args"]
            of_rank[event["pid"]].add((arguments["group"], arguments["sequence"], event["name"]))
        common = of_rank[0] & of_rank[1]
        self.assertGreaterEqual(len(common), STEPS)
        self.assert_arrows(events, collectives)
        return events

    def assert_arrows(self, events, collectives):
        """Each arrow leads from the span of the last rank to the span of a rank that waited."""
        waited = [event for event in collectives if event["args"]["last"] not in (-1, event["pid"])]
        begins = {event["id"]: event for event in events if event["ph"] == "s"}
        ends = {event["id"]: event for event in events if event["ph"] == "f"}
        self.assertEqual(begins.keys(), ends.keys())
        self.assertEqual(len(ends), len(waited))
        self.assertGreaterEqual(by_rank(ends.values())[0], STEPS // 2, "rank 1 is slow")
        for number, end in ends.items():
            begin = begins[number]
            self.assertNotEqual(begin["pid"], end["pid"])
            for side in (begin, end):
                self.assertTrue(any(
                    span["pid"] == side["pid"] and span["tid"] == side["tid"] and
                    span["ts"] - 0.002 <= side["ts"] <= span["ts"] + span["dur"] + 0.002
                    for span in collectives), "an arrow begins and ends in a span")

    def test_it_has_all_ranks_and_operators_of_the_steps_asked_for(self):
        training = Training(self, options=["--profile", "steps=2:4"])
        events = self.assert_whole(training)
        self.assertIn("2 ranks", training.said[0])
        self.assertFalse(list(training.folder.glob("t.json.*")), "nothing else is left")
        operators = spans(events, "operator")
        for rank in (0, 1):
            forward = [event for event in spans(events, "phase")
                       if event["pid"] == rank and event["name"] == "forward"]
            products = [event for event in operators
                        if event["pid"] == rank and event["name"] == "aten::addmm"]
            self.assertEqual(len(products), 2)
            tolerance = 500  # Microseconds; the slow rank's steps are ten times as far apart.
            for operator in products:
                self.assertTrue(any(
                    phase["ts"] - tolerance <= operator["ts"] and
                    operator["ts"] + operator["dur"] <= phase["ts"] + phase["dur"] + tolerance
                    for phase in forward), "operators have the clock of the phases")

    def test_a_killed_rank_leaves_what_it_had_in_each_attempt(self):
        training = Training(self, "--kill", "6",
                            options=["--max-restarts", "1", "--profile", "steps=100:105"])
        self.assertIn("no operators, as no rank averaged gradients in steps=100:105",
                      training.said[0])
        self.assertEqual(training.codes, [128 + 9], training.said)
        events = training.events()
        data = by_rank(event for event in spans(events, "phase") if event["name"] == "data")
        self.assertEqual((data[0], data[1]), (14, 14))
        lost = [event for event in spans(events, "collective") if "error" in event["args"]]
        self.assertEqual({(event["pid"], event["args"]["error"]) for event in lost},
                         {(0, "peer_lost")})
        run = json.loads((training.folder / "run.json").read_text())
        self.assertNotEqual(run["ended"], "finished")

    def test_ranks_of_which_one_has_none_are_told_why_they_do_not_agree(self):
        training = Training(self, "--forget", LOCKSTEP_TIMELINE_DIR="{}/spans")
        self.assertNotIn(0, training.codes)
        self.assertIn("LOCKSTEP_TIMELINE_DIR is to be set on all ranks or on none",
                      training.said[0])

    def test_a_command_merges_the_spans_of_ranks_of_other_launchers(self):
        training = Training(self, LOCKSTEP_TIMELINE_DIR="{}/spans")
        said = subprocess.run([OPTIONS.lockstep, "timeline", str(training.folder / "spans"),
                               "--out", str(training.timeline)],
                              capture_output=True, text=True, check=True).stdout
        self.assertIn("2 ranks", said)
        self.assert_whole(training)

    def test_it_has_the_ranks_of_several_hosts_on_one_clock(self):
        if not OPTIONS.engines:
            self.skipTest("the engine gloo was not built")
        prefixes = [(), OTHER_CLOCK if has_other_clock() else ()]
        training = Training(self, hosts=2, prefixes=prefixes)
        events = self.assert_whole(training)
        self.assertEqual([path.name for path in training.folder.glob("*.json*")
                          if path.name not in ("t.json", "run.json")], [])
        run = json.loads((training.folder / "run.json").read_text())
        self.assertEqual((run["hosts"], run["host_of_rank"]), (2, [0, 1]))
        self.assertEqual([link["name"] for link in run["links"]], ["gloo"])
        # In each collective there is a moment at which both ranks are in it, up to the clock error.
        errors = training.merged()["otherData"]["clock_errors"]
        self.assertEqual([(error["rank"], error["attempt"], error["comparisons"])
                          for error in errors], [(1, 0, 2)])
        rounding = 0.003  # Microseconds: times have three decimals.
        error = errors[0]["microseconds"] + rounding
        self.assertLess(error, 10_000, "many times what the fastest of 32 messages takes")
        pairs = collections.defaultdict(list)
        for event in spans(events, "collective"):
            pairs[event["args"]["group"], event["args"]["sequence"]].append(event)
        both = [pair for pair in pairs.values() if len(pair) == 2]
        self.assertGreaterEqual(len(both), STEPS)
        for one, other in both:
            self.assertLess(one["ts"], other["ts"] + other["dur"] + error)
            self.assertLess(other["ts"], one["ts"] + one["dur"] + error)

    def test_perfetto_loads_it(self):
        try:
            from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
        except ImportError as failure:
            self.skipTest(f"{sys.executable} cannot import perfetto ({failure})")
        training = Training(self, options=["--profile", "steps=2:8"])
        shell = shutil.which("trace_processor_shell")  # Without one, the package fetches it.
        try:
            processor = TraceProcessor(trace=str(training.timeline),
                                       config=TraceProcessorConfig(bin_path=shell))
        except subprocess.CalledProcessError as failure:
            self.skipTest(f"Perfetto's trace_processor_shell cannot be fetched ({failure})")
        self.addCleanup(processor.close)

        def values(query):
            return [row.value for row in processor.query(query)]

        def count(query):
            return values(f"select count(*) as value from {query}")[0]

        events = training.events()
        self.assertEqual(count("slice"), sum(event["ph"] == "X" for event in events))
        self.assertEqual(count("flow join slice on slice.id = flow.slice_in"),
                         sum(event["ph"] == "f" for event in events))
        self.assertEqual(count("process where name like 'rank %'"), 2)
        self.assertEqual(values("select name as value from stats where "
                                "severity in ('error', 'data_loss') and stats.value > 0"), [])
        # Perfetto shows a main thread first.
        self.assertEqual(count("thread join thread_track using (utid) where is_main_thread"), 0)


class RunLog(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        case = unittest.TestCase()
        cls.addClassCleanup(case.doCleanups)
        cls.training = Training(case)
        cls.means = [5.0 + step for step in range(STEPS)]

    def test_run_json_has_the_split_of_every_step(self):
        run = json.loads((self.training.folder / "run.json").read_text())
        self.assertEqual(run["format"], "lockstep-run-1")
        self.assertEqual(run["ended"], "finished")
        self.assertEqual(run["samples"], 2 * 4 * STEPS)
        self.assertEqual(run["scalars"]["number"]["values"], self.means)
        self.assertGreater(run["all_reduce_bytes_per_step"], 0)
        self.assertEqual(run["arguments"][1], str(STEPS))
        data = run["steps"]["columns"].index("data")
        for rank, rows in enumerate(run["steps"]["ranks"]):
            self.assertEqual(len(rows), STEPS)
            if rank == 1:
                self.assertTrue(all(row[data] >= 0.0049 for row in rows))
        self.assertGreater(run["totals"][0]["waited_for"]["1"], 0.002 * STEPS)

    def test_lockstep_report_reads_run_json(self):
        said = subprocess.run([OPTIONS.lockstep, "report", str(self.training.folder / "run.json")],
                              capture_output=True, text=True, check=True).stdout
        self.assertRegex(said, rf"run.json +2 +1 +{STEPS} ")
        self.assertIn("with the work spread evenly over the ranks: x", said)
        self.assertRegex(said, "on 4 ranks: x.*\n.*reduce grows as an all_reduce of")

    def test_tensorboard_reads_the_event_file(self):
        events = read_events(self, self.training)
        self.assertEqual([(one.step, one.value) for one in events.Scalars("number")],
                         list(enumerate(self.means)))
        histogram = events.Histograms("values")[0].histogram_value
        self.assertEqual(histogram.num, 1000)
        self.assertEqual(sum(histogram.bucket), 1000)
        self.assertLess(histogram.min, 0)
        self.assertTrue(histogram.bucket_limit[0] <= histogram.min < histogram.bucket_limit[1])
        note = events.Tensors("note/text_summary")[0].tensor_proto
        self.assertEqual(note.string_val[0], b"begins **here**")
        self.assertEqual(
            events.summary_metadata["note/text_summary"].plugin_data.plugin_name, "text")

    def test_tensorboard_reads_the_event_file_of_a_killed_run(self):
        training = Training(self, "--kill", "100", steps=200)  # Half a second, at least.
        numbers = read_events(self, training).Scalars("number")
        self.assertIn(len(numbers), range(1, 101))
        self.assertEqual([(one.step, one.value) for one in numbers],
                         [(step, 5.0 + step) for step in range(len(numbers))])


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--lockstep")
    parser.add_argument("--engines", default="")
    OPTIONS, words = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *words], verbosity=2)


main()
