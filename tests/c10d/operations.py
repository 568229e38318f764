# SPDX-License-Identifier: Apache-2.0
"""Every operation of torch.distributed as a function of data and a group, so that one test compares
backends in all of them. Each returns the tensors that it filled."""

import contextlib
import unittest.mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn as with_gradients


class Data:
    """Random values of each rank, which every rank can compute: `size` elements of a type."""

    def __init__(self, group, size, dtype):
        self.group, self.size, self.dtype = group, size, dtype
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        # Global ranks of the group: c10d's roots and peers are global.
        self.members = dist.get_process_group_ranks(group)

    def of(self, rank, size=None):
        """Returns the values of a rank."""
        random = torch.Generator().manual_seed(1000 * rank + 7)
        size = self.size if size is None else size
        if self.dtype.is_floating_point or self.dtype.is_complex:
            if self.ranks == 2:
                return torch.randn(size, dtype=torch.float64, generator=random).to(self.dtype)
            # Sums and products of these are exact in any order.
            return torch.randint(-2, 3, (size,), generator=random).to(self.dtype)
        if self.dtype == torch.bool:
            return torch.randint(2, (size,), generator=random).bool()
        bits = 8 * self.dtype.itemsize - 2
        return torch.randint(1 << bits, (size,), generator=random).to(self.dtype)

    def own(self, size=None):
        return self.of(self.rank, size)

    def empty(self, size=None):
        return torch.full((self.size if size is None else size,), 1).to(self.dtype)

    def parts(self):
        return [self.empty() for _ in range(self.ranks)]


class Bytes(Data):
    def of(self, rank, size=None):
        return super().of(rank, size).view(torch.uint8)

    def empty(self, size=None):
        return super().empty(size).view(torch.uint8)


class Carried(Data):
    """The same values as elements of a type that Gloo can reduce."""
    TYPES = {torch.bool: torch.uint8, torch.int16: torch.int64, torch.uint16: torch.int64,
             torch.uint32: torch.int64, torch.uint64: torch.int64}

    def of(self, rank, size=None):
        values = super().of(rank, size)
        return values.to(self.TYPES.get(self.dtype, self.dtype))

    def empty(self, size=None):
        return super().empty(size).to(self.TYPES.get(self.dtype, self.dtype))


class Signed(Data):
    """Values of both signs, where the type has both."""

    def of(self, rank, size=None):
        values = super().of(rank, size)
        return values - (1 << (8 * self.dtype.itemsize - 3)) if self.dtype.is_signed else values


class Strided(Data):
    """The same values in every third element of larger tensors."""

    def of(self, rank, size=None):
        return spread(super().of(rank, size))

    def empty(self, size=None):
        return spread(super().empty(size))


def spread(tensor):
    wide = torch.zeros(tensor.numel(), 3, dtype=tensor.dtype)
    wide[:, 1] = tensor
    return wide[:, 1]


# --- Moves --------------------------------------------------------------------------------------

def broadcast(data):
    tensor = data.own()
    dist.broadcast(tensor, data.members[-1], group=data.group)
    return [tensor]


def all_gather(data):
    parts = data.parts()
    dist.all_gather(parts, data.own(), group=data.group)
    return parts


def gather(data):
    root = data.members[-1]
    parts = data.parts() if dist.get_rank() == root else None
    dist.gather(data.own(), parts, dst=root, group=data.group)
    return parts or []


def scatter(data):
    root, part = data.members[-1], data.empty()
    parts = [data.of(rank) for rank in range(data.ranks)] if dist.get_rank() == root else None
    dist.scatter(part, parts, src=root, group=data.group)
    return [part]


def send_recv(data):
    """A ring of blocking messages: even ranks send first."""
    left, right = neighbours(data)
    received = data.empty()
    acts = [lambda: dist.send(data.own(), right, group=data.group, tag=3),
            lambda: dist.recv(received, left, group=data.group, tag=3)]
    for act in acts if data.rank % 2 == 0 else reversed(acts):
        act()
    return [received]


def isend_irecv(data):
    """Messages of two tags that are received in reverse order."""
    left, right = neighbours(data)
    first, second = data.empty(), data.empty()
    works = [dist.isend(data.own(), right, group=data.group, tag=1),
             dist.isend(data.of(0), right, group=data.group, tag=2),
             dist.irecv(second, left, group=data.group, tag=2),
             dist.irecv(first, left, group=data.group, tag=1)]
    for work in works:
        work.wait()
    return [first, second]


def batch_isend_irecv(data):
    left, right = neighbours(data)
    received = data.empty()
    messages = [dist.P2POp(dist.isend, data.own(), right, group=data.group),
                dist.P2POp(dist.irecv, received, left, group=data.group)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return [received]


def recv_any_source(data):
    """The first rank receives from all others in the order of arrival."""
    received = {}
    if data.rank > 0:
        dist.send(data.own(), data.members[0], group=data.group)
    else:
        for _ in range(1, data.ranks):
            tensor = data.empty()
            received[dist.recv(tensor, group=data.group)] = tensor
    dist.barrier(data.group)  # Otherwise a fast rank's next message could match this receive.
    return [received[rank] for rank in sorted(received)]


def neighbours(data):
    return (data.members[(data.rank + shift) % data.ranks] for shift in (-1, 1))


def rows(data, flat):
    return flat.view(data.ranks, flat.numel() // data.ranks)


def all_gather_into_tensor(data):
    flat = data.empty(data.ranks * data.size)
    dist.all_gather_into_tensor(flat, data.own(), group=data.group)
    return [flat]


def all_gather_in_place(data):
    """The input is this rank's part of the output, as in FSDP."""
    flat = data.empty(data.ranks * data.size)
    own = rows(data, flat)[data.rank]
    own.copy_(data.own())
    dist.all_gather_into_tensor(flat, own, group=data.group)
    return [flat]


def all_gather_coalesced(data):
    lists = [[data.empty(), data.empty()] for _ in range(data.ranks)]
    dist.all_gather_coalesced(lists, [data.own(), data.of(0)], group=data.group)
    return sum(lists, [])


def all_to_all_single(data):
    received = data.empty(data.ranks * data.size)
    dist.all_to_all_single(received, data.own(data.ranks * data.size), group=data.group)
    return [received]


def all_to_all(data):
    parts = data.parts()
    sent = [data.of(data.ranks * data.rank + peer) for peer in range(data.ranks)]
    dist.all_to_all(parts, sent, group=data.group)
    return parts


def functional_all_gather(data):
    return [functional.all_gather_tensor(data.own(), 0, data.group).clone()]


def functional_all_to_all(data):
    sent = data.own(data.ranks * data.size)
    return [functional.all_to_all_single(sent, None, None, data.group).clone()]


def functional_broadcast(data):
    return [functional.broadcast(data.own(), 0, data.group).clone()]


CONTIGUOUS_MOVES = [all_gather_into_tensor, all_gather_in_place, all_gather_coalesced,
                    all_to_all_single, all_to_all, functional_all_gather,
                    functional_all_to_all, functional_broadcast]
STRIDED_MOVES = [broadcast, all_gather, gather, scatter, send_recv, isend_irecv, batch_isend_irecv,
                 recv_any_source]
MOVES = STRIDED_MOVES + CONTIGUOUS_MOVES


# --- Reductions ---------------------------------------------------------------------------------

def all_reduce(data, op):
    tensor = data.own()
    dist.all_reduce(tensor, op, group=data.group)
    return [tensor]


def reduce(data, op):
    root, tensor = data.members[-1], data.own()
    dist.reduce(tensor, root, op, group=data.group)
    return [tensor] if dist.get_rank() == root else []


def reduce_scatter(data, op):
    part = data.empty()
    parts = [data.of(data.ranks * data.rank + peer) for peer in range(data.ranks)]
    dist.reduce_scatter(part, parts, op, group=data.group)
    return [part]


def reduce_scatter_tensor(data, op):
    part = data.empty()
    dist.reduce_scatter_tensor(part, data.own(data.ranks * data.size), op, group=data.group)
    return [part]


def all_reduce_coalesced(data, op):
    tensors = [data.own(), data.of(data.rank + data.ranks)]
    dist.all_reduce_coalesced(tensors, op, group=data.group)
    return tensors


def functional_all_reduce(data, op):
    return [functional.all_reduce(data.own(), op_name(op), data.group).clone()]


def functional_reduce_scatter(data, op):
    whole = data.own(data.ranks * data.size)
    return [functional.reduce_scatter_tensor(whole, op_name(op), 0, data.group).clone()]


def op_name(op):
    return str(op).rpartition(".")[2].lower()


REDUCTIONS = [all_reduce, reduce, reduce_scatter, reduce_scatter_tensor, all_reduce_coalesced,
              functional_all_reduce, functional_reduce_scatter]
STRIDED_REDUCTIONS = [all_reduce, reduce, reduce_scatter]


# --- Operations of torch.distributed.nn: values and gradients -----------------------------------

def differentiate(data, act):
    """Returns the results of act(x) for this rank's x, and the gradient of their weighted sum."""
    x = rows(data, data.own(data.ranks * data.size)).requires_grad_()
    results = act(x)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    sum(((data.rank + 2) * result).sum() for result in results).backward()
    return [result.detach() for result in results] + [x.grad]


def nn_all_reduce(data):
    return differentiate(data, lambda x: with_gradients.all_reduce(x, group=data.group))


def nn_all_gather(data):
    return differentiate(data, lambda x: with_gradients.all_gather(x, group=data.group))


def nn_reduce_scatter(data):
    return differentiate(data, lambda x: with_gradients.reduce_scatter(
        torch.empty_like(x[0]), list(x.unbind()), group=data.group))


def nn_all_to_all(data):
    return differentiate(data, lambda x: with_gradients.all_to_all(
        [torch.empty_like(row) for row in x], list(x.unbind()), group=data.group))


def nn_broadcast(data):
    return differentiate(data, lambda x: with_gradients.broadcast(
        x, data.members[0], group=data.group))


WITH_GRADIENTS = [nn_all_reduce, nn_all_gather, nn_reduce_scatter, nn_all_to_all, nn_broadcast]


# --- Several at once ----------------------------------------------------------------------------

COLLECTIVES = ["broadcast", "all_gather", "gather", "scatter", "all_gather_into_tensor",
               "all_to_all_single", "all_to_all", "all_reduce", "reduce", "reduce_scatter",
               "reduce_scatter_tensor"]


@contextlib.contextmanager
def all_at_once():
    """Within it, collectives return at once. They are awaited at its end, the last one first."""
    works = []

    def beginning(function):
        def begin(*args, **kwargs):
            works.append(function(*args, async_op=True, **kwargs))

        return begin

    begun = {name: beginning(getattr(dist, name)) for name in COLLECTIVES}
    with unittest.mock.patch.multiple(dist, **begun):
        yield
        for work in reversed(works):
            work.wait()
