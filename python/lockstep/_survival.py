# SPDX-License-Identifier: Apache-2.0
"""Training that continues when ranks die."""

from __future__ import annotations

import copy
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from lockstep._errors import Error

if TYPE_CHECKING:
    from lockstep._C import ElasticWorld
    from lockstep._survival_checkpoints import Checkpoints

TIME_TO_FORM = timedelta(seconds=5)


class Stateful(Protocol):
    """An object with a state, such as a module, an optimizer, a schedule or a sampler."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


class Survival:
    """A training whose ranks may die: the others repeat the interrupted step without them. A
    process that `lockstep run --on-failure continue` starts in place of a lost rank joins between
    two steps, with the state of the others.

        net = Net()
        adam = torch.optim.Adam(net.parameters())

        def setup():  # Runs again for each new group.
            global ddp
            ddp = DistributedDataParallel(net)
            return {"model": net, "optimizer": adam}

        survival = lockstep.Survival(setup)
        while survival.steps < 1000:
            survival.step(compute, apply)
        survival.finish()

    `setup` makes all objects that depend on the group, which is torch.distributed's default group,
    and returns the state of the training, equal on all ranks, by name. Module and optimizer persist
    outside. Do not call torch.distributed.init_process_group().

    `compute` makes the gradients, which it clears first, and may communicate. `apply` changes
    parameters, optimizer and the rest of the state, and must not communicate. All ranks call it for
    the same steps.

    timeout   Limit of each call of the group.
    patience  Wait for a rank that lives but does not come to the new group. Like `timeout`, at
              most that of `lockstep run --leave-out-stragglers`.
    least     The ranks continue while at least this many are left.
    checkpoints, every
              For state of which each rank has a part, as with fully_shard(): a folder that all
              ranks see. They save the state every so many steps, by
              torch.distributed.checkpoint. `setup` makes module and optimizer again, too. After a
              death, and at the start, all ranks continue from the newest checkpoint: `steps`
              decreases.

    If SIGTERM or SIGUSR1 come while a process waits to join, it leaves at once: `has_left` is True,
    step() returns False, and `setup` was not called.

    Raises lockstep.Error with fault "peer_lost" if too few ranks are left, "aborted" if the others
    continue without this rank, and ValueError for a model of which each rank has only a part.
    """

    def __init__(
        self,
        setup: Callable[[], Mapping[str, Stateful]],
        *,
        backend: str = "lockstep",
        timeout: timedelta = timedelta(minutes=5),
        patience: timedelta = timedelta(seconds=30),
        least: int = 1,
        checkpoints: str | os.PathLike[str] | None = None,
        every: int = 100,
    ) -> None:
        from lockstep import _C

        if every < 1:
            raise ValueError(f"`every` must be positive, not {every}")
        limit = min(timeout, _C.straggler_limit() or timeout)
        kept = None
        if checkpoints is not None:
            from lockstep._survival_checkpoints import Checkpoints

            kept = Checkpoints(checkpoints)
        self._objects = Objects(setup, backend, timeout, limit, kept)
        # A reference from C++ would hide cycles from Python's garbage collector.
        self._steps = _C.ElasticSteps(
            weakref.proxy(self._objects),
            timeout=timeout,
            patience=patience,
            least=least,
            save_every=0 if kept is None else every,
        )
        self._steps.begin()

    @property
    def steps(self) -> int:
        """Steps applied so far, by all groups."""
        return self._steps.steps

    @property
    def has_left(self) -> bool:
        """Whether this rank has left the group: end the process with exit code 75."""
        return self._steps.has_left

    @property
    def changes(self) -> int:
        """Number of changes of the group."""
        return self._steps.changes

    @property
    def scale(self) -> float:
        """Number of ranks, divided by that at the start."""
        return self._steps.scale

    def step(self, compute: Callable[[], object], apply: Callable[[], object]) -> bool:
        """One step, together with all ranks. False if this rank has left after it, because the
        process received SIGTERM or SIGUSR1, or had left before: end it with exit code 75."""
        return self._steps.step(compute, apply)

    def finish(self) -> None:
        """Reports that the training is complete: no rank waits for this one any more, and processes
        that wait to join stop waiting."""
        self._steps.finish()


class Objects:
    """The objects of a training and their state. lockstep._C.ElasticSteps calls it: the class
    TrainingObjects of lockstep/comm/elastic_steps.h."""

    def __init__(
        self,
        setup: Callable[[], Mapping[str, Stateful]],
        backend: str,
        timeout: timedelta,
        call_timeout: timedelta,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._setup = setup
        self._backend = backend
        self._timeout = timeout  # To make a group.
        self._call_timeout = call_timeout
        self._checkpoints = checkpoints
        self._state: dict[str, Stateful] = {}
        self._copies: dict[str, Any] = {}
        self._random = torch.get_rng_state()
        self._attempts = 0  # To make a group, in this step.

    def copy(self) -> None:
        """Copies all that compute() may change: buffers, random numbers, and parts that are neither
        modules nor optimizers."""
        self._attempts = 0
        if self._checkpoints is not None:
            return
        self._random = torch.get_rng_state()
        for name, part in self._state.items():
            if isinstance(part, torch.nn.Module):
                self._copies[name] = {key: one.clone() for key, one in part.named_buffers()}
            elif not isinstance(part, torch.optim.Optimizer):
                self._copies[name] = copy.deepcopy(part.state_dict())

    def make(self, group: ElasticWorld, restores: bool) -> None:
        self._attempts += 1
        self._init_process_group(group)
        if self._checkpoints is not None:
            self._checkpoints.forget_layouts()
        self._state = dict(self._setup())
        if restores:
            self._restore()

    def require_whole(self) -> None:
        require_whole(self._state)

    def send(self, to: int) -> None:
        dist.send_object_list([{name: one.state_dict() for name, one in self._state.items()}], to)

    def receive(self, sender: int) -> None:
        received: list[Any] = [None]
        dist.recv_object_list(received, sender)
        for name, saved in received[0].items():
            self._state[name].load_state_dict(saved)

    def save(self, step: int) -> None:
        assert self._checkpoints is not None
        self._checkpoints.save(step, self._state)

    def load(self) -> int | None:
        assert self._checkpoints is not None
        return self._checkpoints.load(self._state)

    def _init_process_group(self, group: ElasticWorld) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        is_one_host = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
        host = "127.0.0.1" if is_one_host else socket.gethostname()
        # Its end reveals a rank that died meanwhile. Busy hosts need longer.
        short = min(self._timeout, TIME_TO_FORM * 2 ** min(self._attempts, 10))
        if group.rank == 0:
            store = dist.TCPStore(host, 0, None, True, timeout=short, wait_for_workers=False)
            group.broadcast(f"{host} {store.port}")
        else:
            store = connect(*group.broadcast("").split(), group.size, short)
        # A failed call counts in the names of keys, on this rank but not on new ones.
        distributed_c10d._world.group_count = 0
        dist.init_process_group(
            self._backend, store=store, rank=group.rank, world_size=group.size, timeout=short
        )
        store.set_timeout(self._call_timeout)
        distributed_c10d._set_pg_timeout(self._call_timeout)

    @torch.no_grad()
    def _restore(self) -> None:
        torch.set_rng_state(self._random)
        for name, part in self._state.items():
            if isinstance(part, torch.nn.Module):
                for key, one in part.named_buffers():
                    one.copy_(self._copies[name][key])
            elif not isinstance(part, torch.optim.Optimizer):
                part.load_state_dict(copy.deepcopy(self._copies[name]))


def connect(host: str, port: str, size: int, limit: timedelta) -> dist.Store:
    """PyTorch's constructor may wait forever for a server that has ended."""
    from lockstep import _C

    store, reason = _C.connect_to_store(host, int(port), size, True, limit, limit)
    if store is None:
        raise Error(f"no store of the new group at {host}:{port}: {reason}", fault="timeout")
    store.set_timeout(limit)
    return store


def require_whole(state: Mapping[str, Stateful]) -> None:
    from torch.distributed.tensor import DTensor

    for name, part in state.items():
        if isinstance(part, torch.nn.Module) and any(
            isinstance(one, DTensor) for one in part.parameters()
        ):
            raise ValueError(
                f"training cannot continue without a lost rank, because no other rank has its part "
                f"of '{name}': use a checkpoint"
            )
