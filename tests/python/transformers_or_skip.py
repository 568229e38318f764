# SPDX-License-Identifier: Apache-2.0
"""`from transformers_or_skip import transformers` skips a test without it. ./dev test fetches it
into .deps/frameworks, beside the packages of .deps/torch.
"""

import os
import pathlib
import sys

from torch_or_skip import SKIPPED

os.environ["HF_HUB_OFFLINE"] = "1"  # Models are made here.
sys.modules["torchvision"] = None  # Its wheel cannot be imported as it is: torchvision_or_skip.py.
root = pathlib.Path(__file__).resolve().parents[2]
version = f"python{sys.version_info.major}.{sys.version_info.minor}"
sys.path.append(str(root / ".deps" / "frameworks" / "lib" / version / "site-packages"))

try:
    import transformers  # noqa: F401
except ImportError as failure:
    print(f"skipped: cannot import transformers ({failure}); ./dev test fetches it")
    sys.exit(SKIPPED)
