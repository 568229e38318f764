# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the calling program. Skipped tests are listed, and do not count as a success.
"""

import sys
import unittest

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.


def run_tests(words):
    """`words` are the command line, as for unittest."""
    result = unittest.main("__main__", argv=[sys.argv[0], *words], exit=False, verbosity=2).result
    for reason in sorted({reason for _, reason in result.skipped}):
        print("skipped:", reason)
    if not result.wasSuccessful():
        sys.exit(1)
    if result.skipped:
        sys.exit(SKIPPED)
