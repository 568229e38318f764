# SPDX-License-Identifier: Apache-2.0
"""Replaces functions of torch.distributed that reject backends other than torch's own.

The replacements handle groups of this backend, and pass all other groups to the originals.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

CPU = torch.device("cpu")


def wrap() -> None:
    """Replaces monitored_barrier() and _set_pg_timeout() everywhere in torch."""
    replace(c10d.monitored_barrier, monitored_barrier)
    replace(c10d._set_pg_timeout, set_pg_timeout)
    if hasattr(c10d, "new_comm"):  # Only if TorchComms is installed.
        replace(c10d.new_comm, new_comm)


def replace(original: Callable, ours: Callable) -> None:
    wrapper = functools.wraps(original)(functools.partial(ours, original))
    for module in (c10d, dist):
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, wrapper)


def backend_of(group: dist.ProcessGroup | None):
    """Returns this backend's object of the group; None if the group has another backend."""
    library = sys.modules.get("lockstep._C")  # Before it is loaded, no such group exists.
    if library is None or c10d._rank_not_in_group(group):
        return None
    group = group or c10d._get_default_group()
    if CPU not in group._device_types:
        return None
    backend = group._get_backend(CPU)
    wrapped = getattr(backend, "wrapped_pg", backend)  # With TORCH_DISTRIBUTED_DEBUG=DETAIL.
    return wrapped if isinstance(wrapped, library.Backend) else None


def monitored_barrier(original, group=dist.group.WORLD, timeout=None, wait_all_ranks=False):
    if backend_of(group) is None:
        return original(group, timeout, wait_all_ranks)
    if isinstance(timeout, float):
        warnings.warn("timeout should be a timedelta; it is taken as seconds", stacklevel=2)
        timeout = timedelta(seconds=timeout)
    if timeout is None:
        timeout = c10d._get_default_timeout(c10d.get_backend(group))
    c10d._check_valid_timeout(timeout)
    group = group or c10d._get_default_group()
    return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def set_pg_timeout(original, timeout, group=None):
    backend = backend_of(group)
    if backend is None:
        return original(timeout, group)
    return backend.set_timeout(timeout)


def new_comm(original, backend, *args, **options):
    """TorchComms' own function, which torch.distributed can use to create all groups."""
    is_gloo = backend == "gloo" and getattr(c10d.ProcessGroupGloo, "is_lockstep", False)
    if backend != "lockstep" and not is_gloo:
        return original(backend, *args, **options)
    from lockstep import Error

    raise Error("init_process_group: TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 (or torch.distributed."
                "config.use_torchcomms) makes torch.distributed create this group with "
                "TorchComms, which cannot create Lockstep's: unset it on all ranks",
                fault="unsupported")
