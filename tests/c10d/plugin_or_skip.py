# SPDX-License-Identifier: Apache-2.0
"""`from plugin_or_skip import lockstep, torch` skips a test if one of them is not installed."""

import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

from torch_or_skip import SKIPPED, torch  # noqa: E402, F401, torch for those who import this module

if not importlib.util.find_spec("lockstep"):
    print("skipped: the Python package was not built; Python's headers (python3-dev) are needed")
    sys.exit(SKIPPED)

import lockstep  # noqa: E402, F401, for those who import this module
