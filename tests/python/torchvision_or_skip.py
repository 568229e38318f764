# SPDX-License-Identifier: Apache-2.0
"""`from torchvision_or_skip import datasets, transforms` skips a test without torchvision.

PyPI's wheel has operators for CUDA's LibTorch, which do not load with the LibTorch for CPUs.
Folders and transforms of PIL images do not need them.
"""

import sys

from torch_or_skip import SKIPPED, torch


def register_without_operators(*arguments, **options):
    def decorate(function):
        try:
            return registered(*arguments, **options)(function)
        except RuntimeError:
            return function

    return decorate


registered = torch.library.register_fake
torch.library.register_fake = register_without_operators

try:
    from torchvision import datasets, transforms  # noqa: F401
except ImportError as failure:
    print(f"skipped: {sys.executable} cannot import torchvision and Pillow ({failure})")
    sys.exit(SKIPPED)
