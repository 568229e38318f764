// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/distributed_sampler.h"

#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::data::distributed_sampler_test {
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

// The indices of all ranks, sorted.
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

void save_and_load(const DistributedSampler& from, DistributedSampler& to) {
  std::stringstream file;
  torch::serialize::OutputArchive out;
  from.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  to.load(in);
}

// Draws more than needed, as a loader with workers does, and consumes `samples`.
Indices prefetch_and_consume(DistributedSampler& sampler, std::size_t samples) {
  if (samples > 0) sampler.next(samples + 5);
  return sampler.consume(samples);
}

TEST(DistributedSampler, TakesAnInterruptedEpochUpWhereItWasSaved) {
  DistributedSampler sampler(100, 4, 3);
  sampler.set_epoch(6);
  const Indices whole = one_pass(sampler);
  sampler.set_epoch(6);
  sampler.reset();
  EXPECT_EQ(prefetch_and_consume(sampler, 8), Indices(whole.begin(), whole.begin() + 8));

  DistributedSampler resumed(100, 4, 3);
  save_and_load(sampler, resumed);
  EXPECT_EQ(resumed.epoch(), 6);
  EXPECT_EQ(resumed.offset(), 32U);
  EXPECT_EQ(resumed.remaining(), 17U);
  EXPECT_EQ(one_pass(resumed), Indices(whole.begin() + 8, whole.end()));
  EXPECT_EQ(one_pass(resumed), whole) << "the next pass is whole again";

  DistributedSampler among_fewer(100, 2, 1);
  save_and_load(sampler, among_fewer);
  EXPECT_EQ(one_pass(among_fewer).size(), 34U);
  DistributedSampler of_fewer(31, 2, 1);
  EXPECT_EQ(fault_of([&] { save_and_load(sampler, of_fewer); }), Fault::misuse);
}

TEST(DistributedSampler, CountsWhatTheProgramConsumesAndNotWhatIsDrawn) {
  DistributedSampler sampler(20, 2, 1, {.shuffle = false});
  sampler.next(3);
  sampler.next(3);
  EXPECT_EQ(sampler.offset(), 0U);
  EXPECT_EQ(sampler.consume(3), (Indices{1, 3, 5}));
  EXPECT_EQ(sampler.offset(), 6U);
  EXPECT_EQ(sampler.consume(2), (Indices{7, 9}));
  EXPECT_EQ(sampler.offset(), 10U);
  std::string text;
  EXPECT_EQ(fault_of([&] { sampler.consume(2); }, &text), Fault::misuse);
  EXPECT_NE(text.find("consume(2) after 5 of the 6 samples"), std::string::npos) << text;
}

TEST(DistributedSampler, KeepsTheLoadedOffsetWhenTheLoopNamesItsEpoch) {
  DistributedSampler saved(20, 2, 0);
  saved.set_epoch(3);
  saved.reset();
  saved.next(4);
  saved.consume(4);

  DistributedSampler sampler(20, 2, 0);
  sampler.load_state_dict(saved.state_dict());
  EXPECT_EQ(sampler.offset(), 8U);
  sampler.set_epoch(3);
  EXPECT_EQ(sampler.offset(), 8U);
  EXPECT_EQ(one_pass(sampler).size(), 6U);
  sampler.set_epoch(3);
  EXPECT_EQ(sampler.offset(), 0U);

  sampler.load_state_dict(saved.state_dict());
  sampler.set_epoch(4);
  EXPECT_EQ(sampler.offset(), 0U);
  sampler.load_state_dict(saved.state_dict());
  sampler.set_epoch(3, 2);
  EXPECT_EQ(sampler.offset(), 2U);
}

const std::vector<DistributedSamplerOptions> shuffled{{}, {.drop_last = true}, {.pad = false}};
const std::vector<DistributedSamplerOptions> plain{
    {.shuffle = false}, {.shuffle = false, .drop_last = true}, {.shuffle = false, .pad = false}};

TEST(DistributedSampler, IsAtTheEndOfAnEpochThatIsConsumed) {
  for (const DistributedSamplerOptions& options : shuffled)
    for (int rank = 0; rank < 4; ++rank) {
      DistributedSampler sampler(11, 4, rank, options);
      for (std::size_t batch = 0; const auto indices = sampler.next(2); ++batch) {
        sampler.consume(indices->size());
        EXPECT_EQ(sampler.offset(), batch == 0 && !options.drop_last ? 8U : 11U) << rank;
      }
    }
}

TEST(DistributedSampler, LeavesNothingOutWhereARankHasFewerBatches) {
  DistributedSampler sampler(7, 2, 1, {.pad = false});
  sampler.next(3);
  sampler.consume(3);
  EXPECT_EQ(sampler.offset(), 6U) << "rank 0 has one more, in a batch of its own";
}

// A part of an epoch on a given number of ranks.
struct Leg {
  int num_replicas;
  std::size_t each;  // Samples of each rank, in one batch; all samples if there are fewer.
};

// Returns the indices that the legs of one epoch consume. Each leg resumes from the state of the
// previous one.
Indices travel(std::size_t size, const std::vector<Leg>& legs,
               const DistributedSamplerOptions& options) {
  Indices all;
  StateDict state = DistributedSampler(size, 1, 0, options).state_dict();
  for (const Leg& leg : legs) {
    StateDict after;
    for (int rank = 0; rank < leg.num_replicas; ++rank) {
      DistributedSampler sampler(size, leg.num_replicas, rank, options);
      sampler.load_state_dict(state);
      const auto batch = leg.each > 0 ? sampler.next(leg.each) : std::nullopt;
      const Indices consumed = sampler.consume(batch ? batch->size() : 0);
      all.insert(all.end(), consumed.begin(), consumed.end());
      if (rank == 0) after = sampler.state_dict();
      // With pad = false, a rank without samples in an epoch cannot detect that others have some.
      if (batch || options.pad) {
        EXPECT_EQ(sampler.state_dict().values, after.values);
      }
    }
    state = after;
  }
  EXPECT_TRUE(options.shuffle || legs.back().each < size ||
              value_of<std::int64_t>(state, "offset") == static_cast<std::int64_t>(size));
  return all;
}

// Returns "" if `all` is a valid distribution of an epoch of `size` samples.
std::string problem_of(const Indices& all, std::size_t size,
                       const DistributedSamplerOptions& options) {
  std::vector<int> times(size);
  for (const std::size_t index : all) ++times[index];
  const auto wrong = [&](int count) {
    if (options.drop_last) return count > 1;
    return options.pad ? count < 1 : count != 1;
  };
  for (std::size_t index = 0; index < size; ++index)
    if (wrong(times[index]))
      return std::to_string(index) + " is dealt " + std::to_string(times[index]) + " times";
  return {};
}

TEST(DistributedSampler, DealsEachSampleOnceFromEveryStepOnToEveryNumberOfRanks) {
  for (std::size_t size = 1; size <= 200; size += size < 90 ? 1 : 11)
    for (const DistributedSamplerOptions& options : plain)
      for (int before = 1; before <= 8; ++before)
        for (std::size_t step = 0; step <= size / static_cast<std::size_t>(before) + 1; ++step)
          for (int after = 1; after <= 8; ++after) {
            const Indices all = travel(size, {{before, step}, {after, size}}, options);
            ASSERT_EQ(problem_of(all, size, options), "")
                << size << " samples, " << before << " ranks, after " << step << " on " << after;
            const auto left = size - std::min(size, step * static_cast<std::size_t>(before));
            ASSERT_LT(all.size(), size + static_cast<std::size_t>(left > 0 ? after : before));
          }
}

TEST(DistributedSampler, DealsEachSampleOnceOnFourThenTwoThenThreeRanks) {
  for (const std::size_t size : {53, 96, 200})
    for (const DistributedSamplerOptions& options : shuffled)
      for (std::size_t first = 0; first < 14; ++first)
        for (std::size_t second = 0; second < 14; ++second) {
          const Indices all = travel(size, {{4, first}, {2, second}, {3, size}}, options);
          ASSERT_EQ(problem_of(all, size, options), "") << size << ' ' << first << ' ' << second;
        }
}

TEST(DistributedSampler, DealsOnTheSameRanksWhatAnUninterruptedEpochDeals) {
  for (const std::size_t size : {1, 2, 7, 10, 41})
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (const bool drop_last : {false, true})
        for (int rank = 0; rank < ranks; ++rank) {
          DistributedSampler sampler(size, ranks, rank, {.drop_last = drop_last});
          const Indices whole = one_pass(sampler);
          for (std::size_t step = 1; step < whole.size(); ++step) {
            sampler.set_epoch(0);
            sampler.reset();
            prefetch_and_consume(sampler, step);
            sampler.load_state_dict(sampler.state_dict());
            EXPECT_EQ(one_pass(sampler),
                      Indices(whole.begin() + static_cast<std::ptrdiff_t>(step), whole.end()));
          }
        }
}

TEST(DistributedSampler, RefusesTheStateOfAnother) {
  const auto refusal = [](std::size_t size, const DistributedSamplerOptions& options) {
    const StateDict saved = DistributedSampler(10, 2, 0).state_dict();
    DistributedSampler sampler(size, 2, 0, options);
    std::string text;
    EXPECT_EQ(fault_of([&] { state_of(sampler)->wanted(saved); }, &text), Fault::misuse);
    EXPECT_EQ(fault_of([&] { sampler.load_state_dict(saved); }), Fault::misuse);
    return text;
  };
  const auto names = [](const std::string& text, const char* what) {
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  names(refusal(11, {}), "saved with size = 10, loaded with 11");
  names(refusal(10, {.shuffle = false}), "shuffle = true");
  names(refusal(10, {.seed = 1}), "seed = 0, loaded with 1");
  names(refusal(10, {.drop_last = true}), "drop_last = false");
  names(refusal(10, {.pad = false}), "pad = true");
}

TEST(DistributedSampler, RefusesToSaveItsPositionUnlessConsumptionIsReported) {
  DistributedSampler sampler(10, 2, 0);
  const auto part = state_of(sampler);
  EXPECT_NO_THROW(part->state_dict());
  sampler.next(2);
  std::string text;
  EXPECT_EQ(fault_of([&] { part->state_dict(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("call consume() after each batch"), std::string::npos) << text;
  sampler.set_epoch(1);
  EXPECT_EQ(value_of<std::int64_t>(part->state_dict(), "epoch"), 1) << "its start is known";
  sampler.next(2);
  sampler.consume(2);
  EXPECT_NO_THROW(part->state_dict());
}

TEST(DistributedSampler, IsLoadedThroughItsPart) {
  DistributedSampler saved(10, 2, 0);
  saved.set_epoch(5, 4);
  DistributedSampler sampler(10, 5, 3);
  const auto part = state_of(sampler);
  const StateDict state = saved.state_dict();
  EXPECT_TRUE(part->wanted(state).empty());
  part->load_state_dict(state);
  EXPECT_EQ(sampler.epoch(), 5);
  EXPECT_EQ(sampler.offset(), 4U);
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

// The Error of three ranks, of which rank 2 has these settings and the others the usual ones.
std::string refusal_of_rank_2(std::size_t size, const DistributedSamplerOptions& options) {
  std::string text;
  run_in_process(3, [&](ProcessGroup& world) {
    const bool differs = world.rank() == 2;
    std::string told;
    EXPECT_EQ(fault_of(
                  [&] {
                    DistributedSampler(differs ? size : 10, world,
                                       differs ? options : DistributedSamplerOptions{});
                  },
                  &told),
              Fault::mismatch);
    if (world.rank() == 1) text = told;
    EXPECT_NO_THROW(DistributedSampler(10, world)) << "the group goes on";
  });
  return text;
}

TEST(DistributedSampler, RefusesRanksThatDealByOtherRulesAndNamesThem) {
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  expect(refusal_of_rank_2(11, {}), "rank 0 has size = 10, rank 2 has size = 11");
  expect(refusal_of_rank_2(10, {.seed = 7}), "rank 0 has seed = 0, rank 2 has seed = 7");
  expect(refusal_of_rank_2(10, {.shuffle = false}), "rank 2 has shuffle = false");
  expect(refusal_of_rank_2(10, {.drop_last = true}), "rank 2 has drop_last = true");
  expect(refusal_of_rank_2(10, {.pad = false}), "rank 2 has pad = false");
  // The setting is invalid by itself, but is compared first, so that no rank waits for rank 2.
  expect(refusal_of_rank_2(10, {.drop_last = true, .pad = false}), "rank 2 has drop_last = true");
}

TEST(DistributedSampler, NamesTheFirstGroupThatDiffersBetweenRanks) {
  const auto refusal = [](const GroupedOrder& usual, const GroupedOrder& of_rank_1) {
    std::string text;
    run_in_process(2, [&](ProcessGroup& world) {
      std::string told;
      const auto make = [&] {
        DistributedSampler(10, world, {.order = world.rank() == 1 ? of_rank_1 : usual});
      };
      EXPECT_EQ(fault_of(make, &told), Fault::mismatch);
      if (world.rank() == 0) text = told;
    });
    return text;
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  expect(refusal({.group_sizes = {2, 3, 5}}, {.group_sizes = {2, 4, 4}}),
         "group 1 of its order, such as a shard, has 3 samples on rank 0, 4 on rank 1");
  expect(refusal({.group_sizes = {5, 5}}, {.group_sizes = {10}}),
         "rank 0 has groups in its order = 2, rank 1 has groups in its order = 1");
  expect(refusal({.group_sizes = {5, 5}}, {.group_sizes = {5, 5}, .groups_per_block = 3}),
         "rank 1 has groups_per_block = 3");
  expect(
      refusal({.group_sizes = {5, 5}, .fingerprint = 7}, {.group_sizes = {5, 5}, .fingerprint = 8}),
      "with other samples in them");
}

TEST(DistributedSampler, RefusesWhatCannotBeMeant) {
  EXPECT_EQ(fault_of([] { DistributedSampler(10, 0, 0); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { DistributedSampler(10, 4, 4); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { DistributedSampler(10, 4, -1); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { DistributedSampler(10, 2, 0, {.drop_last = true, .pad = false}); }),
            Fault::misuse);
  DistributedSampler sampler(10, 2, 0);
  EXPECT_EQ(fault_of([&] { sampler.set_epoch(-1); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { sampler.set_epoch(0, 11); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { sampler.next(0); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::data::distributed_sampler_test
