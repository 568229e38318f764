#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own test suite of torch.distributed passes with Lockstep. This includes every test that
it runs with Gloo on this number of CPU ranks, and those of all_to_all, which it runs with MPI.

pytorch_suite_test.py [--ranks N] [--backend NAME] [NAME...]: only the tests with these names

The suite is imported as if for Gloo, because its decorators compare names; the calls that make
groups then ask for Lockstep instead. Ranks are forked from this process, which has imported torch
and never runs it: a spawned rank would take ten times as long to start.
"""

import argparse
import importlib
import io
import logging
import multiprocessing
import os
import sys
import tempfile
import unittest
from datetime import timedelta

from plugin_or_skip import SKIPPED, torch

import torch.distributed as dist  # noqa: E402

FORK = multiprocessing.get_context("fork")
PARTS = 4
SUITE = "torch.testing._internal.distributed.distributed_test"
# Number of tests that run on this many CPU ranks, from Gloo's tests and MPI's all_to_all. The
# others need GPUs or more ranks. The number shows that no test was skipped silently.
RUNNABLE = {2: 98, 4: 125}
# The suite compares the name of the backend in one field of DDP's log.
COMPARES_NAMES = {"test_ddp_logging_data_cpu"}


def load(backend):
    """Imports the suite as if for a backend; returns its module, a new one each time."""
    os.environ["BACKEND"] = backend
    sys.modules.pop(SUITE, None)
    return importlib.import_module(SUITE)


def cases(module, backend):
    """Returns the suite's class of tests, with forked ranks."""

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(FORK.Process)

        def test_get_backend(self):
            module.BACKEND = backend  # The name that it expects.
            super().test_get_backend()

    return Suite


def ask_for(backend):
    """Replaces calls of the suite that name a backend, so that they use this one."""

    def asking(function):
        def call(*args, **kwargs):
            if kwargs.get("backend") in ("gloo", "mpi"):
                kwargs["backend"] = backend
            return function(*args, **kwargs)

        return call

    dist.init_process_group = asking(dist.init_process_group)
    dist.new_group = with_timeout_of_calls(asking(dist.new_group))
    dist.monitored_barrier = monitored_barrier


def with_timeout_of_calls(new_group):
    """The suite gives groups a second in which ranks also have to make them."""
    def call(*args, timeout=None, **kwargs):
        group = new_group(*args, **kwargs)
        if timeout and group != dist.distributed_c10d.GroupMember.NON_GROUP_MEMBER:
            dist.distributed_c10d._set_pg_timeout(timeout, group)
        return group

    return call


def monitored_barrier(*args, timeout=None, **kwargs):
    """With more time than the suite's two seconds."""
    if timeout == timedelta(seconds=2):
        timeout = timedelta(seconds=5)
    limit = {} if timeout is None else {"timeout": timeout}
    # Found there, as importing lockstep replaces the function.
    return dist.distributed_c10d.monitored_barrier(*args, **limit, **kwargs)


def names_in(suite):
    return set(unittest.defaultTestLoader.getTestCaseNames(suite))


def all_tests(wanted, backend):
    """Returns the tests with these names, or all."""
    theirs = cases(load("mpi"), backend)
    ours = cases(load("gloo"), backend)  # Last, because its tests pickle its classes.
    chosen = [ours(name) for name in names_in(ours) - COMPARES_NAMES]
    chosen += [theirs(name) for name in names_in(theirs) if "all_to_all" in name]
    chosen.sort(key=lambda test: test._testMethodName)
    return [test for test in chosen if not wanted or test._testMethodName in wanted]


class Results(unittest.TextTestResult):
    """Counts the tests that have run to their end."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def run_part(sender, tests):
    """Runs tests in a folder of their own. Sends how many passed, whether none failed, and the
    output."""
    text = io.StringIO()
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        results = unittest.TextTestRunner(text, resultclass=Results).run(unittest.TestSuite(tests))
    sender.send((results.passed, results.wasSuccessful(), text.getvalue()))


def run_all(tests):
    """Returns how many tests passed, and the output of those that failed. Several tests run
    concurrently, because each sleeps most of the time."""
    parts = []
    for number in range(PARTS):
        receiver, sender = FORK.Pipe(duplex=False)
        parts.append((FORK.Process(target=run_part, args=(sender, tests[number::PARTS])), receiver))
        parts[-1][0].start()
        sender.close()
    ends = [receiver.recv() for _, receiver in parts]
    for process, _ in parts:
        process.join()
    return sum(passed for passed, _, _ in ends), [text for _, well, text in ends if not well]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="lockstep")
    options = parser.parse_args()
    os.environ |= {"WORLD_SIZE": str(options.ranks), "OMP_NUM_THREADS": "1"}
    try:
        tests = all_tests(options.names, options.backend)
    except ModuleNotFoundError as missing:
        print(f"skipped: PyTorch's test suite needs {missing.name}, which ./dev test fetches")
        sys.exit(SKIPPED)
    # For all others, the tests of a group of ranks 1 and 2 ask for eight ranks.
    os.environ["BACKEND"] = "mpi" if options.ranks > 2 else "gloo"
    logging.disable(logging.INFO)
    ask_for(options.backend)
    passed, failures = run_all(tests)
    print("\n".join(failures))
    print(f"{passed} of PyTorch's tests passed on {options.ranks} ranks")
    expected = 0 if options.names else RUNNABLE[options.ranks]
    if failures or passed < expected:
        sys.exit(f"all of {expected} should pass")


if __name__ == "__main__":
    main()
