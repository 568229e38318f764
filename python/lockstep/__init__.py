# SPDX-License-Identifier: Apache-2.0
"""Lockstep as a backend of torch.distributed: fast on the CPUs of a host, clear when a rank fails.

    import torch.distributed as dist

    dist.init_process_group("lockstep")

Everything else stays as it is: DistributedDataParallel, fully_shard(), DTensor and tensor parallel,
pipelines, distributed checkpoints. Start the program with torchrun, mpirun, srun or `lockstep run`.
Importing this package is not necessary, since `import torch` finds it.

When a rank fails, the calls of all others raise lockstep.Error, which names it:

    try:
        dist.all_reduce(loss)
    except lockstep.Error as error:
        print(error.fault, error.rank, error.signal)

Collectives copy nothing of tensors in registered memory, which lockstep.empty() makes. Buckets of
DistributedDataParallel lie there by themselves, and so do the buffers of fully_shard().

The package also makes two functions of torch.distributed work on its groups, which torch refuses
for all names but its own: monitored_barrier() and the private _set_pg_timeout(). It derives a class
from torch.distributed.Reducer, to put its buckets into registered memory. Under `lockstep run`, it
makes the store of init_process_group(). Under mpirun and srun, which do not set RANK, it sets the
variables that init_process_group() reads. LOCKSTEP_WRAP_NAMES=0 leaves all of this alone. A program
that asks for "gloo" by name needs no change:

    python -m lockstep.as_gloo train.py
"""

from typing import TYPE_CHECKING

from lockstep import _registration, _versions
from lockstep._errors import Error
from lockstep._memory import empty, is_registered, registered_memory

if TYPE_CHECKING:
    from lockstep._C import Options

__all__ = ["Error", "Options", "empty", "is_registered", "registered_memory"]
__version__ = _versions.VERSION

_versions.require_match()
_registration.register()


def __getattr__(name: str) -> object:
    """Loads the library at the first use of what is in it."""
    if name == "Options":
        from lockstep._C import Options

        return Options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
