// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/module_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/tensor_memory.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::tensor::module_state_test {
namespace {

using test::catalogue_of;
using test::fault_of;
using test::SavedState;

struct Net : torch::nn::Module {
  Net() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("in", in);
    register_parameter("tied", in->weight);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(2, 3, 3)};
  torch::nn::BatchNorm2d norm{3};
  torch::nn::Linear in{torch::nn::LinearOptions(4, 5).bias(false)};
};

void fill(const torch::nn::Module& module, double first) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : named_tensors(module)) at::Tensor(tensor).fill_(first++);
}

StateDict saved(torch::nn::Module& module) {
  SavedState state;
  state.add(state_of(module)->state_dict(), 0);
  return state.whole();
}

TEST(ModuleState, ParametersAndBuffersComeBackUnderTheirNames) {
  Net source;
  fill(source, 3);
  const StateDict state = saved(source);
  EXPECT_EQ(state.tensors.size(), 9u);
  EXPECT_FALSE(state.tensors.contains("in.bias"));
  Net target;
  test::load(*state_of(target), state);
  const NamedTensors expected = named_tensors(source);
  const NamedTensors loaded = named_tensors(target);
  ASSERT_EQ(loaded.size(), expected.size());
  for (std::size_t i = 0; i < loaded.size(); ++i)
    EXPECT_TRUE(torch::equal(loaded[i].second, expected[i].second)) << loaded[i].first;
  EXPECT_TRUE(target.conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(target.conv->weight.requires_grad());
}

TEST(ModuleState, BuffersAreRank0s) {
  Net net;
  const StateDict state = state_of(net)->state_dict();
  EXPECT_TRUE(state.tensors.at("norm.running_mean").of_rank_0);
  EXPECT_FALSE(state.tensors.at("norm.weight").of_rank_0);
}

std::string refusal_of(Net& net, const StateDict& state) {
  std::string text;
  EXPECT_EQ(fault_of([&] { state_of(net)->wanted(catalogue_of(state)); }, &text), Fault::misuse);
  return text;
}

TEST(ModuleState, ReportsMismatchesByName) {
  Net net;
  StateDict state = saved(net);
  state.tensors.erase("norm.bias");
  state.tensors["in.weight"] = whole(torch::zeros({5, 3}));
  state.tensors["conv.bias"] = whole(torch::zeros({3}, at::kDouble));
  state.tensors["head.weight"] = whole(torch::zeros({3}));
  const std::string text = refusal_of(net, state);
  for (const std::string expected :
       {"norm.bias was not saved", "in.weight is Float [5, 4] here and was saved as Float [5, 3]",
        "conv.bias is Float [3] here and was saved as Double [3]",
        "head.weight was saved and is not in the module"})
    EXPECT_NE(text.find(expected), std::string::npos) << text;
}

TEST(ModuleState, AtMostFiveMismatchesAreReported) {
  Net net;
  const std::string text = refusal_of(net, {});
  EXPECT_NE(text.find("; and 4 more"), std::string::npos) << text;
}

TEST(ModuleState, RefusesParametersThatAllRanksShare) {
  run_in_process(2, [](ProcessGroup& world) {
    Net net;
    const StateDict state = saved(net);
    const RegisteredMemory block = shared_block(world.allocate_shared(4096));
    net.in->weight.set_data(torch::from_blob(block.data(), {5, 4}));
    const std::string text = refusal_of(net, state);
    EXPECT_NE(text.find("add the DistributedDataParallel"), std::string::npos) << text;
    world.barrier();
  });
}

// Without digests, neither the catalogue nor the request shows whether the values are equal.
TEST(ModuleState, UnequalValuesOfOneTensorAreRefusedWithoutDigestsToo) {
  Net net;
  StateDict state = saved(net);
  EXPECT_NO_THROW(test::load(*state_of(net), state));
  state.tensors["tied"].data = state.tensors["in.weight"].data + 1;
  std::string text;
  EXPECT_EQ(fault_of([&] { test::load(*state_of(net), state); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("tied and in.weight are one tensor in the module"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { state_of(net)->wanted(state); }), Fault::mismatch);

  const at::Tensor nan = torch::full({5, 4}, NAN);
  state.tensors["in.weight"] = whole(nan);
  state.tensors["tied"] = whole(nan.clone());
  EXPECT_NO_THROW(test::load(*state_of(net), state)) << "equal bytes are equal";
}

std::vector<double> drawn() {
  const at::Tensor numbers = at::randn({5}, at::kDouble);
  return {numbers.data_ptr<double>(), numbers.data_ptr<double>() + 5};
}

// Like a checkpoint, passes a copy of the requested part.
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
  RandomGenerators generators(ProcessGroup::self());
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
  const StateDict saved = RandomGenerators(ProcessGroup::self()).state_dict();
  const at::Tensor before = saved.tensors.at("rank.0").data.clone();
  drawn();
  EXPECT_TRUE(saved.tensors.at("rank.0").data.equal(before));
}

// One rank after the other. Returns the numbers that each draws.
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
        RandomGenerators(ProcessGroup::self()).state_dict().tensors.at("rank.0");
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
  const StateDict saved = RandomGenerators(ProcessGroup::self()).state_dict();
  run_in_process(3, [&](const ProcessGroup& group) {
    if (group.rank() != 2) return;
    RandomGenerators generators(group);
    load(generators, saved);
    EXPECT_EQ(at::detail::getDefaultCPUGenerator().current_seed(), 10494444551200670572U);
  });
}

TEST(RandomGenerators, RefuseWhatIsNoStateOfAGenerator) {
  RandomGenerators generators(ProcessGroup::self());
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
}  // namespace lockstep::tensor::module_state_test
