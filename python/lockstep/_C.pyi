# SPDX-License-Identifier: Apache-2.0
"""The library: the backend and its options."""

from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from torch import Tensor
from torch._C._distributed_c10d import Backend as _TorchBackend
from torch._C._distributed_c10d import ProcessGroup, Store, TCPStore

class Options(_TorchBackend.Options):
    """Options of a group, for `pg_options` of init_process_group() and new_group().

    interface  The network by which ranks on other hosts reach this one: an interface, an address,
               or a network in CIDR form. By default LOCKSTEP_INTERFACE, or the one that leads to
               the job's store.
    transport  What moves the data: "auto", "shm" (all ranks on one host), "shm+ENGINE" or "ENGINE",
               with an engine between hosts: mpi, gloo or oneccl. By default LOCKSTEP_BACKEND.
    """

    interface: str
    transport: str

    def __init__(self, *, interface: str = "", transport: str = "") -> None: ...

class Backend(_TorchBackend):
    """A group of this process. torch.distributed makes and calls it."""

    @property
    def options(self) -> Options: ...

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        global_ranks: list[int],
        options: _TorchBackend.Options | None,
    ) -> None: ...

class registered_memory:
    """While the `with` block runs, tensors that this thread makes lie in registered memory.

    required  Otherwise they lie in ordinary memory where there is too little, or no group.

    Another block may not use the object meanwhile, and it ends on the thread on which it began.
    """

    def __init__(self, *, required: bool = True) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

def all_reduce_(tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Replaces a contiguous tensor in CPU memory by the sum of all ranks' tensors; returns it."""

def is_registered(tensor: Tensor) -> bool:
    """Whether collectives copy nothing of this tensor, if all ranks' are registered."""

class ElasticWorld:
    """The group by which the ranks of a lockstep.Survival agree."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def broadcast(self, text: str) -> str: ...

def straggler_limit() -> timedelta | None:
    """The longest wait of a call for a rank, if `lockstep run --leave-out-stragglers` sets it."""

class ElasticSteps:
    """The steps of a lockstep.Survival. `objects` is a lockstep._survival.Objects."""

    def __init__(
        self,
        objects: object,
        *,
        timeout: timedelta,
        patience: timedelta,
        least: int,
        save_every: int,
    ) -> None: ...
    def begin(self) -> None: ...
    def step(self, compute: Callable[[], object], apply: Callable[[], object]) -> bool: ...
    def finish(self) -> None: ...
    @property
    def steps(self) -> int: ...
    @property
    def has_left(self) -> bool: ...
    @property
    def changes(self) -> int: ...
    @property
    def scale(self) -> float: ...

class LaunchEnvironment:
    """This process's place in its job, by the variables of its launcher. `master` is HOST:PORT of
    rank 0's store, on one host of mpirun and srun, too; empty if no variable names it."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    job_id: str
    master: str

def launch_environment() -> LaunchEnvironment:
    """Raises lockstep.Error if no launcher has given this process a rank."""

def is_launched() -> bool:
    """Whether LOCKSTEP_LAUNCHER is set, or a launcher that does not set RANK has started this
    process."""

def catch_interrupts() -> None:
    """From now on, Ctrl-C ends a call of the main thread that waits for other ranks."""

def throw_if_launcher_lost_rank() -> None:
    """Raises lockstep.Error if a rank has ended before it joined a group, as far as the launcher
    knows: `lockstep run`, which must have started this process."""

def connect_to_store(
    host: str, port: int, world_size: int, use_libuv: bool, attempt: timedelta, timeout: timedelta
) -> tuple[TCPStore | None, str]:
    """Returns PyTorch's store that is served there, or why PyTorch failed after some `attempt`;
    neither if what listens there says nothing within `timeout`. Raises lockstep.Error as
    throw_if_launcher_lost_rank(), and KeyboardInterrupt."""

def is_in_use(store: Store) -> bool:
    """Whether C++ objects refer to the store, beside its object in Python."""

def never_destroy(store: Store) -> None:
    """Keeps one reference to the store for ever."""

def throw_without_store(place: str, timeout: timedelta, reason: str) -> NoReturn:
    """Raises the lockstep.Error for a rank 0 that has served no store there in time, and tells the
    launcher; `reason` is that of the last try to reach it, or empty."""

def end_with_exception(text: str, traceback: str, fault: str = "") -> None:
    """Tells the other ranks and the launcher of the exception that ends this process; `fault` is
    that of a lockstep.Error."""

def end_with_exit_code(text: str) -> None:
    """From now on the other ranks take the end of this process for a failure."""

def count_step() -> None:
    """Counts a training step of this process, for `lockstep top` and `lockstep tune`."""

def leave_all() -> None:
    """Leaves all groups of this process in order, without the other ranks."""

def leave_all_at_exit() -> None:
    """Ends the threads of all groups. Leaves the groups when the process exits with code 0; with
    another one the process is missed."""
