// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/random_generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"

namespace lockstep::random_generators_test {
namespace {

using test::fault_of;

std::vector<double> drawn() {
  const at::Tensor numbers = at::randn({5}, at::kDouble);
  return {numbers.data_ptr<double>(), numbers.data_ptr<double>() + 5};
}

// Loads like a checkpoint: passes a copy of the wanted part of `saved`.
void load(RandomGenerators& generators, const StateDict& saved) {
  StateDict state{.tensors = {}, .values = saved.values};
  for (const auto& [name, range] : generators.wanted(saved)) {
    EXPECT_EQ(range.begin, 0);
    EXPECT_EQ(range.end, saved.tensors.at(name).data.numel());
    state.tensors[name] = whole(saved.tensors.at(name).data.clone());
  }
  generators.load_state_dict(std::move(state));
}

TEST(RandomGenerators, DrawTheNumbersThatWouldHaveBeenDrawn) {
  torch::manual_seed(7);
  drawn();
  RandomGenerators generators;
  const StateDict saved = generators.state_dict();
  EXPECT_EQ(saved.tensors.size(), 1U);
  EXPECT_TRUE(saved.tensors.contains("rank.0"));
  const auto expected = drawn();
  drawn();
  load(generators, saved);
  EXPECT_EQ(drawn(), expected);
}

TEST(RandomGenerators, KeepTheStateThatTheyHadWhenItWasSaved) {
  torch::manual_seed(7);
  const StateDict saved = RandomGenerators().state_dict();
  const at::Tensor before = saved.tensors.at("rank.0").data.clone();
  drawn();
  EXPECT_TRUE(saved.tensors.at("rank.0").data.equal(before));
}

// Loads `saved` on `world_size` ranks, one after the other in this process, and returns the numbers
// that each draws.
std::vector<std::vector<double>> drawn_by_ranks(int world_size, const StateDict& saved) {
  std::vector<std::vector<double>> numbers(static_cast<std::size_t>(world_size));
  run_in_process(world_size, [&](const ProcessGroup& group) {
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank()) {
        RandomGenerators generators(group);
        load(generators, saved);
        numbers[static_cast<std::size_t>(rank)] = drawn();
      }
      group.barrier();
    }
  });
  return numbers;
}

TEST(RandomGenerators, AreEachRanksOwnAndOfFurtherRanksNew) {
  StateDict saved;
  for (int rank = 0; rank < 2; ++rank) {
    torch::manual_seed(static_cast<std::uint64_t>(rank) + 40);
    saved.tensors["rank." + std::to_string(rank)] =
        RandomGenerators().state_dict().tensors.at("rank.0");
  }
  const auto of_four = drawn_by_ranks(4, saved);
  torch::manual_seed(40);
  EXPECT_EQ(of_four[0], drawn());
  torch::manual_seed(41);
  EXPECT_EQ(of_four[1], drawn());
  EXPECT_NE(of_four[2], of_four[0]);
  EXPECT_NE(of_four[2], of_four[1]);
  EXPECT_NE(of_four[3], of_four[2]);
  EXPECT_EQ(drawn_by_ranks(4, saved), of_four) << "each time the same";
  EXPECT_EQ(drawn_by_ranks(3, saved)[2], of_four[2]) << "on any number of ranks";
}

TEST(RandomGenerators, SeedFurtherRanksByAFrozenRule) {
  torch::manual_seed(40);
  const StateDict saved = RandomGenerators().state_dict();
  run_in_process(3, [&](const ProcessGroup& group) {
    if (group.rank() != 2) return;
    RandomGenerators generators(group);
    load(generators, saved);
    EXPECT_EQ(at::detail::getDefaultCPUGenerator().current_seed(), 10494444551200670572U);
  });
}

TEST(RandomGenerators, RefuseWhatIsNoStateOfAGenerator) {
  RandomGenerators generators;
  const auto refusal = [&](const StateDict& saved) {
    return fault_of([&] { load(generators, saved); });
  };
  EXPECT_EQ(refusal({}), Fault::misuse);
  EXPECT_EQ(refusal({.tensors = {{"rank.1", whole(at::zeros({3}, at::kByte))}}, .values = {}}),
            Fault::misuse);
  EXPECT_EQ(refusal({.tensors = {{"rank.0", whole(at::zeros({3}, at::kByte))}}, .values = {}}),
            Fault::misuse);
  const at::Tensor state = generators.state_dict().tensors.at("rank.0").data;
  EXPECT_EQ(refusal({.tensors = {{"rank.0", whole(state.to(at::kFloat))}}, .values = {}}),
            Fault::misuse);
  std::string text;
  EXPECT_EQ(fault_of(
                [&] {
                  load(generators,
                       {.tensors = {{"rank.0", whole(at::full_like(state, 255))}}, .values = {}});
                },
                &text),
            Fault::misuse);
  EXPECT_NE(text.find("'rank.0'"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::random_generators_test
