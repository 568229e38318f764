// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/cpu/Utils.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <future>
#include <stdexcept>
#include <string>
#include <tuple>

#include "lockstep/base/number_formats.h"
#include "lockstep/optim/mixed_precision.h"
#include "tests/fault_of.h"

namespace lockstep::optim::autocast_test {
namespace {

using test::fault_of;

// Whether autocasting is on, its type, and whether weights are cast once.
using State = std::tuple<bool, at::ScalarType, bool>;

State state() {
  return {at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
          at::autocast::is_autocast_cache_enabled()};
}

const State off{false, at::kBFloat16, true};

// The type in which a product is computed.
at::ScalarType type_of_product() {
  return torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type();
}

TEST(Autocast, ComputesProductsInItsTypeAndSumsInFloat32) {
  EXPECT_EQ(type_of_product(), at::kFloat);
  const Autocast amp(at::kCPU, at::kBFloat16);
  EXPECT_EQ(type_of_product(), at::kBFloat16);
  EXPECT_EQ((torch::ones({2}) + torch::ones({2})).scalar_type(), at::kFloat);
}

TEST(Autocast, GradientsHaveTheTypeOfTheirWeights) {
  torch::nn::Linear linear(8, 4);
  torch::Tensor output;
  {
    const Autocast amp(at::kCPU);
    output = linear->forward(torch::ones({3, 8}));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  }
  output.sum().backward();
  EXPECT_EQ(linear->weight.grad().scalar_type(), at::kFloat);
}

TEST(Autocast, RestoresWhatWasBeforeAtEveryLevel) {
  ASSERT_EQ(state(), off);
  {
    const Autocast outer(at::kCPU, at::kBFloat16, true, false);
    const State of_outer{true, at::kBFloat16, false};
    EXPECT_EQ(state(), of_outer);
    {
      const Autocast inner(at::kCPU, at::kHalf, /*enabled=*/false, true);
      EXPECT_EQ(state(), (State{false, at::kHalf, true}));
      EXPECT_EQ(type_of_product(), at::kFloat);
      {
        const Autocast innermost(at::kCPU, at::kBFloat16);
        EXPECT_EQ(state(), (State{true, at::kBFloat16, true}));
      }
      EXPECT_EQ(state(), (State{false, at::kHalf, true}));
    }
    EXPECT_EQ(state(), of_outer);
    EXPECT_EQ(type_of_product(), at::kBFloat16);
  }
  EXPECT_EQ(state(), off);
}

TEST(Autocast, AnExceptionEndsItLikeAReturn) {
  try {
    const Autocast amp(at::kCPU);
    throw std::runtime_error("a loss was NaN");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(state(), off);
  }
  EXPECT_EQ(state(), off);
  EXPECT_EQ(at::autocast::increment_nesting(), 1) << "a level was left";
  at::autocast::decrement_nesting();
}

// A weight that changes between two uses under one object keeps its first value, because its cast
// is cached.
TEST(Autocast, CastsOfWeightsAreKeptUntilTheOutermostEnds) {
  const torch::Tensor weight = torch::ones({2, 2}).requires_grad_(), x = torch::ones({2, 2});
  const auto product = [&] { return x.mm(weight)[0][0].item<float>(); };
  const auto set_weight = [&](float value) {
    const torch::NoGradGuard no_grad;
    weight.fill_(value);
  };
  {
    const Autocast outer(at::kCPU);
    {
      const Autocast inner(at::kCPU);
      EXPECT_EQ(product(), 2);
    }
    set_weight(3);
    EXPECT_EQ(product(), 2) << "the inner one's end has dropped the cast";
    const Autocast uncached(at::kCPU, {}, true, /*cache_enabled=*/false);
    EXPECT_EQ(product(), 6);
  }
  const Autocast next(at::kCPU);
  EXPECT_EQ(product(), 6) << "a cast has outlived its Autocast";
}

TEST(Autocast, BelongsToItsThread) {
  const Autocast amp(at::kCPU);
  EXPECT_EQ(std::async(std::launch::async, type_of_product).get(), at::kFloat);
  EXPECT_EQ(type_of_product(), at::kBFloat16);
}

std::string refusal(c10::DeviceType device, std::optional<at::ScalarType> dtype) {
  std::string text;
  EXPECT_EQ(fault_of([&] { const Autocast amp(device, dtype); }, &text), Fault::unsupported);
  EXPECT_EQ(state(), off);
  EXPECT_EQ(at::autocast::increment_nesting(), 1);
  at::autocast::decrement_nesting();
  return text;
}

TEST(Autocast, RefusesOtherTypesAndDevicesAndChangesNothing) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kInt})
    EXPECT_NE(refusal(at::kCPU, type).find(c10::toString(type)), std::string::npos);
  EXPECT_NE(refusal(at::kMeta, at::kBFloat16).find("meta"), std::string::npos);
  EXPECT_NE(refusal(at::kCUDA, at::kBFloat16).find("no CUDA device"), std::string::npos);
  const Autocast unchecked(at::kCUDA, at::kFloat, /*enabled=*/false);
}

// On CPUs, compare LibTorch with /proc/cpuinfo.
TEST(Autocast, Float16NeedsACpuThatHasIt) {
  const NumberFormats formats = number_formats();
  const auto capabilities = at::cpu::get_cpu_capabilities();
  for (const auto* const format : {&formats.bf16, &formats.fp16}) {
    for (const std::string& name : format->found) EXPECT_TRUE(capabilities.at(name).toBool());
    for (const std::string& name : format->missing) EXPECT_FALSE(capabilities.at(name).toBool());
  }
  if (formats.fp16.is_native()) {
    {
      const Autocast amp(at::kCPU, at::kHalf);
      EXPECT_EQ(type_of_product(), at::kHalf);
    }
    at::globalContext().setUserEnabledMkldnn(false);
    EXPECT_NE(refusal(at::kCPU, at::kHalf).find("does not use oneDNN"), std::string::npos);
    at::globalContext().setUserEnabledMkldnn(true);
    return;
  }
  const std::string text = refusal(at::kCPU, at::kHalf);
  EXPECT_NE(text.find("8 to 16 times slower"), std::string::npos) << text;
  EXPECT_NE(text.find("no avx512_fp16 and no amx_fp16"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::optim::autocast_test
