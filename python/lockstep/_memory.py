# SPDX-License-Identifier: Apache-2.0
"""Registered memory, which collectives use without a copy.

Two kinds of tensors use it by default: the buckets of DistributedDataParallel, and tensors of a
size that a collective had to copy before, such as the buffers of fully_shard().
"""

from __future__ import annotations

import contextlib
import sys

import torch
from torch import distributed as dist


def empty(*size, **options) -> torch.Tensor:
    """Returns torch.empty(*size, **options) in registered memory.

    A collective copies nothing if the tensors of all ranks are in registered memory. It is then
    two to six times as fast from about 256 KB on. Not collective. Raises lockstep.Error without
    a group, and if the host has too little memory.
    """
    with registered_memory():
        return torch.empty(*size, **options)


def registered_memory():
    """Returns a context in which all tensors that this thread creates are in registered memory.

        with lockstep.registered_memory():
            weights = torch.zeros(1 << 20)

    Raises lockstep.Error as empty() does, and if one context is entered twice or left on another
    thread.
    """
    from lockstep import _C

    return _C.registered_memory()


def is_registered(tensor: torch.Tensor) -> bool:
    """Whether the tensor is in registered memory of a group of this process."""
    library = loaded_library()
    return library is not None and library.is_registered(tensor)


def keep_buckets() -> None:
    """Allocates the buckets of DistributedDataParallel in registered memory if possible."""

    class Reducer(dist.Reducer):
        def __init__(self, *args, **options):
            with registered_if_possible():
                super().__init__(*args, **options)

        def _rebuild_buckets(self):
            with registered_if_possible():
                return super()._rebuild_buckets()

    dist.Reducer = Reducer


def registered_if_possible():
    library = loaded_library()
    return library.registered_memory(required=False) if library else contextlib.nullcontext()


def loaded_library():
    """Returns None before the first group, when no registered memory exists."""
    return sys.modules.get("lockstep._C")
