#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Groups, works and futures behave as those of torch's own backends.

They include sub-groups that their members create alone, and worlds one after the other and beside
each other. Others are split_group() and merge_remote_group(), barriers that wait, deadlines,
sequence numbers, callbacks, coalesced calls, names, DETAIL debugging. Other backends may be in the
same process and in the same group."""

import os
import tempfile
import threading
import time
from datetime import timedelta

import forked_ranks
from plugin_or_skip import lockstep, torch

import torch.distributed as dist  # noqa: E402
from lockstep._survival import Objects  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402


CPU = torch.device("cpu")


def sum_in(group=None, value=1.0):
    tensor = torch.full((5,), value)
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


# --- Groups -------------------------------------------------------------------------------------

def check_members_make_groups_alone():
    """Ranks create different groups at the same time; the other ranks do not take part."""
    rank = dist.get_rank()
    if rank < 2:
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        assert sum_in(pair) == 2
    else:
        alone = dist.new_group([2], use_local_synchronization=True)
        assert sum_in(alone) == 1


def check_many_groups():
    """Groups of the same ranks do not disturb each other, in any order of calls."""
    groups = [dist.new_group() for _ in range(8)]
    rank = dist.get_rank()
    ordered = groups if rank == 0 else list(reversed(groups))
    works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for group in ordered]
    for work in works:
        work.wait()
    for group in groups:
        dist.destroy_process_group(group)
    assert sum_in() == dist.get_world_size()


def check_split():
    """The method, since torch.distributed.split_group() asks for an accelerator."""
    members = [0, 1] if dist.get_rank() < 2 else [2]
    part = dist.group.WORLD.split_group(members, group_name="part")
    tensor = torch.ones(5)
    part.allreduce([tensor]).wait()
    assert part.size() == len(members) and tensor[0] == len(members)


def check_splits_of_the_same_ranks():
    """torch.distributed gives both the same name. They are two groups, and one may end before
    the other."""
    members = [0, 1] if dist.get_rank() < 2 else [2]
    first, second = (dist.group.WORLD.split_group(members) for _ in range(2))
    first.shutdown()
    tensor = torch.ones(5)
    second.allreduce([tensor]).wait()
    assert tensor[0] == len(members)


def check_merges_under_one_name():
    """Rank 0 joins rank 1 in one store, then rank 2 in another one."""
    rank = dist.get_rank()
    for partner in (1, 2):
        if rank not in (0, partner):
            continue
        store = dist.PrefixStore(f"pair {partner}", dist.distributed_c10d._get_default_store())
        pair = dist.group.WORLD.merge_remote_group(store, 2, timedelta(seconds=60))
        tensor = torch.tensor([rank])
        pair.allreduce([tensor]).wait()
        assert tensor[0] == partner


def check_merge():
    """Ranks of one or several groups join in a store, in the order of their arrival."""
    store = dist.PrefixStore("merge", dist.distributed_c10d._get_default_store())
    merged = dist.group.WORLD.merge_remote_group(store, 3, timedelta(seconds=60), "merged")
    tensor = torch.ones(5)
    merged.allreduce([tensor]).wait()
    assert tensor[0] == 3
    try:
        merged.allreduce([torch.ones(5 + merged.rank())]).wait()
        raise AssertionError("shapes differ, and allreduce() returned")
    except lockstep.Error as error:
        assert error.fault == "mismatch" and "of group merged" in str(error), error


def check_options():
    """Groups that get one options object keep their own options, also while one of them is
    split."""
    given = lockstep.Options()
    groups = [dist.new_group(pg_options=given, timeout=timedelta(seconds=seconds))
              for seconds in (50, 60)]
    options = [group._get_backend(CPU).options for group in groups]
    groups[0].split_group([dist.get_rank()], group_name="alone", timeout=timedelta(seconds=7))
    assert [one._timeout for one in options] == [timedelta(seconds=50), timedelta(seconds=60)]
    assert [one.group_name for one in options] == [group.group_name for group in groups]


def check_options_show_what_they_say():
    for options in (lockstep.Options(), lockstep.Options(interface="lo", transport="shm+gloo")):
        copy = eval(repr(options))
        assert (copy.interface, copy.transport) == (options.interface, options.transport)
        assert repr(options) == (f"lockstep.Options(interface={options.interface!r}, "
                                 f"transport={options.transport!r})"), options


def check_mesh():
    mesh = init_device_mesh("cpu", (1, 3), mesh_dim_names=("replica", "tensor"))
    assert sum_in(mesh.get_group("replica")) == 1
    assert sum_in(mesh.get_group("tensor")) == 3


def check_backends_side_by_side():
    gloo = dist.new_group(backend="gloo")
    mixed = dist.new_group(backend="cpu:lockstep")
    assert sum_in(gloo) == sum_in(mixed) == sum_in() == 3


def check_devices_of_one_group(group=None):
    """A group serves the CPU if another backend serves another type of device. PyTorch sends
    barriers and objects, which have no device, to the CPU's backend."""
    cpu = (group or dist.group.WORLD)._get_backend(CPU)
    assert cpu.name() == "lockstep"
    calls = cpu._get_sequence_number_for_group()
    assert sum_in(group) == 3
    dist.barrier(group)
    assert cpu._get_sequence_number_for_group() == calls + 2
    objects = [None] * 3
    dist.all_gather_object(objects, {"rank": dist.get_rank()}, group=group)
    assert [one["rank"] for one in objects] == [0, 1, 2]
    assert cpu._get_sequence_number_for_group() > calls + 2
    dist.monitored_barrier(group, timedelta(seconds=60))


def check_mixed_groups():
    for backend in ("cpu:lockstep,cuda:gloo", "cuda:gloo,cpu:lockstep",
                    "cpu:lockstep,xpu:lockstep"):
        group = dist.new_group(backend=backend)
        check_devices_of_one_group(group)
        part = group.split_group([0, 1, 2], group_name=f"part of {backend}")
        tensor = torch.ones(5)
        part.allreduce([tensor]).wait()
        assert tensor[0] == 3 and len(part._device_types) == 2
        cpu = group._get_backend(CPU)
        dist.destroy_process_group(group)
        try:
            cpu.barrier()
            raise AssertionError("a call of a destroyed group returned")
        except lockstep.Error as error:
            assert error.fault == "aborted", error


def check_name():
    assert dist.get_backend() == "lockstep"
    assert dist.group.WORLD._get_backend(CPU).name() == "lockstep"


def check_sequence_numbers():
    backend = dist.group.WORLD._get_backend(CPU)
    before = backend._get_sequence_number_for_group()
    for _ in range(3):
        sum_in()
    assert backend._get_sequence_number_for_group() == before + 3


# --- Works and futures --------------------------------------------------------------------------

def check_works():
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() and work.is_completed()
    assert tensor[0] == 3
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.wait()[0] is tensor or torch.equal(future.wait()[0], tensor)


def check_callbacks():
    """A callback runs once, and may start a collective of another group."""
    other = dist.new_group()
    calls, done = [], threading.Event()

    def begin_another(future):
        calls.append(future.value()[0][0].item())
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=other, async_op=True).get_future().then(
            lambda _: (calls.append(tensor[0].item()), done.set()))

    dist.all_reduce(torch.ones(10), async_op=True).get_future().then(begin_another)
    assert done.wait(60)
    assert calls == [3, 3], calls


def check_hooks_of_training():
    """Python's hook starts collectives in backward() while callbacks of earlier ones run."""
    layers = [torch.nn.Linear(64, 64) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers),
                                                      bucket_cap_mb=0.02)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in range(30):
        model(torch.ones(2, 64)).sum().backward()


def check_errors_inside_backward():
    group = dist.new_group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=group)
    loss = model(torch.ones(2, 4)).sum()
    group.shutdown()
    try:
        loss.backward()
        raise AssertionError("the group has been left, and backward() returned")
    except lockstep.Error as error:
        assert error.fault == "aborted", error


def check_futures_of_dropped_tensors():
    """Only the call holds the tensor when it ends."""
    for size in range(100):
        dist.all_reduce(torch.ones(size + 1), async_op=True).get_future().then(lambda _: None)


def check_callbacks_that_wait_for_messages():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    done = threading.Event()

    def answer(_):
        reply = dist.isend(torch.full((3,), float(rank)), after, tag=8)
        heard = torch.zeros(3)
        dist.recv(heard, before, tag=8)
        reply.wait()
        assert heard[0] == before
        done.set()

    sent = dist.isend(torch.ones(3), after, tag=7)
    received = dist.irecv(torch.zeros(3), before, tag=7)
    received.get_future().then(answer)
    while not received.is_completed():
        time.sleep(0)
    assert done.wait(60)
    sent.wait()


def check_barrier_waits_for_works():
    tensors = [torch.ones(100_000) for _ in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()
    assert all(tensor[-1] == 3 for tensor in tensors)
    assert all(work.is_completed() for work in works)


def check_order_of_mixed_calls():
    """A blocking call waits for operations that were started before it."""
    tensor = torch.ones(50_000)
    dist.all_reduce(tensor, async_op=True)
    dist.all_reduce(tensor)
    assert tensor[0] == 9


def check_messages_overtake_nothing():
    rank = dist.get_rank()
    if rank == 0:
        works = [dist.isend(torch.full((10,), float(number)), 1) for number in range(20)]
        for work in works:
            work.wait()
    elif rank == 1:
        tensor = torch.zeros(10)
        for number in range(20):
            dist.recv(tensor, 0)
            assert tensor[0] == number


def check_coalescing():
    tensors = [torch.full((size,), 1.0) for size in (1, 10, 1000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(tensor[-1] == 3 for tensor in tensors)


def check_coalescing_of_each_thread():
    """Coalescing excludes calls of another thread and calls before an exception."""
    group = dist.group.WORLD
    group._start_coalescing(CPU)
    group._start_coalescing(CPU)
    tensor = torch.ones(10)
    work = dist.all_reduce(tensor, async_op=True)

    def coalesce_too():
        group._start_coalescing(CPU)
        assert group._end_coalescing(CPU).get_future().wait() == []

    other = threading.Thread(target=coalesce_too)
    other.start()
    other.join()
    both = group._end_coalescing(CPU)
    assert both.get_future().wait() == [] and both.wait() and both.is_completed()
    assert work.is_completed() and tensor[0] == 3


def check_collectives_beside_coalesced_messages():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group, received = dist.group.WORLD, torch.zeros(3)
    group._start_coalescing(CPU)
    dist.irecv(received, (rank - 1) % ranks, tag=9)
    messages = group._end_coalescing(CPU)
    assert sum_in() == ranks
    dist.send(torch.full((3,), float(rank)), (rank + 1) % ranks, tag=9)
    messages.wait()
    assert received[0] == (rank - 1) % ranks


def check_a_batch_of_messages_has_a_work_for_each():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, torch.ones(3), (rank + 1) % ranks),
        dist.P2POp(dist.irecv, torch.zeros(3), (rank - 1) % ranks)])
    assert len(works) == 2
    for work in works:
        work.wait()
    assert works[1]._source_rank() == (rank - 1) % ranks


# --- Barriers and deadlines ---------------------------------------------------------------------

def check_roots():
    """A call with an invalid root fails at once, even if its work is never awaited."""
    tensor = torch.ones(5)
    calls = [lambda root: dist.broadcast(tensor, root, async_op=True),
             lambda root: dist.reduce(tensor, root, async_op=True),
             lambda root: dist.gather(tensor, dst=root, async_op=True),
             lambda root: dist.scatter(tensor, src=root, async_op=True)]
    for root in (-1, 3, 1 << 32):
        for call in calls:
            try:
                call(root)
                raise AssertionError(f"a call whose root is {root} returned")
            except lockstep.Error as error:
                assert error.fault == "misuse" and f"no rank {root}" in str(error), error
    assert sum_in() == 3


def check_monitored_barrier():
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    group = dist.new_group()
    if dist.get_rank() == 0:
        try:
            dist.monitored_barrier(group, timedelta(seconds=0.3), wait_all_ranks=True)
            raise AssertionError("nobody came, and monitored_barrier() returned")
        except RuntimeError as error:
            assert "1" in str(error) and "2" in str(error), error


def check_timeouts():
    """A call that times out names the ranks that did not arrive."""
    group = dist.new_group()
    if dist.get_rank() == 0:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5), group)
        begun = time.monotonic()
        try:
            dist.all_reduce(torch.ones(1), group=group)
            raise AssertionError("nobody came, and all_reduce() returned")
        except lockstep.Error as error:
            assert error.fault == "timeout" and error.ranks == [1, 2], vars(error)
        assert time.monotonic() - begun >= 0.5
    dist.barrier()


CHECKS = [check_members_make_groups_alone, check_many_groups, check_split,
          check_splits_of_the_same_ranks, check_merges_under_one_name, check_mesh,
          check_backends_side_by_side, check_name, check_sequence_numbers, check_works,
          check_callbacks, check_barrier_waits_for_works, check_order_of_mixed_calls,
          check_messages_overtake_nothing, check_coalescing, check_roots, check_monitored_barrier,
          check_timeouts, check_hooks_of_training, check_futures_of_dropped_tensors,
          check_callbacks_that_wait_for_messages, check_errors_inside_backward, check_options,
          check_mixed_groups, check_coalescing_of_each_thread,
          check_collectives_beside_coalesced_messages,
          check_a_batch_of_messages_has_a_work_for_each, check_merge]


def check_all():
    for check in CHECKS:
        try:
            check()
        except Exception as error:
            raise AssertionError(check.__name__) from error
        dist.barrier()
    return len(CHECKS)


def check_wrapped():
    """With DETAIL debugging, every group is wrapped, and all ranks must call in one order."""
    for check in (check_members_make_groups_alone, check_works, check_mesh,
                  check_barrier_waits_for_works):
        check()
        dist.barrier()
    try:
        dist.all_reduce(torch.ones(10 + dist.get_rank()))
        raise AssertionError("shapes differ, and all_reduce() returned")
    except RuntimeError as error:
        assert "mismatch" in str(error) or "shape" in str(error).lower(), error


# --- Worlds -------------------------------------------------------------------------------------

def worlds(rank, folder, ranks):
    """Successive worlds, also while a slower rank is still leaving the last one, through one
    store and through a new one."""
    store = dist.FileStore(f"{folder}/store", ranks)
    for number in range(6):
        if number % 2 == 0:
            dist.init_process_group("lockstep", store=dist.PrefixStore(str(number), store),
                                    rank=rank, world_size=ranks)
        else:
            dist.init_process_group("lockstep", init_method=f"file://{folder}/{number}", rank=rank,
                                    world_size=ranks)
        assert sum_in() == ranks
        if rank == number % ranks:
            time.sleep(0.05)
        dist.destroy_process_group()
    return True


def mixed(rank, folder, ranks):
    """A world of two backends, with options for the other one."""
    options = dist.ProcessGroupGloo._Options()
    dist.init_process_group("cuda:gloo,cpu:lockstep", init_method=f"file://{folder}/mixed",
                            rank=rank, world_size=ranks, pg_options=options)
    check_devices_of_one_group()
    check_devices_of_one_group(dist.new_group())
    assert sum_in(init_device_mesh("cpu", (3,)).get_group()) == ranks
    dist.destroy_process_group()
    return True


def fewer(rank, folder, ranks):
    dist.init_process_group("lockstep", init_method=f"file://{folder}/all", rank=rank,
                            world_size=ranks)
    assert sum_in() == ranks
    dist.destroy_process_group()
    if rank < ranks - 1:
        dist.init_process_group("lockstep", init_method=f"file://{folder}/fewer", rank=rank,
                                world_size=ranks - 1)
        assert sum_in() == ranks - 1
        dist.destroy_process_group()
    return True


class ElasticWorld:
    """A group that broadcasts by a file."""

    def __init__(self, file, rank, size):
        self.store, self.rank, self.size = dist.FileStore(file, size), rank, size

    def broadcast(self, text):
        if self.rank == 0:
            self.store.set("text", text)
        return self.store.get("text").decode()


def after_failed_start(rank, folder, ranks):
    """Rank 0 first waits in vain for the others; then all meet in the next group of a training that
    survives."""
    if rank == 0:
        alone = Objects(dict, "lockstep", timedelta(milliseconds=200), timedelta(seconds=60))
        try:
            alone.make(ElasticWorld(f"{folder}/alone", rank, ranks), restores=False)
            raise AssertionError("a group of one of three ranks")
        except dist.DistError:
            pass
    together = Objects(dict, "lockstep", timedelta(seconds=60), timedelta(seconds=60))
    together.make(ElasticWorld(f"{folder}/all", rank, ranks), restores=False)
    assert sum_in() == ranks
    dist.destroy_process_group()
    return True


def ended(function):
    with tempfile.TemporaryDirectory() as folder:
        with forked_ranks.Ranks(3, function, folder, 3) as ranks:
            for rank, end in enumerate(ranks.ends()):
                assert end.value, f"{function.__name__}, rank {rank}: {end.error or end}"
    print(function.__name__, flush=True)


def main():
    print(forked_ranks.values(3, check_all)[0], "checks on three ranks", flush=True)
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    forked_ranks.values(3, check_wrapped)
    del os.environ["TORCH_DISTRIBUTED_DEBUG"]
    dist.set_debug_level_from_env()
    print("and with TORCH_DISTRIBUTED_DEBUG=DETAIL", flush=True)
    for function in (worlds, mixed, fewer, after_failed_start):
        ended(function)


if __name__ == "__main__":
    main()
