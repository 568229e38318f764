# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a Python program are in registered memory, and what forked children see."""

import os
import pathlib
import signal
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

from plugin_or_skip import lockstep, torch

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

RANKS = 2
MIB = 1 << 20


class Rows(Dataset):
    """Workers write into the rows that they return."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index].add_(1)


def model(width=300, layers=3):
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def step(module, optimizer, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    module(torch.randn(4, 300)).square().mean().backward()
    optimizer.step()


def in_child(act):
    """Returns whether `act` is true in a forked child."""
    child = os.fork()
    if child == 0:
        os._exit(0 if act() else 1)
    return os.waitpid(child, 0)[1] == 0


class RegisteredMemory(unittest.TestCase):
    """Runs on each rank, in a group of all."""

    def expect_sum(self, tensor):
        tensor.fill_(dist.get_rank() + 1)
        dist.all_reduce(tensor)
        self.assertTrue(tensor.eq(RANKS * (RANKS + 1) / 2).all())

    def test_empty_is_torch_empty_in_registered_memory(self):
        tensor = lockstep.empty(3, 5, dtype=torch.float64)
        self.assertEqual((tensor.shape, tensor.dtype), ((3, 5), torch.float64))
        self.assertTrue(lockstep.is_registered(tensor))
        self.assertFalse(lockstep.is_registered(torch.empty(3, 5)))
        large = lockstep.empty(8 * MIB + dist.get_rank())  # Ranks may request different sizes.
        self.assertTrue(lockstep.is_registered(large))
        self.expect_sum(large[: 8 * MIB])
        with lockstep.registered_memory():
            self.assertTrue(lockstep.is_registered(torch.zeros(7)))
        pair = dist.new_group(list(range(RANKS)))
        large.fill_(1)
        dist.all_reduce(large[: 8 * MIB], group=pair)
        self.assertEqual(large[5], RANKS)

    def test_a_scope_has_one_place(self):
        scope = lockstep.registered_memory()
        with scope:
            with self.assertRaises(lockstep.Error):
                scope.__enter__()
            with ThreadPoolExecutor(1) as other, self.assertRaises(lockstep.Error):
                other.submit(scope.__exit__).result()
            self.assertTrue(lockstep.is_registered(torch.zeros(7)))
        self.assertFalse(lockstep.is_registered(torch.zeros(7)))
        with scope:
            self.assertTrue(lockstep.is_registered(torch.zeros(7)))

    def test_too_much_is_an_error_of_this_rank_alone(self):
        with self.assertRaises(lockstep.Error) as caught:
            lockstep.empty(1 << 42)
        self.assertEqual(caught.exception.fault, "system")
        self.expect_sum(torch.empty(1000))

    def test_buckets_of_ddp_lie_there_from_the_first_step_on(self):
        for views in (False, True):
            ddp = DistributedDataParallel(model(), bucket_cap_mb=1, gradient_as_bucket_view=views)
            found = []

            def hook(state, bucket):
                found.append(lockstep.is_registered(bucket.buffer()))
                work = dist.all_reduce(bucket.buffer(), async_op=True)
                return work.get_future().then(lambda future: future.value()[0])

            ddp.register_comm_hook(None, hook)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for seed in range(3):
                step(ddp, optimizer, seed)
            self.assertEqual(found, [True] * len(found))
            self.assertGreaterEqual(len(found), 3)
            if views:
                gradient = ddp.module[0].weight.grad
                self.assertTrue(lockstep.is_registered(gradient))
                kept = gradient.clone()
                self.assertTrue(in_child(lambda: bool(gradient.zero_().eq(0).all())))
                self.assertTrue(gradient.equal(kept))

    def test_buffers_of_fully_shard_lie_there_from_the_second_step_on(self):
        found = []
        gather = dist.all_gather_single

        def noting(output, *rest, **options):
            found.append(lockstep.is_registered(output))
            return gather(output, *rest, **options)

        for asked in (False, True):
            found.clear()
            module = model(304 if asked else 300)
            fully_shard(module)
            if asked:
                module.set_allocate_memory_from_process_group_for_comm(True)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            dist.all_gather_single = noting
            try:
                for seed in range(3):
                    torch.manual_seed(seed)
                    module(torch.randn(4, 304 if asked else 300)).sum().backward()
                    optimizer.step()
            finally:
                dist.all_gather_single = gather
            self.assertTrue(all(found[0 if asked else 1 :]), found)
            self.assertGreaterEqual(len(found), 3)

    def test_workers_of_a_loader_write_into_rows_of_their_own(self):
        for rows in (lockstep.empty(16, 50_000), torch.empty(16, 50_000)):
            rows.fill_(1)
            loader = DataLoader(Rows(rows), batch_size=4, num_workers=2)
            for _ in range(2):
                for batch in loader:
                    self.assertTrue(batch.eq(2).all())
            self.assertTrue(rows.eq(1).all())

    def test_a_child_makes_ordinary_tensors(self):
        def makes_ordinary_ones():
            try:
                lockstep.empty(MIB)
            except lockstep.Error as error:
                return error.fault == "misuse" and bool(torch.ones(MIB).eq(1).all())
            return False

        kept = lockstep.empty(MIB).fill_(5)
        self.assertTrue(in_child(makes_ordinary_ones))
        self.assertTrue(kept.eq(5).all())
        self.expect_sum(kept)

    def test_tensors_outlive_their_group(self):
        tensor = lockstep.empty(MIB).fill_(5)
        dist.destroy_process_group()
        with self.assertRaises(lockstep.Error):
            lockstep.empty(1)
        join("again")
        self.assertTrue(tensor.eq(5).all())
        self.expect_sum(tensor)
        self.expect_sum(lockstep.empty(MIB))


def join(name):
    store = dist.FileStore(os.path.join(os.environ["SCRATCH"], name), RANKS)
    dist.init_process_group("lockstep", store=store, rank=int(os.environ["RANK"]), world_size=RANKS)


def run_rank(rank):
    signal.alarm(100)
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    join("first")
    result = unittest.TextTestRunner(verbosity=2 if rank == 0 else 0).run(
        unittest.defaultTestLoader.loadTestsFromTestCase(RegisteredMemory)
    )
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0 if result.wasSuccessful() else 1


def fork_rank(rank):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run_rank(rank)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def main():
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SCRATCH"] = scratch
        ranks = [fork_rank(rank) for rank in range(RANKS)]
        codes = [os.waitpid(rank, 0)[1] for rank in ranks]
    left = [file.name for file in pathlib.Path("/dev/shm").glob("*lockstep*")]
    print(f"wait statuses of the ranks: {codes}; left in /dev/shm: {left}")
    return 0 if not any(codes) and not left else 1


if __name__ == "__main__":
    sys.exit(main())
