// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/deterministic/microbatch_sums.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::microbatch_sums_test {
namespace {

NamedTensors parameters() {
  return {{"a", torch::empty({5, 3})},
          {"b", torch::empty({7}, torch::kDouble)},
          {"c", torch::empty({2, 3, 4, 4}).contiguous(torch::MemoryFormat::ChannelsLast)},
          {"d", torch::empty({})},
          {"e", torch::empty({33}, torch::kBFloat16)}};
}

// Any other order of addition changes the result.
torch::Tensor gradient(int microbatch, const torch::Tensor& parameter) {
  const auto at = torch::arange(parameter.numel(), torch::kDouble) + 1000 * microbatch;
  return (torch::exp(10 * torch::sin(at * 12.9898)) * torch::cos(at * 78.233))
      .view(parameter.sizes())
      .to(parameter.scalar_type());
}

// The definition of the tree.
torch::Tensor serial(int microbatches, int first, int modulus, const torch::Tensor& parameter) {
  if (modulus == microbatches) return gradient(first, parameter);
  int factor = 2;
  while (microbatches / modulus % factor != 0) ++factor;
  torch::Tensor sum = serial(microbatches, first, modulus * factor, parameter);
  for (int child = 1; child < factor; ++child)
    sum = sum + serial(microbatches, first + child * modulus, modulus * factor, parameter);
  return sum;
}

void sum_up(int microbatches, ProcessGroup& world) {
  const NamedTensors all = parameters();
  const MicrobatchTree tree(microbatches, world.size());
  const MicrobatchSums sums(all, tree, world);
  for (int again = 0; again < 2; ++again) {
    for (const auto& step : tree.steps(world.rank())) {
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(sums.take(step, i, gradient(step.microbatch, all[i].second)));
      sums.merge(step);
    }
    sums.finish(1.0 / microbatches);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const torch::Tensor& parameter = all[i].second;
    const torch::Tensor expected = serial(microbatches, 0, 1, parameter) * (1.0 / microbatches);
    EXPECT_TRUE(torch::equal(sums.result(i), expected))
        << all[i].first << ", " << microbatches << " microbatches on " << world.size() << " ranks";
    EXPECT_EQ(sums.result(i).strides(), parameter.strides());
  }
}

TEST(MicrobatchSums, EqualASerialTreeForEveryNumberOfMicrobatchesAndOfRanksThatDividesIt) {
  for (int microbatches = 1; microbatches <= 16; ++microbatches)
    for (int ranks = 1; ranks <= microbatches && ranks <= 8; ++ranks)
      if (microbatches % ranks == 0)
        run_in_process(ranks, [&](ProcessGroup& world) { sum_up(microbatches, world); });
}

TEST(MicrobatchSums, ARankHasOneNodeAndFewSlotsForPowersOfTwo) {
  for (const int ranks : {1, 2, 4, 8, 16}) EXPECT_EQ(MicrobatchTree(16, ranks).own(), 1) << ranks;
  EXPECT_EQ(MicrobatchTree(16, 1).slots(), 4U);
  EXPECT_EQ(MicrobatchTree(8, 2).slots(), 2U);
  EXPECT_EQ(MicrobatchTree(8, 4).slots(), 1U);
  EXPECT_EQ(MicrobatchTree(6, 3).own(), 2);
}

TEST(MicrobatchSums, AMissingGradientIsZeroAndOneThatIsNotFiniteIsSeen) {
  run_in_process(1, [](ProcessGroup& world) {
    const NamedTensors all{{"a", torch::empty({3})}};
    const MicrobatchTree tree(2, 1);
    const MicrobatchSums sums(all, tree, world);
    const auto steps = tree.steps(0);
    EXPECT_TRUE(sums.take(steps[0], 0, torch::full({3}, -0.0)));
    EXPECT_TRUE(sums.take(steps[1], 0, {}));
    EXPECT_FALSE(torch::signbit(sums.result(0)).any().item<bool>());
    EXPECT_FALSE(sums.take(steps[0], 0, torch::full({3}, INFINITY)));
    EXPECT_FALSE(sums.take(steps[1], 0, torch::full({3}, NAN)));
  });
}

TEST(GlobalMicrobatch, IsTheSameSamplesOnEveryNumberOfRanks) {
  const torch::Tensor batch = torch::arange(24).view({12, 2});
  for (const int ranks : {1, 2, 3, 6})
    for (int index = 0; index < 6; ++index) {
      const int rank = index % ranks;
      const GlobalMicrobatch microbatch{.index = index, .count = 6, .ranks = ranks};
      const torch::Tensor dealt = batch.slice(0, rank, {}, ranks).contiguous();
      EXPECT_TRUE(torch::equal(microbatch.of(dealt), batch.slice(0, index, {}, 6)));
    }
}

TEST(GlobalMicrobatch, RowsThatCannotBeCutAreMisuse) {
  const GlobalMicrobatch microbatch{.index = 1, .count = 4, .ranks = 1};
  std::string text;
  EXPECT_EQ(test::fault_of([&] { microbatch.of(torch::zeros({6, 2})); }, &text), Fault::misuse);
  EXPECT_NE(text.find("drop the last batch"), text.npos) << text;
  EXPECT_EQ(test::fault_of([&] { microbatch.of(torch::zeros({})); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::parallel::microbatch_sums_test
