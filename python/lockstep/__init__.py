# SPDX-License-Identifier: Apache-2.0
"""Lockstep as a backend of torch.distributed: fast on the CPUs of a host, and with clear errors
when a rank fails.

    import torch.distributed as dist

    dist.init_process_group("lockstep")

Everything else does not change: DistributedDataParallel, fully_shard(), DTensor and tensor
parallel, pipelines, distributed checkpoints. Start the program with torchrun, mpirun, srun or
`lockstep run`. `import torch` finds this package; a program need not import it.

When a rank fails, the calls of all other ranks raise lockstep.Error, which names the rank:

    try:
        dist.all_reduce(loss)
    except lockstep.Error as error:
        print(error.fault, error.rank, error.signal)

Collectives use tensors in registered memory without a copy. lockstep.empty() allocates such
tensors. The buckets of DistributedDataParallel and the buffers of fully_shard() use it by
default.

all_reduce_() is all_reduce() for loops of small calls, such as inference.

The package changes the following in torch.distributed. LOCKSTEP_WRAP_NAMES=0 disables all of it.

- monitored_barrier() and the private _set_pg_timeout() also accept groups of this backend.
- A class derived from torch.distributed.Reducer allocates its buckets in registered memory.
- Under `lockstep run`, the package creates the store of init_process_group().
- Under mpirun and srun, which do not set RANK, it sets the variables of init_process_group().

A program that requests "gloo" by name needs no change:

    python -m lockstep.as_gloo train.py
"""

from typing import TYPE_CHECKING

from lockstep import _registration, _versions
from lockstep._errors import Error
from lockstep._memory import empty, is_registered, registered_memory
from lockstep._survival import Survival

if TYPE_CHECKING:
    from lockstep._C import Options, all_reduce_

__all__ = ["Error", "Options", "Survival", "all_reduce_", "empty", "is_registered",
           "registered_memory"]
__version__ = _versions.VERSION

_versions.require_match()
_registration.register()


def __getattr__(name: str) -> object:
    """Loads the library at the first use of one of its names."""
    if name in ("Options", "all_reduce_"):
        from lockstep import _C

        globals()[name] = getattr(_C, name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
