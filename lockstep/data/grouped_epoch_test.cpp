// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/grouped_epoch.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "tests/fault_of.h"

namespace lockstep::data::grouped_epoch_test {
namespace {

using test::fault_of;

const GroupedOrder uneven{.group_sizes = {3, 0, 5, 1, 7, 2, 4}, .groups_per_block = 2};

std::size_t group_of(const GroupedOrder& order, std::int64_t sample) {
  std::size_t group = 0;
  for (auto left = static_cast<std::size_t>(sample); left >= order.group_sizes[group]; ++group)
    left -= order.group_sizes[group];
  return group;
}

std::vector<std::int64_t> samples_of(const GroupedEpoch& epoch) {
  const auto* const data = epoch.samples.const_data_ptr<std::int64_t>();
  return {data, data + epoch.samples.numel()};
}

TEST(GroupedOrder, HasEachSampleOnceAndOneBlockAfterTheOther) {
  for (std::int64_t number = 0; number < 20; ++number) {
    const GroupedEpoch epoch = draw_grouped_epoch(uneven, true, 3, number);
    const std::vector<std::int64_t> samples = samples_of(epoch);
    std::vector<std::int64_t> sorted = samples, expected(22);
    std::ranges::sort(sorted);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(sorted, expected);

    std::size_t place = 0;
    for (std::size_t begin = 0; begin < epoch.groups.size(); begin += 2) {
      const std::set<std::size_t> block(
          epoch.groups.begin() + static_cast<std::ptrdiff_t>(begin),
          epoch.groups.begin() +
              static_cast<std::ptrdiff_t>(std::min(begin + 2, epoch.groups.size())));
      std::size_t size = 0;
      for (const std::size_t group : block) size += uneven.group_sizes[group];
      for (const std::size_t end = place + size; place < end; ++place)
        EXPECT_TRUE(block.contains(group_of(uneven, samples[place])));
    }
  }
}

TEST(GroupedOrder, DependsOnSeedAndEpochOnly) {
  const auto order = [](std::uint64_t seed, std::int64_t epoch) {
    return samples_of(draw_grouped_epoch(uneven, true, seed, epoch));
  };
  EXPECT_EQ(order(1, 2), order(1, 2));
  EXPECT_NE(order(1, 2), order(1, 3));
  EXPECT_NE(order(1, 2), order(9, 2));
}

TEST(GroupedOrder, IsTheDatasetsWithoutShuffling) {
  const GroupedEpoch epoch = draw_grouped_epoch(uneven, false, 1, 2);
  EXPECT_FALSE(epoch.samples.defined());
  EXPECT_EQ(epoch.groups, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6}));
}

// Draws batches that have `global` samples on all ranks together.
std::vector<std::multiset<std::size_t>> global_batches(int ranks, std::size_t global,
                                                       const StateDict* resumed = nullptr) {
  std::vector<std::multiset<std::size_t>> batches;
  for (int rank = 0; rank < ranks; ++rank) {
    DistributedSampler sampler(22, ranks, rank, {.seed = 4, .order = uneven});
    if (resumed != nullptr) sampler.load_state_dict(*resumed);
    sampler.reset();
    for (std::size_t number = 0;; ++number) {
      const auto batch = sampler.next(global / static_cast<std::size_t>(ranks));
      if (!batch) break;
      if (batches.size() == number) batches.emplace_back();
      batches[number].insert(batch->begin(), batch->end());
    }
  }
  return batches;
}

TEST(GroupedOrder, GivesEveryNumberOfRanksTheSameGlobalBatches) {
  const auto one = global_batches(1, 4);
  for (const int ranks : {2, 4}) {
    const auto several = global_batches(ranks, 4);
    ASSERT_EQ(several.size(), one.size());
    for (std::size_t i = 0; i + 1 < one.size(); ++i) EXPECT_EQ(several[i], one[i]);
  }
}

TEST(GroupedOrder, GoesOnWhereItWasSavedOnAnotherNumberOfRanks) {
  const auto whole = global_batches(1, 4);
  DistributedSampler saved(22, 2, 0, {.seed = 4, .order = uneven});
  saved.reset();
  saved.next(2);
  saved.next(2);
  saved.next(2);
  saved.consume(2);
  saved.consume(2);
  const StateDict state = saved.state_dict();
  for (const int ranks : {1, 2, 4}) {
    const auto rest = global_batches(ranks, 4, &state);
    ASSERT_EQ(rest.size(), whole.size() - 2);
    for (std::size_t i = 0; i + 1 < rest.size(); ++i) EXPECT_EQ(rest[i], whole[i + 2]);
  }
}

TEST(GroupedOrder, IsAPartOfTheState) {
  const auto load = [](const DistributedSamplerOptions& from, const DistributedSamplerOptions& to) {
    DistributedSampler saved(22, 1, 0, from), loaded(22, 1, 0, to);
    return fault_of([&] {
      loaded.load_state_dict(saved.state_dict());
      throw Error(Fault::bug, "loaded");
    });
  };
  GroupedOrder other = uneven, known = uneven, changed = uneven;
  other.groups_per_block = 3;
  known.fingerprint = 1;
  changed.fingerprint = 2;
  EXPECT_EQ(load({.order = uneven}, {.order = uneven}), Fault::bug);
  EXPECT_EQ(load({}, {}), Fault::bug);
  EXPECT_EQ(load({.order = uneven}, {}), Fault::misuse);
  EXPECT_EQ(load({}, {.order = uneven}), Fault::misuse);
  EXPECT_EQ(load({.order = uneven}, {.order = other}), Fault::misuse);
  EXPECT_EQ(load({.order = known}, {.order = known}), Fault::bug);
  EXPECT_EQ(load({.order = known}, {.order = changed}), Fault::misuse);
}

TEST(GroupedOrder, IsRefusedIfItDoesNotFitTheDataset) {
  DistributedSampler sampler(21, 1, 0, {.order = uneven});
  EXPECT_EQ(fault_of([&] { sampler.reset(); }), Fault::misuse);
  GroupedOrder blockless = uneven;
  blockless.groups_per_block = 0;
  EXPECT_EQ(fault_of([&] { DistributedSampler(22, 1, 0, {.order = blockless}); }), Fault::misuse);
}

TEST(GroupedOrder, ReportsTheGroupsOfEachPass) {
  std::vector<std::vector<std::size_t>> told;
  GroupedOrder order = uneven;
  order.at_pass = [&](const std::vector<std::size_t>& groups) { told.push_back(groups); };
  DistributedSampler sampler(22, 2, 1, {.seed = 3, .order = order});
  sampler.reset();
  sampler.set_epoch(1);
  sampler.reset();
  EXPECT_EQ(told, (std::vector{draw_grouped_epoch(uneven, true, 3, 0).groups,
                               draw_grouped_epoch(uneven, true, 3, 1).groups}));
}

}  // namespace
}  // namespace lockstep::data::grouped_epoch_test
