# SPDX-License-Identifier: Apache-2.0
"""Versions of this package, and those of Python and PyTorch for which its library was built.

A backend of torch.distributed is a C++ class. Its layout changes between minor versions of
PyTorch.
"""

import sys

import torch

from lockstep._built_for import PYTHON, TORCH, VERSION

__all__ = ["VERSION", "require_match"]


def require_match() -> None:
    """Raises ImportError if the library cannot be loaded here."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    here = minor_of(torch.__version__)
    if (python, here) != (PYTHON, TORCH):
        raise ImportError(
            f"lockstep {VERSION} was built for PyTorch {TORCH} and Python {PYTHON}, but this is "
            f"PyTorch {here} and Python {python}: build it again with "
            "`pip install --no-build-isolation --force-reinstall --no-deps ./python` "
            "in Lockstep's sources, or install one of these versions"
        )


def minor_of(version: str) -> str:
    """Returns "2.13" for "2.13.0+cpu"."""
    return ".".join(version.split(".")[:2])
