#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pipelines whose stages lie on two hosts train as one process does.

pipeline_test.py --lockstep LOCKSTEP --rank GPT --engines FOLDER
"""

import pathlib
import re
import shutil
import tempfile

from across_hosts import AcrossHosts, main

OPTIONS = ("--width", 32, "--layers", 4, "--batch", 8, "--length", 24, "--lr", 1e-4, "--sample", 10)


class Pipelines(AcrossHosts):
    count = 2

    def trained(self, folder, counts, steps, *mesh):
        """Returns the last loss, after steps from the checkpoint in `folder`."""
        job = self.job(*OPTIONS, "--checkpoint", folder, "--steps", steps, *mesh)
        job.by_lockstep_run(counts)
        self.assertEqual(job.wait(), [0] * len(counts), job.said())
        self.assertIn("You may", job.said())  # An evaluation wrote it.
        return float(re.search(rf"loss ([\d.]+) after {steps} steps", job.said())[1])

    def test_two_hosts_lose_what_one_process_does(self):
        self.need("gloo")
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        first, own = pathlib.Path(scratch.name) / "first", pathlib.Path(scratch.name) / "own"
        self.trained(first, (1,), 1)
        shutil.copytree(first, own)
        expected = self.trained(own, (1,), 6)
        for counts, *mesh in (((1, 1), "--pp", 2), ((1, 1), "--pp", 2, "--schedule", "zbv"),
                              ((2, 2), "--pp", 2, "--dp", 2, "--schedule", "zb1p"),
                              ((2, 2), "--pp", 4, "--schedule", "gpipe"),
                              ((2, 2), "--pp", 2, "--fsdp", "--recompute")):
            with self.subTest(mesh=mesh):
                shutil.rmtree(own)
                shutil.copytree(first, own)
                self.assertAlmostEqual(self.trained(own, counts, 6, *mesh), expected, delta=1e-6)


if __name__ == "__main__":
    main(__doc__)
