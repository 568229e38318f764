# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the program that calls it. What was skipped is said, and is no success."""

import sys
import unittest

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.


def run_tests(words):
    """`words` are of the command line, as unittest takes them."""
    result = unittest.main("__main__", argv=[sys.argv[0], *words], exit=False, verbosity=2).result
    for reason in sorted({reason for _, reason in result.skipped}):
        print("skipped:", reason)
    if not result.wasSuccessful():
        sys.exit(1)
    if result.skipped:
        sys.exit(SKIPPED)
