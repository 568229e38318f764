# SPDX-License-Identifier: Apache-2.0
"""Runs commands for tests, prints what they print, and skips tests."""

import os
import subprocess
import sys

SKIPPED = 77  # SKIP_RETURN_CODE of tests in CMakeLists.txt.


def environment(**added):
    """Removes our variables: an installed program finds its libraries without them."""
    hidden = ("LD_LIBRARY_PATH", "CMAKE_PREFIX_PATH", "Torch_DIR", "Lockstep_DIR")
    return {k: v for k, v in os.environ.items() if k not in hidden} | added


def run(*command, fails=False, folder=None, **added):
    """Runs a command, which must succeed or, if asked, fail; returns its output."""
    print("+", *command, flush=True)
    done = subprocess.run([str(word) for word in command],
                          env=environment(**added),
                          cwd=folder,
                          text=True,
                          stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    print(done.stdout, flush=True)
    if fails == (done.returncode == 0):
        sys.exit(f"exit code {done.returncode}")
    return done.stdout


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)
