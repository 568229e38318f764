#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operation gives Gloo's bits: for every type, reduction, size and number of ranks, on the
world and on a sub-group, blocking and not. Results that Gloo refuses or computes wrongly equal
those of a computation without any group.

against_gloo_test.py [--ranks N...]
"""

import argparse
import time

import forked_ranks
import operations
from operations import Bytes, Carried, Data, Strided
from plugin_or_skip import lockstep, torch

import torch.distributed as dist  # noqa: E402

# The limits of the staging buffers and of registered blocks lie between these sizes.
SIZES = [0, 1, 3, 1000, 16 * 1024 + 1, 300_001]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16,
            torch.uint32, torch.uint64, torch.bool]
MOVED = [*FLOATS, *INTEGERS, torch.complex64, torch.complex128, torch.float8_e4m3fn]
ARITHMETIC = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
BITWISE = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
REDUCED = [
    *[(dtype, op) for dtype in FLOATS for op in [*ARITHMETIC, dist.ReduceOp.AVG]],
    *[(dtype, op) for dtype in INTEGERS for op in [*ARITHMETIC, *BITWISE]],
    (torch.complex64, dist.ReduceOp.SUM),
    (torch.complex128, dist.ReduceOp.SUM),
]


class Groups:
    """A group of each backend with the same ranks."""

    def __init__(self, ours, members=None):
        self.ours, self.gloo = ours, dist.new_group(members, backend="gloo")

    def ours_and_theirs(self, kind, carrier, size, dtype):
        return kind(self.ours, size, dtype), carrier(self.gloo, size, dtype)


def bits(tensor):
    return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def expect(ours, theirs, *what):
    """Checks that both lists have the same bits, whichever type carried them."""
    assert len(ours) == len(theirs), f"{what}: {len(ours)} and {len(theirs)} tensors"
    for one, other in zip(ours, theirs):
        if other.dtype not in (one.dtype, torch.uint8) or one.dtype == torch.bool:
            other = other.to(one.dtype)
        assert torch.equal(bits(one), bits(other)), f"{what}: {one} is not {other}"


def expect_close(ours, theirs, *what):
    """Checks that all elements agree, except for the last bit."""
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=torch.finfo(one.dtype).eps, atol=0,
                                   msg=lambda text: f"{what}: {text}")


def check_moves(groups):
    for move in operations.MOVES:
        for size, dtype in [*((size, torch.float32) for size in SIZES),
                            *((257, dtype) for dtype in MOVED)]:
            ours, theirs = groups.ours_and_theirs(Data, Bytes, size, dtype)
            # Gloo refuses messages without bytes in some of its collectives.
            expected = move(theirs) if size else []
            found = move(ours)
            expect(found if size else [], expected, move.__name__, size, dtype)
    return len(operations.MOVES) * (len(SIZES) + len(MOVED))


def check_reductions(groups):
    for reduction in operations.REDUCTIONS:
        for size, dtype, op in [
            *((size, torch.float32, dist.ReduceOp.SUM) for size in SIZES),
            *((257, dtype, op) for dtype, op in REDUCED),
        ]:
            ours, theirs = groups.ours_and_theirs(Data, Carried, size, dtype)
            thirds = op == dist.ReduceOp.AVG and ours.ranks == 3
            compare = expect_close if thirds else expect
            expected = reduction(theirs, op) if size else []
            found = reduction(ours, op)
            compare(found if size else [], expected, reduction.__name__, size, dtype, op)
    return len(operations.REDUCTIONS) * (len(SIZES) + len(REDUCED))


def check_strided(groups):
    """Gloo's sums of strided tensors are wrong, so that its tensors are contiguous."""
    for size, dtype in [(1, torch.float32), (1000, torch.float32), (257, torch.int16)]:
        ours, theirs = groups.ours_and_theirs(Strided, Bytes, size, dtype)
        for move in operations.STRIDED_MOVES:
            expect(move(ours), move(theirs), "strided", move.__name__, size, dtype)
        ours, theirs = groups.ours_and_theirs(Strided, Carried, size, dtype)
        for reduction in operations.STRIDED_REDUCTIONS:
            expect(reduction(ours, dist.ReduceOp.SUM), reduction(theirs, dist.ReduceOp.SUM),
                   "strided", reduction.__name__, size, dtype)


def check_asynchronous(groups):
    """All collectives run concurrently; the last one is awaited first."""
    blocking = [operations.broadcast, operations.all_gather, operations.gather, operations.scatter,
                operations.all_gather_into_tensor, operations.all_to_all_single,
                operations.all_to_all]
    reductions = [operations.all_reduce, operations.reduce, operations.reduce_scatter,
                  operations.reduce_scatter_tensor]
    for size in (3, 20_000):
        ours, theirs = groups.ours_and_theirs(Data, Data, size, torch.float32)
        with operations.all_at_once():
            found = [act(ours) for act in blocking]
            found += [act(ours, dist.ReduceOp.SUM) for act in reductions]
        for act, one in zip(blocking, found):
            expect(one, act(theirs), "asynchronous", act.__name__, size)
        for act, one in zip(reductions, found[len(blocking):]):
            expect(one, act(theirs, dist.ReduceOp.SUM), "asynchronous", act.__name__, size)


def check_gradients(groups):
    for size in (1, 1000):
        ours, theirs = groups.ours_and_theirs(Data, Data, size, torch.float32)
        for act in operations.WITH_GRADIENTS:
            expect(act(ours), act(theirs), act.__name__, size)


def check_sparse(groups):
    """Ranks have different numbers of elements, some at the same positions."""
    def sum_in(group):
        rank = dist.get_rank(group)
        places = torch.tensor([[0, rank + 1, 5], [1, 0, 2]])[:, :2 + rank % 2]
        values = torch.arange(1., 1 + places.size(1)) + rank
        tensor = torch.sparse_coo_tensor(places, values, (8, 3), check_invariants=True)
        dist.all_reduce(tensor, group=group)
        return [tensor.coalesce().to_dense()]

    expect(sum_in(groups.ours), sum_in(groups.gloo), "sparse all_reduce")


def check_layouts(groups):
    """Dense tensors with another memory order keep it."""
    def sum_in(group):
        tensor = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(
            dist.get_rank(group))).to(memory_format=torch.channels_last)
        dist.all_reduce(tensor, group=group)
        return tensor

    ours, theirs = sum_in(groups.ours), sum_in(groups.gloo)
    assert ours.stride() == theirs.stride()
    if dist.get_world_size(groups.ours) == 2:
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(ours, theirs)


def check_overlapping(groups):
    """A list with one tensor twice, and with parts of it: no element is reduced twice."""
    def sums_in(group):
        data = Data(group, 300, torch.float32)
        whole = data.own()
        tensors = [whole[200:], whole, whole, data.of(data.rank + data.ranks), whole[:201],
                   whole.view(100, 3)[:, 1], whole[:0]]
        dist.all_reduce_coalesced(tensors, group=group)
        return tensors

    expect(sums_in(groups.ours), sums_in(groups.gloo), "overlapping")


def check_unequal_parts(groups):
    """Lists whose tensors differ in size, and splits without elements for some ranks."""
    data = Data(groups.ours, 5, torch.float32)
    rank, ranks = data.rank, data.ranks
    parts = [data.empty(peer + 1) for peer in range(ranks)]
    dist.all_gather(parts, data.own(rank + 1), group=data.group)
    expect(parts, [data.of(peer, peer + 1) for peer in range(ranks)], "uneven all_gather")

    received = [data.empty(rank + 2 * peer) for peer in range(ranks)]
    dist.all_to_all(received, [data.own(peer + 2 * rank) for peer in range(ranks)],
                    group=data.group)
    expect(received, [data.of(peer, rank + 2 * peer) for peer in range(ranks)],
           "uneven all_to_all")

    part = data.empty(rank + 1)
    dist.reduce_scatter(part, [data.own(peer + 1) for peer in range(ranks)], group=data.group)
    expected = sum(data.of(peer, rank + 1) for peer in range(ranks))
    torch.testing.assert_close(part, expected, msg="uneven reduce_scatter")

    sent = data.own(sum(range(ranks)) + rank)
    splits = list(range(ranks - 1)) + [ranks - 1 + rank]  # The first rank gets nothing.
    received_splits = [peer + ranks - 1 if rank == ranks - 1 else rank for peer in range(ranks)]
    flat = data.empty(sum(received_splits))
    dist.all_to_all_single(flat, sent, received_splits, splits, group=data.group)
    begin = sum(range(rank))
    expect([flat], [torch.cat([data.of(peer, sum(range(ranks)) + peer)[begin:begin + count]
                               for peer, count in enumerate(received_splits)])],
           "all_to_all_single with splits")


def check_stack(groups):
    """Gloo concatenates; an output with one more dimension is a stack."""
    data = Data(groups.ours, 257, torch.float32)
    stack = operations.rows(data, data.empty(data.ranks * data.size))
    dist.all_gather_into_tensor(stack, data.own(), group=data.group)
    expect([stack], [torch.stack([data.of(rank) for rank in range(data.ranks)])], "stack")


def check_scaled_sum(groups):
    """Gloo has no PREMUL_SUM, by which FSDP divides gradients."""
    data = Data(groups.ours, 257, torch.float32)
    tensor = data.own()
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5), group=data.group)
    expected = sum(data.of(rank) * 0.5 for rank in range(data.ranks))
    torch.testing.assert_close(tensor, expected)


def check_integer_averages(groups):
    """As in NCCL: the sum wraps, and the quotient is truncated towards zero. Gloo has no AVG."""
    def truncated(total):
        quotient = abs(total) // groups_ranks
        return -quotient if total < 0 else quotient

    groups_ranks = dist.get_world_size(groups.ours)
    for dtype in INTEGERS[:-1]:
        data = operations.Signed(groups.ours, 257, dtype)
        for reduction in operations.REDUCTIONS:
            sums = reduction(data, dist.ReduceOp.SUM)
            expected = [torch.tensor([truncated(total) for total in one.tolist()], dtype=dtype)
                        for one in sums]
            expect(reduction(data, dist.ReduceOp.AVG), expected, "average", reduction.__name__,
                   dtype)
    rank = dist.get_rank(groups.ours)
    sparse = torch.sparse_coo_tensor([[rank, 5]], [-3, 2**60 + 1], (8,), check_invariants=True)
    dist.all_reduce(sparse, dist.ReduceOp.AVG, group=groups.ours)
    dense = sparse.to_dense().tolist()
    assert dense[:groups_ranks] == [truncated(-3)] * groups_ranks, dense
    assert dense[5] == truncated(groups_ranks * (2**60 + 1)), dense
    expect_error("average is not supported for elements of type Bool", dist.all_reduce,
                 torch.ones(2).bool(), dist.ReduceOp.AVG, group=groups.ours)


def expect_error(text, act, *arguments, **options):
    try:
        act(*arguments, **options)
    except lockstep.Error as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error: {text}")


def check_unequal_lists(groups):
    """gather() and scatter() reject lists of unequal tensors, as with Gloo and NCCL. The group
    stays usable."""
    rank, ranks = dist.get_rank(groups.ours), dist.get_world_size(groups.ours)
    root = dist.get_process_group_ranks(groups.ours)[0]
    unequal = [torch.ones(peer + 1) for peer in range(ranks)]
    if rank == 0:
        what = "the list's tensor for rank 1 has 2 elements, but this rank's tensor has 1"
        expect_error(f"gather: {what}", dist.gather, torch.ones(1), unequal, dst=root,
                     group=groups.ours)
        expect_error(f"scatter: {what}", dist.scatter, torch.ones(1), unequal, src=root,
                     group=groups.ours)
    dist.barrier(groups.ours)


def check_large_scatters(groups):
    """From 1 MiB on, the root copies its own part outside of the collective."""
    for size in ((1 << 18) - 1, 1 << 18):
        for kind in (Data, Strided):
            ours, theirs = groups.ours_and_theirs(kind, Data, size, torch.float32)
            expect(operations.scatter(ours), operations.scatter(theirs), "scatter", size)


def check_objects(groups):
    group = groups.ours
    rank, members = dist.get_rank(group), dist.get_process_group_ranks(group)
    mine, root = {"rank": rank, "text": "x" * 1000 * rank}, members[0]
    everyone = [{"rank": peer, "text": "x" * 1000 * peer} for peer in range(len(members))]
    gathered = [None] * len(members)
    dist.all_gather_object(gathered, mine, group=group)
    assert gathered == everyone
    gathered = [None] * len(members) if rank == 0 else None
    dist.gather_object(mine, gathered, dst=root, group=group)
    assert gathered == (everyone if rank == 0 else None)
    box = [mine]
    dist.broadcast_object_list(box, src=root, group=group)
    assert box == everyone[:1]
    dist.scatter_object_list(box, everyone if rank == 0 else None, src=root, group=group)
    assert box == [mine]
    if rank == 0:
        dist.send_object_list([mine, 5], members[-1], group=group)
    elif rank == len(members) - 1:
        box = [None, None]
        dist.recv_object_list(box, root, group=group)
        assert box == [everyone[0], 5]


CHECKS = [check_strided, check_asynchronous, check_gradients, check_sparse, check_layouts,
          check_overlapping, check_unequal_parts, check_stack, check_scaled_sum,
          check_integer_averages, check_unequal_lists, check_large_scatters, check_objects]


def check_world():
    """Returns the number of cases."""
    groups = Groups(dist.group.WORLD)
    cases = check_moves(groups) + check_reductions(groups)
    for check in CHECKS:
        check(groups)
    return cases + len(CHECKS)


def check_part():
    """The same on a group without the first rank, which is idle in the meantime."""
    members = list(range(1, dist.get_world_size()))
    groups = Groups(dist.new_group(members), members)
    if dist.get_rank() in members:
        check_moves(groups)
        check_reductions(groups)
        # Gloo's gradients need a group with the world's ranks: torch.distributed.nn confuses both.
        for check in CHECKS:
            if check is not check_gradients:
                check(groups)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    for ranks in parser.parse_args().ranks:
        started = time.monotonic()
        cases = forked_ranks.values(ranks, check_world)[0]
        print(f"{ranks} ranks: {cases} cases, {time.monotonic() - started:.1f} s", flush=True)
    forked_ranks.values(3, check_part)
    print("and on a group of two of three ranks")


if __name__ == "__main__":
    main()
