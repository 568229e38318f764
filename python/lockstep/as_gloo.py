# SPDX-License-Identifier: Apache-2.0
"""Runs a program that asks for the backend "gloo" with this one instead.

    python -m lockstep.as_gloo train.py --epochs 3
    python -m lockstep.as_gloo -m package.train --epochs 3
    torchrun --nproc-per-node 2 -m lockstep.as_gloo train.py --epochs 3

torch.distributed still reports the name "gloo", for code that compares names. With
LOCKSTEP_AS_GLOO=1 in the environment, this also applies to a program that is started as usual, and
to its children.
"""

from __future__ import annotations

import contextvars
import functools
import os
import runpy
import sys
from datetime import timedelta

from torch.distributed import distributed_c10d as c10d

# The group that torch.distributed is creating, whose name and ranks it does not pass to Gloo. None
# for Gloo's other objects, as of TORCH_DISTRIBUTED_DEBUG=DETAIL.
_group = contextvars.ContextVar("the group that is made", default=None)


def install() -> None:
    """Replaces groups of the backend "gloo" by Lockstep's. Further calls do nothing."""
    if getattr(c10d.ProcessGroupGloo, "is_lockstep", False):
        return
    make_group = c10d._new_process_group_helper

    @functools.wraps(make_group)
    def make_group_and_tell(group_size, group_rank, global_ranks, backend, store, group_name,
                            *others, **named):
        token = _group.set((str(group_name), tuple(global_ranks)))
        try:
            group, prefix = make_group(group_size, group_rank, global_ranks, backend, store,
                                       group_name, *others, **named)
        finally:
            _group.reset(token)
        if isinstance(group, c10d.ProcessGroup):
            declare(group)
        return group, prefix

    c10d._new_process_group_helper = make_group_and_tell
    c10d.ProcessGroupGloo = stand_in(c10d.ProcessGroupGloo)


def declare(group: c10d.ProcessGroup) -> None:
    """Reports that Lockstep's members of the group are not Gloo's: DistributedDataParallel's
    logger casts objects of type GLOO to Gloo's C++ class."""
    from lockstep import _C

    custom = c10d.ProcessGroup.BackendType.CUSTOM
    for device in group._device_types:
        backend = group._get_backend(device)
        if isinstance(getattr(backend, "wrapped_pg", backend), _C.Backend):
            group._register_backend(device, custom, backend)
            if group.name() == "gloo":
                group._set_default_backend(custom)


def stand_in(gloo: type) -> type:
    """Returns the object that replaces the class of Gloo's groups in torch.distributed."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            from lockstep import _C

            return isinstance(instance, (_C.Backend, gloo))

        def __getattr__(cls, name: str) -> object:
            return getattr(gloo, name)

    class ProcessGroupGloo(metaclass=Meta):
        is_lockstep = True

        def __new__(cls, *arguments, **named):
            group = _group.get()
            _group.set(None)
            if group is None:
                return gloo(*arguments, **named)
            return member(*group, *arguments, **named)

    return ProcessGroupGloo


def member(name: str, ranks: tuple[int, ...], store, rank: int, size: int, timeout: timedelta,
           enable_reconfigure: bool = False):  # Since PyTorch 2.15.
    """Creates this process's member of the group that torch.distributed is creating."""
    from lockstep._registration import join

    if enable_reconfigure:
        raise NotImplementedError("enable_reconfigure=True: members of Lockstep's groups change "
                                  "with lockstep.Survival, not with reconfigure()")
    return join(store, rank, size, timeout, name, ranks)


def main() -> None:
    """Runs the program that the command line names, as Python would."""
    is_module = sys.argv[1:2] == ["-m"]
    sys.argv = sys.argv[2 if is_module else 1:]
    if not sys.argv:
        sys.exit(__doc__)
    os.environ["LOCKSTEP_AS_GLOO"] = "1"  # For its children.
    install()
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
