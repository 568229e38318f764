// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/distributed_sampler.h"

#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "lockstep/comm/error.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using test::fault_of;

using Indices = std::vector<std::size_t>;

Indices one_pass(DistributedSampler sampler, std::size_t batch_size = 3) {
  Indices all;
  sampler.reset();
  while (const auto batch = sampler.next(batch_size))
    all.insert(all.end(), batch->begin(), batch->end());
  return all;
}

std::vector<Indices> all_ranks(std::size_t size, int num_replicas, std::int64_t epoch,
                               const DistributedSamplerOptions& options) {
  std::vector<Indices> lists;
  for (int rank = 0; rank < num_replicas; ++rank) {
    DistributedSampler sampler(size, num_replicas, rank, options);
    sampler.set_epoch(epoch);
    lists.push_back(one_pass(sampler));
    EXPECT_EQ(lists.back().size(), sampler.size());
  }
  return lists;
}

// size() indices of every rank together, in ascending order.
Indices union_of(const std::vector<Indices>& lists) {
  Indices all;
  for (const Indices& list : lists) all.insert(all.end(), list.begin(), list.end());
  std::sort(all.begin(), all.end());
  return all;
}

// Printed by torch.utils.data.DistributedSampler of PyTorch 2.13.
struct Golden {
  std::size_t size;
  std::int64_t epoch;
  DistributedSamplerOptions options;
  std::vector<Indices> lists;
};

const std::vector<Golden> golden{
    {10, 0, {}, {{4, 5, 0, 2}, {1, 3, 8, 4}, {7, 9, 6, 1}}},
    {10, 0, {.drop_last = true}, {{4, 5, 0}, {1, 3, 8}, {7, 9, 6}}},
    {10, 1, {}, {{5, 2, 9, 4}, {6, 0, 3, 5}, {1, 8, 7, 6}}},
    {10, 3, {.seed = 42}, {{7, 4, 2}, {6, 9, 1}, {5, 0, 7}, {3, 8, 6}}},
    {1, 0, {}, {{0}, {0}, {0}}},
    {2, 0, {.shuffle = false}, {{0}, {1}, {0}, {1}, {0}}},
    {11, 2, {.seed = 7, .drop_last = true}, {{4, 3}, {9, 7}, {2, 0}, {8, 1}}},
    {10, 0, {.shuffle = false}, {{0, 3, 6, 9}, {1, 4, 7, 0}, {2, 5, 8, 1}}},
};

TEST(DistributedSampler, DealsTheIndicesThatPythonDeals) {
  for (const Golden& expected : golden)
    EXPECT_EQ(all_ranks(expected.size, static_cast<int>(expected.lists.size()), expected.epoch,
                        expected.options),
              expected.lists)
        << "size " << expected.size << ", epoch " << expected.epoch;
}

TEST(DistributedSampler, DealsEachIndexExactlyOnceWithoutPadding) {
  for (const std::size_t size : {0, 1, 2, 6, 7, 8, 100}) {
    Indices expected(size);
    std::iota(expected.begin(), expected.end(), std::size_t{0});
    for (int num_replicas = 1; num_replicas <= 9; ++num_replicas)
      EXPECT_EQ(union_of(all_ranks(size, num_replicas, 5, {.pad = false})), expected);
  }
}

TEST(DistributedSampler, GivesEveryRankEquallyManyWithPadding) {
  for (const std::size_t size : {1, 2, 6, 7, 8, 100})
    for (int num_replicas = 1; num_replicas <= 9; ++num_replicas)
      for (const Indices& list : all_ranks(size, num_replicas, 0, {}))
        EXPECT_EQ(list.size(), (size + num_replicas - 1) / num_replicas);
}

TEST(DistributedSampler, HasNothingToDealFromAnEmptyDataset) {
  EXPECT_EQ(all_ranks(0, 3, 0, {}), std::vector<Indices>(3));
}

TEST(DistributedSampler, EndsWithASmallerBatchAndThenNothing) {
  DistributedSampler sampler(10, 2, 0, {.shuffle = false});
  EXPECT_EQ(sampler.next(3), (Indices{0, 2, 4}));
  EXPECT_EQ(sampler.next(3), (Indices{6, 8}));
  EXPECT_EQ(sampler.next(3), std::nullopt);
  EXPECT_EQ(sampler.next(3), std::nullopt);
}

TEST(DistributedSampler, ChangesTheEpochOfItsCopies) {
  DistributedSampler ours(100, 2, 0);
  const DistributedSampler loaders = ours;
  const Indices epoch_0 = one_pass(loaders);
  EXPECT_EQ(one_pass(loaders), epoch_0);
  ours.set_epoch(1);
  EXPECT_NE(one_pass(loaders), epoch_0);
  EXPECT_EQ(loaders.epoch(), 1);
}

TEST(DistributedSampler, FinishesAPassInTheOrderInWhichItBegan) {
  for (const bool shuffle : {true, false}) {
    const Indices expected = one_pass(DistributedSampler(40, 4, 1, {.shuffle = shuffle}), 10);
    DistributedSampler sampler(40, 4, 1, {.shuffle = shuffle});
    Indices got = *sampler.next(4);
    sampler.set_epoch(9);
    const Indices rest = *sampler.next(6);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, expected);
  }
}

TEST(DistributedSampler, TakesAnInterruptedEpochUpWhereItWasSaved) {
  DistributedSampler sampler(100, 4, 3);
  sampler.set_epoch(6);
  const Indices whole = one_pass(sampler);
  sampler.set_epoch(6);
  sampler.reset();
  sampler.next(8);

  std::stringstream file;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  DistributedSampler resumed(100, 4, 3);
  resumed.load(in);

  EXPECT_EQ(resumed.epoch(), 6);
  EXPECT_EQ(resumed.position(), 8U);
  EXPECT_EQ(one_pass(resumed), Indices(whole.begin() + 8, whole.end()));
  EXPECT_EQ(one_pass(resumed), whole) << "the next pass is whole again";

  DistributedSampler among_fewer(100, 2, 1);
  EXPECT_EQ(fault_of([&] { among_fewer.load(in); }), Fault::misuse);
}

TEST(DistributedSampler, RefusesAnArchiveOfSomethingElse) {
  std::stringstream file;
  torch::serialize::OutputArchive out;
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  DistributedSampler sampler(10, 1, 0);
  EXPECT_EQ(fault_of([&] { sampler.load(in); }), Fault::corrupt);
}

TEST(DistributedSampler, FollowsADatasetThatChangesItsSize) {
  DistributedSampler sampler(10, 2, 1, {.shuffle = false});
  sampler.reset(6);
  EXPECT_EQ(sampler.size(), 3U);
  EXPECT_EQ(sampler.next(10), (Indices{1, 3, 5}));
}

const test::Ranks take_turns("sampler takes turns", [](const test::Rank& rank) {
  ProcessGroup world = init_process_group();
  DistributedSampler sampler(7, world, {.shuffle = false, .pad = false});
  EXPECT_EQ(sampler.next(4), rank.rank == 0 ? (Indices{0, 2, 4, 6}) : (Indices{1, 3, 5}));
  destroy_process_group(world);
});

TEST(DistributedSampler, TakesItsPlaceFromAProcessGroup) {
  EXPECT_TRUE(test::all_succeeded(take_turns.run(2)));
}

TEST(DistributedSampler, RefusesWhatCannotBeMeant) {
  EXPECT_EQ(fault_of([] { DistributedSampler(10, 0, 0); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { DistributedSampler(10, 4, 4); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { DistributedSampler(10, 4, -1); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { DistributedSampler(10, 2, 0, {.drop_last = true, .pad = false}); }),
            Fault::misuse);
  DistributedSampler sampler(10, 2, 0);
  EXPECT_EQ(fault_of([&] { sampler.set_epoch(-1); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { sampler.set_epoch(0, 6); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { sampler.next(0); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep
