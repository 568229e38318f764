# SPDX-License-Identifier: Apache-2.0
"""`from torch_or_skip import torch` skips a test where there is no torch."""

import sys

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.

try:
    import torch
except ImportError as failure:
    print(f"skipped: {sys.executable} cannot import torch ({failure}); name one that can with")
    print("  cmake -DLOCKSTEP_PYTHON=PATH")
    sys.exit(SKIPPED)
