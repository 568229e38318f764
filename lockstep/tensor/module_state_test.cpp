// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/module_state.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <string>

#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/shared_blocks.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::module_state_test {
namespace {

using test::catalogue_of;
using test::fault_of;
using test::SavedState;

// Has a missing bias, buffers, one tensor with two names, and one of channels_last.
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
  state.add(module_state(module)->state_dict(), 0);
  return state.whole();
}

TEST(ModuleState, ParametersAndBuffersComeBackUnderTheirNames) {
  Net source;
  fill(source, 3);
  const StateDict state = saved(source);
  EXPECT_EQ(state.tensors.size(), 9u);  // 2 of conv, 5 of norm, in.weight and tied.
  EXPECT_FALSE(state.tensors.contains("in.bias"));
  Net target;
  test::load(*module_state(target), state);
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
  const StateDict state = module_state(net)->state_dict();
  EXPECT_TRUE(state.tensors.at("norm.running_mean").of_rank_0);
  EXPECT_FALSE(state.tensors.at("norm.weight").of_rank_0);
}

std::string refusal_of(Net& net, const StateDict& state) {
  std::string text;
  EXPECT_EQ(fault_of([&] { module_state(net)->wanted(catalogue_of(state)); }, &text),
            Fault::misuse);
  return text;
}

TEST(ModuleState, WhatDoesNotFitIsToldByName) {
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

TEST(ModuleState, AtMostFiveMisfitsAreTold) {
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

}  // namespace
}  // namespace lockstep::module_state_test
