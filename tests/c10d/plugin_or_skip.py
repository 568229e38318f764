# SPDX-License-Identifier: Apache-2.0
"""`from plugin_or_skip import lockstep, torch` skips a test where one of them is absent."""

import importlib.util
import sys

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.

try:
    import torch  # noqa: F401, for those who import this module
except ImportError as failure:
    print(f"skipped: {sys.executable} cannot import torch ({failure}); name one that can with")
    print("  cmake -DLOCKSTEP_PYTHON=PATH")
    sys.exit(SKIPPED)

if not importlib.util.find_spec("lockstep"):
    print("skipped: the Python package was not built; Python's headers (python3-dev) are needed")
    sys.exit(SKIPPED)

import lockstep  # noqa: E402, F401, for those who import this module
