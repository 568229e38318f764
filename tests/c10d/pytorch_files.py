#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Test files of PyTorch that its wheel lacks: what passes with Gloo passes with Lockstep in its
place. They are files of PyTorch's repository, of any version near to the one that is installed.

pytorch_files.py FOLDER [FILE...]    FOLDER is test/distributed of PyTorch's repository

Not among the tests that ctest runs, as the files are not here.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FILES = ["test_c10d_gloo.py", "test_c10d_common.py", "test_c10d_object_collectives.py",
         "test_functional_api.py", "test_device_mesh.py", "test_c10d_functional_native.py",
         "test_multi_threaded_pg.py", "algorithms/test_join.py",
         "optim/test_zero_redundancy_optimizer.py", "_composable/test_replicate.py",
         "checkpoint/test_checkpoint.py", "checkpoint/test_file_system_checkpoint_cpu.py",
         "checkpoint/test_dtensor_checkpoint.py", "checkpoint/test_save_load_api.py",
         "checkpoint/test_utils.py", "_tensor/test_redistribute.py", "_tensor/test_dtensor.py",
         "_tensor/test_api.py", "_tensor/test_utils.py", "_tensor/test_random_ops.py",
         "tensor/parallel/test_parallelize_api.py", "tensor/parallel/test_tp_style.py",
         "tensor/parallel/test_tp_examples.py", "pipelining/test_schedule.py"]
LIMIT = 400  # Seconds per file.


class Passed(unittest.TextTestResult):
    """Writes the names of tests when they start and when they pass."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.told = open(os.environ["RESULTS"], "a", buffering=1, encoding="utf-8")

    def startTest(self, test):
        super().startTest(test)
        print(json.dumps(["began", test.id()]), file=self.told)

    def addSuccess(self, test):
        super().addSuccess(test)
        print(json.dumps(["passed", test.id()]), file=self.told)


def replace_direct_use():
    """Tests that create ProcessGroupGloo themselves get Lockstep's object, too."""
    import torch.distributed as dist
    from lockstep._registration import join

    class ProcessGroupGloo(dist.distributed_c10d.ProcessGroupGloo):
        def __new__(cls, store, rank, size, options):
            return join(store, rank, size, getattr(options, "_timeout", options), "", ())

    dist.ProcessGroupGloo = ProcessGroupGloo


def run_here(file):
    """Runs a file's tests in this process. Their ranks are forked, so it never uses torch."""
    from torch.testing._internal import common_distributed

    fork = multiprocessing.get_context("fork").Process
    common_distributed.MultiProcessTestCase._spawn_processes = (
        lambda case: case._start_processes(fork))
    common_distributed.TIMEOUT_DEFAULT = 60
    if os.environ["LOCKSTEP_AS_GLOO"] == "1":
        replace_direct_use()
    sys.path.insert(0, str(file.parent))
    description = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    tests = unittest.defaultTestLoader.loadTestsFromModule(module)
    unittest.TextTestRunner(resultclass=Passed, verbosity=2).run(tests)


def results(file, as_gloo, log):
    """Returns the tests that passed, and the test that timed out."""
    with tempfile.NamedTemporaryFile("r") as told:
        variables = {"RESULTS": told.name, "LOCKSTEP_AS_GLOO": str(int(as_gloo)),
                     "OMP_NUM_THREADS": "1"}
        begun = subprocess.Popen([sys.executable, __file__, "--here", file], stdout=log,
                                 stderr=log, env=os.environ | variables)
        try:
            begun.wait(LIMIT)
        except subprocess.TimeoutExpired:
            begun.kill()
            begun.wait()
        lines = [json.loads(line) for line in told]
    hung = lines[-1][1] if begun.returncode < 0 and lines else None
    return {name for kind, name in lines if kind == "passed"}, hung


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--here", action="store_true", help="run one file in this process")
    parser.add_argument("--log", type=argparse.FileType("w"), default=os.devnull)
    options = parser.parse_args()
    if options.here:
        return run_here(options.folder)
    missed, both = [], 0
    for name in options.files or FILES:
        file = options.folder / name
        gloo, _ = results(file, False, options.log)
        ours, hung = results(file, True, options.log)
        missed += sorted(gloo - ours)
        both += len(gloo & ours)
        print(f"{name}: {len(gloo)} with Gloo, {len(gloo & ours)} of them with Lockstep"
              + (f"; {hung} did not end" if hung else ""), *sorted(gloo - ours), sep="\n    ",
              flush=True)
    print(f"{both} of {both + len(missed)} tests that pass with Gloo pass with Lockstep")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
