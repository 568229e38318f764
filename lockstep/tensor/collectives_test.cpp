// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/collectives.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "lockstep/comm/error.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;

at::Tensor mine(int rank, at::ScalarType dtype) {
  return at::arange(12, at::TensorOptions().dtype(dtype)).view({3, 4}).add(rank);
}

at::Tensor sum(int world_size, at::ScalarType dtype) {
  return mine(0, dtype).mul(world_size).add(world_size * (world_size - 1) / 2);
}

const Ranks tensors("tensors", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const int n = group.size();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16}) {
    at::Tensor whole = mine(rank.rank, dtype);
    all_reduce(whole, group);
    EXPECT_TRUE(at::equal(whole, sum(n, dtype)));

    at::Tensor transposed = mine(rank.rank, dtype).t();
    all_reduce(transposed, group);
    EXPECT_TRUE(at::equal(transposed, sum(n, dtype).t()));

    at::Tensor column = mine(rank.rank, dtype);
    broadcast(column.select(1, 2), group, n - 1);
    EXPECT_TRUE(at::equal(column.select(1, 2), mine(n - 1, dtype).select(1, 2)));
    EXPECT_TRUE(at::equal(column.select(1, 1), mine(rank.rank, dtype).select(1, 1)));

    const at::Tensor all = all_gather(mine(rank.rank, dtype).t(), group);
    for (int r = 0; r < n; ++r) EXPECT_TRUE(at::equal(all[r], mine(r, dtype).t()));
  }
  at::Tensor flags = at::full({5}, rank.rank == 1, at::kBool);
  broadcast(flags, group, 1);
  EXPECT_TRUE(flags.all().item<bool>());
  destroy_process_group(group);
});

TEST(TensorCollectives, WorkOnContiguousAndOtherTensorsOfEveryType) {
  for (const int ranks : {2, 3}) EXPECT_TRUE(all_succeeded(tensors.run(ranks)));
}

const Ranks asynchronous("asynchronous tensors", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const at::Tensor reduced = mine(rank.rank, at::kFloat);
  const at::Tensor copied = mine(rank.rank, at::kFloat);
  const at::Tensor gathered = at::zeros({group.size(), 3, 4});
  all_reduce_async(mine(rank.rank, at::kFloat), group);  // Nobody else keeps this one.
  const Work first = all_reduce_async(reduced, group);
  const Work second = broadcast_async(copied, group, 1);
  const Work third = all_gather_async(gathered, mine(rank.rank, at::kFloat), group);
  first.wait();
  second.wait();
  third.wait();
  EXPECT_TRUE(at::equal(reduced, sum(group.size(), at::kFloat)));
  EXPECT_TRUE(at::equal(copied, mine(1, at::kFloat)));
  for (int r = 0; r < group.size(); ++r) EXPECT_TRUE(at::equal(gathered[r], mine(r, at::kFloat)));
  EXPECT_EQ(fault_of([&] { all_reduce_async(reduced.t(), group); }), Fault::misuse);
  destroy_process_group(group);
});

TEST(TensorCollectives, AsynchronousOnesKeepTheirTensorsAlive) {
  EXPECT_TRUE(all_succeeded(asynchronous.run(2)));
}

const Ranks registered("registered tensors", [](const Rank& rank) {
  at::Tensor outlives;
  {
    ProcessGroup group = init_process_group();
    outlives = registered_zeros({3, 4}, at::kDouble, group);
    EXPECT_TRUE(at::equal(outlives, at::zeros({3, 4}, at::kDouble)));
    const void* before = outlives.data_ptr();
    outlives.copy_(mine(rank.rank, at::kDouble));
    all_reduce(outlives, group);
    EXPECT_EQ(outlives.data_ptr(), before);
    destroy_process_group(group);
  }
  EXPECT_TRUE(at::equal(outlives, sum(rank.world_size, at::kDouble)));
  outlives.add_(1);
});

TEST(TensorCollectives, RegisteredTensorsOutliveTheirGroup) {
  EXPECT_TRUE(all_succeeded(registered.run(2)));
}

const Ranks other_shapes("other shapes", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const at::Tensor tensor = rank.rank == 0 ? at::ones({3, 2}) : at::ones({2, 3});
  EXPECT_EQ(fault_of([&] { all_gather(tensor, group); }), Fault::mismatch);
});

TEST(TensorCollectives, ShapesOfOneSizeThatDifferAreNotGathered) {
  EXPECT_TRUE(all_succeeded(other_shapes.run(2)));
}

const Ranks refused("refused tensors", [](const Rank&) {
  ProcessGroup group = init_process_group();
  EXPECT_EQ(fault_of([&] { all_reduce(at::Tensor(), group); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { all_reduce(at::ones({2}, at::kInt), group); }), Fault::unsupported);
  EXPECT_EQ(fault_of([&] { all_reduce(at::ones({2}).to_sparse(), group); }), Fault::unsupported);
  at::Tensor shorter = at::ones({2});
  EXPECT_EQ(fault_of([&] { all_gather_async(shorter, shorter, group); }), Fault::misuse);
  destroy_process_group(group);
});

TEST(TensorCollectives, WhatCannotBeDoneIsRefusedBeforeAnythingIsSent) {
  EXPECT_TRUE(all_succeeded(refused.run(2)));
}

}  // namespace
}  // namespace lockstep
