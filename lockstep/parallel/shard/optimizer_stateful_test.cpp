// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer_stateful.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::parallel::optimizer_stateful_test {
namespace {

using test::catalogue_of;
using test::fault_of;
using test::SavedState;
using torch::optim::AdamOptions;
using torch::optim::Optimizer;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

NamedTensors parameters() {
  torch::manual_seed(3);
  const auto channels_last = torch::randn({3, 4, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  NamedTensors all{{"a.weight", torch::randn({7, 5})},
                   {"a.bias", torch::randn({33})},
                   {"b.weight", torch::randn({2, 3}, at::kDouble)},
                   {"c.weight", channels_last},
                   {"c.scale", torch::randn({})},
                   {"c.unused", torch::randn({6})}};
  for (auto& [name, tensor] : all) tensor.requires_grad_();
  return all;
}

NamedTensors copies(const NamedTensors& parameters) {
  NamedTensors result;
  for (const auto& [name, tensor] : parameters)
    result.emplace_back(name, tensor.detach().clone().requires_grad_());
  return result;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& parameters, std::size_t begin = 0,
                                   std::size_t end = 6) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = begin; i < end; ++i) tensors.push_back(parameters[i].second);
  return tensors;
}

// Gradients depend on the weights, so that a difference would grow.
void train(Optimizer& optimizer, const NamedTensors& parameters, int first, int last) {
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    for (std::size_t i = 0; i + 1 < parameters.size(); ++i)
      if (i != 1 || step % 3 == 0) (parameters[i].second.sin() * (step + 1)).sum().backward();
    optimizer.step();
  }
}

void expect_equal(const NamedTensors& a, const NamedTensors& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::equal(a[i].second, b[i].second)) << a[i].first;
}

template <class Optimizer_, class Options_>
struct Case {
  using Type = Optimizer_;
  using Options = Options_;

  static Options options(double lr) {
    Options result(lr);
    if constexpr (requires { result.momentum(0.9); }) result.momentum(0.9);
    if constexpr (requires { result.amsgrad(true); }) result.amsgrad(true);
    if constexpr (requires { result.centered(true); }) result.centered(true);
    return result.weight_decay(0.1);
  }

  static Groups groups(const NamedTensors& parameters, double lr) {
    Groups groups;
    groups.emplace_back(tensors_of(parameters, 0, 2), std::make_unique<Options>(options(lr)));
    groups.emplace_back(tensors_of(parameters, 2, 6), std::make_unique<Options>(options(lr / 8)));
    return groups;
  }

  static std::unique_ptr<Optimizer> plain(const NamedTensors& parameters, double lr = 1e-2) {
    return std::make_unique<Type>(groups(parameters, lr), options(lr));
  }
  static std::unique_ptr<ShardedOptimizer> sharded(const NamedTensors& parameters,
                                                   const ProcessGroup& world, double lr = 1e-2) {
    return std::make_unique<ZeroRedundancyOptimizer<Type>>(groups(parameters, lr), world,
                                                           options(lr));
  }
};

template <class C>
class OptimizerStateOf : public ::testing::Test {};

using Cases = ::testing::Types<
    Case<Adam, AdamOptions>, Case<torch::optim::Adam, AdamOptions>,
    Case<AdamW, torch::optim::AdamWOptions>, Case<torch::optim::AdamW, torch::optim::AdamWOptions>,
    Case<SGD, torch::optim::SGDOptions>, Case<torch::optim::SGD, torch::optim::SGDOptions>,
    Case<torch::optim::Adagrad, torch::optim::AdagradOptions>,
    Case<torch::optim::RMSprop, torch::optim::RMSpropOptions>, Case<LARS, LARSOptions>,
    Case<LAMB, LAMBOptions>>;
TYPED_TEST_SUITE(OptimizerStateOf, Cases, );

template <class C>
struct Undisturbed {
  explicit Undisturbed(int steps) {
    train(*optimizer, weights, 0, steps);
    at_save = copies(weights);
    state.add(state_of(*optimizer, weights)->state_dict(), 0);
  }

  NamedTensors weights = parameters();
  std::unique_ptr<Optimizer> optimizer = C::plain(weights);
  NamedTensors at_save;
  SavedState state;
};

TYPED_TEST(OptimizerStateOf, APlainOptimizerGoesOnBitForBit) {
  Undisturbed<TypeParam> before(5);
  const NamedTensors loaded = copies(before.at_save);
  const auto goes_on = TypeParam::plain(loaded, 0.5);  // With another rate, which is saved as well.
  test::load(*state_of(*goes_on, loaded), before.state.whole());
  train(*before.optimizer, before.weights, 5, 12);
  train(*goes_on, loaded, 5, 12);
  expect_equal(loaded, before.weights);
}

TYPED_TEST(OptimizerStateOf, WithoutItTrainingWouldGoOnOtherwise) {
  Undisturbed<TypeParam> before(5);
  const NamedTensors weights = copies(before.at_save);
  const auto anew = TypeParam::plain(weights);
  train(*before.optimizer, before.weights, 5, 12);
  train(*anew, weights, 5, 12);
  EXPECT_FALSE(torch::equal(weights[0].second, before.weights[0].second));
}

TYPED_TEST(OptimizerStateOf, WhatALoadingOneRememberedIsForgotten) {
  Undisturbed<TypeParam> before(0);
  const NamedTensors weights = copies(before.at_save);
  const auto other = TypeParam::plain(weights);
  train(*other, weights, 0, 3);
  test::load(*state_of(*other, weights), before.state.whole());
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i].second.detach().copy_(before.at_save[i].second);
  train(*before.optimizer, before.weights, 0, 7);
  train(*other, weights, 0, 7);
  expect_equal(weights, before.weights);
}

TYPED_TEST(OptimizerStateOf, AShardedOptimizerIsSavedAndLoadedAtAnyNumberOfRanks) {
  Undisturbed<TypeParam> plain(5);
  NamedTensors at_save = plain.at_save;
  std::unique_ptr<SavedState> saved;
  int step = 5;
  for (const int ranks : {4, 2, 3, 1}) {  // The first loads the state of a plain optimizer.
    const StateDict state = saved ? saved->whole() : plain.state.whole();
    auto next = std::make_unique<SavedState>();
    NamedTensors reached;
    train(*plain.optimizer, plain.weights, step, step + 4);
    run_in_process(ranks, [&](ProcessGroup& world) {
      const NamedTensors weights = copies(at_save);
      const auto sharded = TypeParam::sharded(weights, world, 0.5);
      test::load(*state_of(*sharded, weights), state);
      train(*sharded, weights, step, step + 4);
      expect_equal(weights, plain.weights);
      next->add(state_of(*sharded, weights)->state_dict(), world.rank());
      if (world.rank() == 0) reached = copies(weights);
    });
    saved = std::move(next);
    at_save = reached;
    step += 4;
  }
  const auto goes_on = TypeParam::plain(at_save, 0.5);
  test::load(*state_of(*goes_on, at_save), saved->whole());
  train(*plain.optimizer, plain.weights, step, step + 4);
  train(*goes_on, at_save, step, step + 4);
  expect_equal(at_save, plain.weights);
}

using OfAdam = Case<Adam, AdamOptions>;
using OfAdamW = Case<AdamW, torch::optim::AdamWOptions>;
using OfSgd = Case<SGD, torch::optim::SGDOptions>;
using OfTorchsAdam = Case<torch::optim::Adam, AdamOptions>;

TEST(OptimizerStateful, HasTheNamesOfTheParameters) {
  const NamedTensors weights = parameters();
  const auto adam = OfAdam::plain(weights);
  train(*adam, weights, 0, 2);
  const StateDict state = state_of(*adam, weights)->state_dict();
  EXPECT_EQ(state.values.at("type"), StateValue(std::string("Adam")));
  EXPECT_EQ(state.values.at("param_groups"), StateValue(std::int64_t{2}));
  EXPECT_EQ(state.values.at("param_groups.1.lr"), StateValue(1e-2 / 8));
  EXPECT_EQ(state.values.at("param_groups.0.betas"), StateValue(std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(state.values.at("b.weight.param_group"), StateValue(std::int64_t{1}));
  EXPECT_EQ(state.values.at("b.weight.step"), StateValue(std::int64_t{2}));
  EXPECT_EQ(state.values.at("c.unused.param_group"), StateValue(std::int64_t{1}));
  EXPECT_FALSE(state.values.contains("c.unused.step"));
  EXPECT_FALSE(state.tensors.contains("c.unused.exp_avg"));
  EXPECT_EQ(state.tensors.size(), 15u);
  EXPECT_EQ(state.tensors.at("a.weight.max_exp_avg_sq").shape, (std::vector<std::int64_t>{7, 5}));
}

TEST(OptimizerStateful, OursAndLibTorchsAreOneKind) {
  Undisturbed<OfAdam> ours(3);
  const NamedTensors weights = copies(ours.at_save);
  const auto theirs = OfTorchsAdam::plain(weights);
  test::load(*state_of(*theirs, weights), ours.state.whole());
  EXPECT_EQ(state_of(*theirs, weights)->state_dict().values, ours.state.whole().values);
}

TEST(OptimizerStateful, StateIsLaidOutAsItsParameter) {
  Undisturbed<OfTorchsAdam> before(3);
  const NamedTensors weights = copies(before.at_save);
  const auto adam = OfTorchsAdam::plain(weights);
  const auto state = state_of(*adam, weights);
  test::load(*state, before.state.whole());
  EXPECT_TRUE(state->state_dict()
                  .tensors.at("c.weight.exp_avg")
                  .data.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(OptimizerStateful, EachRankAsksForItsOwnShards) {
  Undisturbed<OfAdam> before(3);
  const StateDict saved = before.state.whole();
  std::vector<std::set<std::string>> asked(2);
  run_in_process(2, [&](ProcessGroup& world) {
    const NamedTensors weights = copies(before.at_save);
    const auto sharded = OfAdam::sharded(weights, world);
    for (const auto& [name, range] : test::load(*state_of(*sharded, weights), saved))
      asked[static_cast<std::size_t>(world.rank())].insert(name);
  });
  EXPECT_FALSE(asked[0].empty());
  EXPECT_FALSE(asked[1].empty());
  for (const std::string& name : asked[0]) EXPECT_FALSE(asked[1].contains(name)) << name;
  EXPECT_EQ(asked[0].size() + asked[1].size(), saved.tensors.size());
}

TEST(OptimizerStateful, AShardedOptimizerThatWasLoadedCanBeConsolidated) {
  Undisturbed<OfAdam> before(3);
  const StateDict saved = before.state.whole();
  run_in_process(2, [&](ProcessGroup& world) {
    const NamedTensors weights = copies(before.at_save);
    const auto sharded = OfAdam::sharded(weights, world, 0.5);
    sharded->consolidate_state_dict();
    test::load(*state_of(*sharded, weights), saved);
    std::ostringstream archive;
    EXPECT_EQ(fault_of([&] { torch::save(*sharded, archive); }), Fault::misuse)
        << "what was consolidated before is another state";
    sharded->consolidate_state_dict();
    if (world.rank() != 0) return;
    torch::save(*sharded, archive);
    const auto plain = OfAdam::plain(weights, 0.5);
    std::istringstream in(archive.str());
    torch::load(*plain, in);
    EXPECT_EQ(state_of(*plain, weights)->state_dict().values, saved.values);
  });
}

TEST(OptimizerStateful, ASchedulerGoesOnWithTheRatesThatWereLoaded) {
  Undisturbed<OfAdam> before(3);
  const NamedTensors weights = copies(before.at_save);
  const auto adam = OfAdam::plain(weights, 0.5);
  torch::optim::StepLR schedule(*adam, 1, 0.5);
  test::load(*state_of(*adam, weights), before.state.whole());
  schedule.step();
  schedule.step();
  EXPECT_EQ(adam->param_groups()[0].options().get_lr(), 1e-2 / 2);
}

TEST(OptimizerStateful, ATensorOfTwoNamesGoesByTheFirst) {
  NamedTensors weights = parameters();
  weights.emplace_back("tied", weights[0].second);
  const auto adam = OfAdam::plain(weights);
  train(*adam, weights, 0, 2);
  const StateDict state = state_of(*adam, weights)->state_dict();
  EXPECT_TRUE(state.values.contains("a.weight.param_group"));
  EXPECT_TRUE(state.tensors.contains("a.weight.exp_avg"));
  EXPECT_FALSE(state.values.contains("tied.param_group"));
  test::load(*state_of(*adam, weights), state);
}

TEST(OptimizerStateful, RefusesAParameterWithoutAName) {
  NamedTensors weights = parameters();
  const auto adam = OfAdam::plain(weights);
  weights.erase(weights.begin() + 3);
  std::string text;
  EXPECT_EQ(fault_of([&] { state_of(*adam, weights); }, &text), Fault::misuse);
  EXPECT_NE(text.find("parameter 3 of the optimizer"), std::string::npos) << text;
}

TEST(OptimizerStateful, RefusesAnOptimizerOfWhichNothingIsKnown) {
  const NamedTensors weights = parameters();
  torch::optim::LBFGS lbfgs(tensors_of(weights));
  EXPECT_EQ(fault_of([&] { state_of(lbfgs, weights); }), Fault::unsupported);
}

template <class C>
std::string refusal_of(const StateDict& saved) {
  const NamedTensors weights = parameters();
  const auto optimizer = C::plain(weights);
  std::string text;
  EXPECT_EQ(fault_of([&] { state_of(*optimizer, weights)->wanted(catalogue_of(saved)); }, &text),
            Fault::misuse);
  return text;
}

TEST(OptimizerStateful, RefusesTheStateOfAnotherKindOrOfOtherGroups) {
  StateDict saved = Undisturbed<OfAdam>(2).state.whole();
  const std::string text = refusal_of<OfSgd>(saved);
  EXPECT_NE(text.find("is of Adam, this optimizer is SGD"), std::string::npos) << text;
  const std::string of_adamw = refusal_of<OfAdamW>(saved);
  EXPECT_NE(of_adamw.find("is of Adam, this optimizer is AdamW"), std::string::npos) << of_adamw;
  saved.values["param_groups"] = std::int64_t{3};
  EXPECT_NE(refusal_of<OfAdam>(saved).find("with 3 param groups, this one has 2"),
            std::string::npos);
}

TEST(OptimizerStateful, ReportsMismatchesByName) {
  const StateDict saved = Undisturbed<OfAdam>(2).state.whole();
  const auto expect_refusal = [&](auto change, const std::string& expected) {
    StateDict changed = saved;
    change(changed);
    const std::string text = refusal_of<OfAdam>(changed);
    EXPECT_NE(text.find(expected), std::string::npos) << text;
  };
  expect_refusal([](StateDict& s) { s.tensors["a.bias.exp_avg"] = whole(torch::zeros({32})); },
                 "a.bias.exp_avg is Float [33] here and was saved as Float [32]");
  expect_refusal(
      [](StateDict& s) {
        s.tensors["b.weight.exp_avg"] = whole(torch::zeros({2, 3}));
      },
      "b.weight.exp_avg is Double [2, 3] here and was saved as Float [2, 3]");
  expect_refusal([](StateDict& s) { s.tensors.erase("a.weight.exp_avg_sq"); },
                 "a.weight.exp_avg_sq was not saved");
  expect_refusal([](StateDict& s) { s.values["a.weight.step"] = 2.0; },
                 "a.weight.step was not saved, or not as an integer");
  expect_refusal([](StateDict& s) { s.values.erase("c.scale.param_group"); },
                 "parameter c.scale was not saved");
  expect_refusal([](StateDict& s) { s.values["c.scale.param_group"] = std::int64_t{0}; },
                 "parameter c.scale is in param group 1 here and was saved in another");
  expect_refusal([](StateDict& s) { s.values.erase("param_groups.1.eps"); },
                 "param group 1: option eps was not saved");
  expect_refusal([](StateDict& s) { s.tensors["a.bias.sum"] = whole(torch::zeros({33})); },
                 "a.bias.sum was saved and is unknown here");
}

TEST(OptimizerStateful, ReportsAnUnsteppedParameterOnce) {
  StateDict saved = Undisturbed<OfAdam>(2).state.whole();
  saved.values["d.param_group"] = std::int64_t{0};
  saved.values["d.step"] = std::int64_t{2};
  saved.tensors["d.exp_avg"] = whole(torch::zeros({3}));
  const std::string text = refusal_of<OfAdam>(saved);
  EXPECT_NE(text.find(": parameter d was saved and is not stepped here"), std::string::npos)
      << text;
  EXPECT_EQ(text.find(';'), std::string::npos) << text;
}

TEST(OptimizerStateful, AtMostFiveMismatchesAreReported) {
  StateDict saved = Undisturbed<OfAdam>(2).state.whole();
  for (const char* name : {"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"})
    saved.values[name] = true;
  const std::string text = refusal_of<OfAdam>(saved);
  EXPECT_NE(text.find("x4 was saved and is unknown here; and 3 more"), std::string::npos) << text;
}

TEST(OptimizerStateful, RefusesAnAdagradWithoutStateWhichItMakesNeverAgain) {
  using OfAdagrad = Case<torch::optim::Adagrad, torch::optim::AdagradOptions>;
  StateDict saved = Undisturbed<OfAdagrad>(2).state.whole();
  saved.tensors.erase("a.bias.sum");
  saved.values.erase("a.bias.step");
  EXPECT_NE(refusal_of<OfAdagrad>(saved).find("no state was saved for parameter a.bias"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::parallel::optimizer_stateful_test
