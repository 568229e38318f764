# SPDX-License-Identifier: Apache-2.0
"""Registers the backend with torch.distributed. The library is loaded with the first group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import distributed as dist

from lockstep import _launchers, _memory, _names, _store, _variables

if TYPE_CHECKING:
    from lockstep._C import Backend

NAME = "lockstep"


def register() -> None:
    """Registers the name "lockstep". Further calls do nothing."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, make_backend, extended_api=True, devices=["cpu"])
    if _variables.read("LOCKSTEP_WRAP_NAMES") != "0":
        _names.wrap()
        _memory.keep_buckets()
        _store.wrap()
        _launchers.wrap()
    if _variables.read("LOCKSTEP_AS_GLOO", "0") != "0":
        from lockstep import as_gloo

        as_gloo.install()


def make_backend(place: dist.distributed_c10d._DistributedBackendOptions,
                 options: dist.Backend.Options | None) -> Backend:
    """Creates this process's member of a new group for torch.distributed. The options may be
    those of another backend of the same group, such as "nccl" in "cuda:nccl,cpu:lockstep"."""
    return join(place.store, place.group_rank, place.group_size, place.timeout, place.group_id,
                place.global_ranks_in_group, options)


def join(store, rank, size, timeout, name, global_ranks, options=None) -> Backend:
    """Returns when all ranks of the group have called it."""
    from lockstep import _C, _exit_report, _steps

    _exit_report.install()
    _steps.install()
    return _C.Backend(store, rank, size, timeout, name, list(global_ranks), options)
