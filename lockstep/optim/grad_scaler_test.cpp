// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/optim/mixed_precision.h"
#include "lockstep/optim/optimizers.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::optim::grad_scaler_test {
namespace {

using test::fault_of;

constexpr float infinity = std::numeric_limits<float>::infinity();

std::string refusal(const std::function<void()>& call) {
  std::string text;
  EXPECT_EQ(fault_of(call, &text), Fault::misuse);
  return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// A weight whose gradient is `factor` times the scale, and its optimizer.
struct Weight {
  at::Tensor tensor = torch::zeros({3}, torch::requires_grad());
  SGD sgd{std::vector{tensor}, 1.0};

  void backward(GradScaler& scaler, float factor = 1) {
    scaler.scale((tensor * factor).sum()).backward();
  }
  float value() const { return tensor[0].item<float>(); }
};

TEST(GradScaler, StepsWithGradientsOfTheLossItself) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 1024});
  Weight weight;
  weight.backward(scaler, 2);
  EXPECT_EQ(weight.tensor.grad()[0].item<float>(), 2048);
  EXPECT_TRUE(scaler.step(weight.sgd));
  EXPECT_EQ(weight.value(), -2);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1024);
}

TEST(GradScaler, TheScaleOfAListIsThatOfItsCallUntilItsLastBackward) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 1024});
  Weight one, other;
  const auto losses = scaler.scale(std::vector{one.tensor.sum(), other.tensor.sum()});
  losses[0].backward();
  scaler.update(8.0);
  EXPECT_NO_THROW(losses[1].backward());
  EXPECT_EQ(other.tensor.grad()[0].item<float>(), 1024);
}

TEST(GradScaler, GradientsThatAreUnscaledAreSteppedOnce) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 1024});
  Weight weight;
  weight.backward(scaler, 2);
  scaler.unscale_(weight.sgd);
  EXPECT_EQ(weight.tensor.grad()[0].item<float>(), 2);
  EXPECT_TRUE(scaler.step(weight.sgd));
  EXPECT_EQ(weight.value(), -2);
}

TEST(GradScaler, AWeightThatIsListedTwiceIsUnscaledOnce) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 1024});
  Weight weight;
  torch::optim::SGD twice(std::vector{weight.tensor, weight.tensor}, 1.0);
  weight.backward(scaler, 2);
  scaler.unscale_(twice);
  EXPECT_EQ(weight.tensor.grad()[0].item<float>(), 2);
}

TEST(GradScaler, AnInfinityOmitsTheStepAndLowersTheScale) {
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    GradScaler scaler(ProcessGroup::self(), {.init_scale = 1024});
    Weight weight;
    weight.backward(scaler);
    weight.tensor.mutable_grad()[2] = bad;
    EXPECT_FALSE(scaler.step(weight.sgd));
    EXPECT_EQ(weight.value(), 0);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 512);
  }
}

TEST(GradScaler, TheScaleGrowsAfterEnoughStepsInARow) {
  GradScaler scaler(ProcessGroup::self(),
                    {.init_scale = 8, .growth_factor = 4, .growth_interval = 3});
  Weight weight;
  std::vector<double> scales;
  for (int step = 0; step < 10; ++step) {
    weight.sgd.zero_grad();
    weight.backward(scaler, step == 4 ? infinity : 1);
    EXPECT_EQ(scaler.step(weight.sgd), step != 4);
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 32, 32, 16, 16, 16, 64, 64, 64}));
}

TEST(GradScaler, TheScaleNeverGrowsToInfinity) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 0x1p127, .growth_interval = 1});
  Weight weight;
  weight.backward(scaler, 0);
  EXPECT_TRUE(scaler.step(weight.sgd));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 0x1p127);
}

// Each optimizer skips its own steps; the scale is common.
TEST(GradScaler, OneOptimizersInfinityIsNotTheOthers) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 8});
  Weight one, other;
  one.backward(scaler);
  other.backward(scaler, infinity);
  EXPECT_TRUE(scaler.step(one.sgd));
  EXPECT_FALSE(scaler.step(other.sgd));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4);
}

TEST(GradScaler, AccumulatesGradientsOfOneScale) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 1024});
  Weight weight;
  for (int part = 0; part < 3; ++part) weight.backward(scaler);
  EXPECT_TRUE(scaler.step(weight.sgd));
  EXPECT_EQ(weight.value(), -3);
}

TEST(GradScaler, ScalesEachOfSeveralOutputs) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 8});
  const auto scaled = scaler.scale({torch::ones({2}), torch::full({}, 2.0, at::kBFloat16)});
  EXPECT_TRUE(scaled[0].eq(8).all().item<bool>());
  EXPECT_EQ(scaled[1].item<float>(), 16);
}

TEST(GradScaler, UnscalesAllTypesAndSparseGradients) {
  const at::Tensor dense = torch::zeros({2}, torch::requires_grad()),
                   other = torch::zeros({2}, at::TensorOptions(at::kBFloat16).requires_grad(true)),
                   precise = torch::zeros({2}, at::TensorOptions(at::kDouble).requires_grad(true)),
                   sparse = torch::zeros({4, 2}, torch::requires_grad());
  torch::optim::SGD sgd(std::vector{dense, other, precise, sparse}, 1.0);
  const auto set = [&](double value) {
    for (const at::Tensor& each : {dense, other, precise})
      each.mutable_grad() = torch::full_like(each, value);
    sparse.mutable_grad() =
        torch::sparse_coo_tensor(torch::tensor({{1, 3}}), torch::full({2, 2}, value), {4, 2});
  };
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 8});
  scaler.scale(torch::ones({}));
  set(16);
  scaler.unscale_(sgd);
  for (const at::Tensor& each : {dense, other, precise})
    EXPECT_TRUE(each.grad().eq(2).all().item<bool>());
  EXPECT_EQ(sparse.grad().to_dense().sum().item<float>(), 8);
  scaler.update();
  set(1);
  sparse.mutable_grad()._values()[1][1] = infinity;
  EXPECT_FALSE(scaler.step(sgd));
}

TEST(GradScaler, RefusesWhatPythonRefuses) {
  EXPECT_TRUE(has(refusal([] { GradScaler(ProcessGroup::self(), {.growth_factor = 1}); }),
                  "growth_factor"));
  EXPECT_TRUE(has(refusal([] { GradScaler(ProcessGroup::self(), {.backoff_factor = 1}); }),
                  "backoff_factor"));
  GradScaler scaler;
  Weight weight;
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { scaler.unscale_(weight.sgd); }, [&] { scaler.step(weight.sgd); },
           [&] { scaler.update(); }, [&] { scaler.update(2.0); }})
    EXPECT_TRUE(has(refusal(call), "scale() was not"));

  scaler.scale(torch::ones({}));
  EXPECT_TRUE(has(refusal([&] { scaler.update(); }), "no optimizer"));
  EXPECT_TRUE(has(refusal([&] { scaler.step(weight.sgd); }), "no gradients"));
  scaler.update(65536.0);

  weight.backward(scaler);
  scaler.unscale_(weight.sgd);
  EXPECT_TRUE(has(refusal([&] { scaler.unscale_(weight.sgd); }), "since the last update()"));
  scaler.step(weight.sgd);
  EXPECT_TRUE(has(refusal([&] { scaler.unscale_(weight.sgd); }), "after step()"));
  EXPECT_TRUE(has(refusal([&] { scaler.step(weight.sgd); }), "since the last update()"));
  EXPECT_EQ(weight.value(), -1) << "a refused call has stepped";
  scaler.update();
  EXPECT_TRUE(has(refusal([&] { scaler.update(); }), "no optimizer"));
}

TEST(GradScaler, RefusesGradientsOfFloat16) {
  const at::Tensor weight = torch::zeros({2}, at::TensorOptions(at::kHalf).requires_grad(true));
  torch::optim::SGD sgd(std::vector{weight}, 1.0);
  GradScaler scaler;
  scaler.scale(torch::ones({}));
  weight.mutable_grad() = torch::ones_like(weight);
  EXPECT_TRUE(has(refusal([&] { scaler.unscale_(sgd); }), "float16"));
}

TEST(GradScaler, NotEnabledItStepsAlways) {
  GradScaler scaler(ProcessGroup::self(), {.growth_factor = 0, .enabled = false});
  EXPECT_FALSE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 1);
  Weight weight;
  weight.backward(scaler, 2);
  scaler.unscale_(weight.sgd);
  EXPECT_TRUE(scaler.step(weight.sgd));
  EXPECT_EQ(weight.value(), -2);
  weight.tensor.mutable_grad()[1] = infinity;
  EXPECT_TRUE(scaler.step(weight.sgd));
  scaler.update();
  EXPECT_TRUE(scaler.state_dict().values.empty());
}

// --- State ---------------------------------------------------------------------------------------

TEST(GradScaler, GoesOnWithASavedState) {
  GradScaler scaler(ProcessGroup::self(),
                    {.init_scale = 8, .growth_factor = 4, .growth_interval = 3});
  Weight weight;
  weight.backward(scaler);
  scaler.step(weight.sgd);
  scaler.update();
  const StateDict saved = scaler.state_dict();
  EXPECT_EQ(saved.values, (StateValues{{"scale", 8.0},
                                       {"growth_factor", 4.0},
                                       {"backoff_factor", 0.5},
                                       {"growth_interval", std::int64_t{3}},
                                       {"_growth_tracker", std::int64_t{1}}}));
  GradScaler other;
  test::load(other, saved);
  EXPECT_EQ(other.state_dict().values, saved.values);
  for (int step = 0; step < 2; ++step) {
    weight.sgd.zero_grad();
    weight.backward(other);
    other.step(weight.sgd);
    other.update();
  }
  EXPECT_EQ(other.get_scale(), 32);
}

TEST(GradScaler, AStateOfOneThatIsNotEnabledFitsOnlySuchAOne) {
  GradScaler enabled, disabled(ProcessGroup::self(), {.enabled = false});
  EXPECT_TRUE(has(refusal([&] { enabled.wanted(disabled.state_dict()); }), "empty"));
  test::load(disabled, enabled.state_dict());
  test::load(disabled, disabled.state_dict());
  EXPECT_EQ(disabled.get_scale(), 1);
}

TEST(GradScaler, RefusesWhatIsNoStateOfOne) {
  GradScaler scaler;
  const StateValues good = scaler.state_dict().values;
  for (const auto& [name, value] : good) {
    StateValues values = good;
    values.erase(name);
    EXPECT_TRUE(has(refusal([&] { scaler.wanted({.tensors = {}, .values = values}); }), name));
  }
  const auto refused = [&](const std::string& name, const StateValue& value) {
    StateValues values = good;
    values[name] = value;
    return refusal([&] { scaler.wanted({.tensors = {}, .values = values}); });
  };
  EXPECT_TRUE(has(refused("_growth_tracker", std::int64_t{-1}), "-1"));
  EXPECT_TRUE(has(refused("growth_factor", 1.0), "growth_factor"));
  EXPECT_TRUE(has(refused("scale", std::int64_t{2}), "scale"));
}

// --- Ranks with other parameters -----------------------------------------------------------------

TEST(GradScaler, RanksOfAGroupOmitTheStepTogether) {
  for (const int ranks : {1, 2, 3})
    run_in_process(ranks, [&](ProcessGroup& world) {
      GradScaler scaler(world, {.init_scale = 8});
      Weight weight;
      for (int bad = -1; bad < ranks; ++bad) {
        weight.sgd.zero_grad();
        weight.backward(scaler, world.rank() == bad ? infinity : 1);
        EXPECT_EQ(scaler.step(weight.sgd), bad == -1);
        EXPECT_EQ(weight.value(), -1);
        scaler.update();
      }
      EXPECT_EQ(scaler.get_scale(), 8 * std::pow(0.5, ranks));
    });
}

TEST(GradScaler, ARankWithoutGradientsFollowsTheOthers) {
  run_in_process(2, [](ProcessGroup& world) {
    GradScaler scaler(world, {.init_scale = 8});
    Weight weight;
    const auto step = [&](float factor) {
      weight.sgd.zero_grad();
      if (world.rank() == 1) weight.backward(scaler, factor);
      scaler.scale(torch::ones({}));
      return scaler.step(weight.sgd);
    };
    EXPECT_TRUE(step(1));
    scaler.update();
    EXPECT_FALSE(step(infinity));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 4);
  });
}

TEST(GradScaler, ARankOfAGroupMaySetTheScaleBeforeItHasSeenALoss) {
  run_in_process(2, [](ProcessGroup& world) {
    GradScaler scaler(world);
    Weight weight;
    if (world.rank() == 1) scaler.scale(torch::ones({}));
    scaler.update(4);
    EXPECT_EQ(scaler.get_scale(), 4);
  });
}

TEST(GradScaler, ARankThatCannotUnscaleDoesNotLetTheOthersWait) {
  const auto run = [](ProcessGroup& world) {
    GradScaler scaler(world);
    at::Tensor weight = at::ones({2}, world.rank() == 1 ? at::kHalf : at::kFloat);
    weight.mutable_grad() = at::ones_like(weight);
    torch::optim::SGD sgd(std::vector{weight}, torch::optim::SGDOptions(1));
    scaler.scale(torch::ones({}));
    std::string text;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(fault_of([&] { scaler.step(sgd); }, &text),
              world.rank() == 1 ? Fault::misuse : Fault::aborted);
    EXPECT_TRUE(has(text, "float16")) << text;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "timeout";
  };
  // An aborted group is also reported at its end.
  EXPECT_EQ(fault_of([&] { run_in_process(2, run); }), Fault::aborted);
}

}  // namespace
}  // namespace lockstep::optim::grad_scaler_test
