// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/optimizer_options.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/fault_of.h"

namespace lockstep::optim::optimizer_options_test {
namespace {

using test::fault_of;
using torch::optim::AdamOptions;

AdamOptions unusual() {
  return AdamOptions(std::nextafter(0.1, 1.0)).betas({0.8, 0.95}).eps(1e-7).amsgrad(true);
}

TEST(OptimizerOptions, ArePlainValuesByName) {
  EXPECT_EQ(state_values_of(unusual()), (StateValues{{"lr", std::nextafter(0.1, 1.0)},
                                                     {"betas", std::vector<double>{0.8, 0.95}},
                                                     {"eps", 1e-7},
                                                     {"weight_decay", 0.0},
                                                     {"amsgrad", true}}));
}

template <class Options>
void expect_round_trip(const Options& from, Options to) {
  ASSERT_FALSE(from == to) << "nothing to be set";
  set_state_values(to, state_values_of(from));
  EXPECT_TRUE(from == to);
}

TEST(OptimizerOptions, RoundTripForEveryLibTorchOptimizer) {
  using namespace torch::optim;
  expect_round_trip(unusual(), AdamOptions());
  expect_round_trip(AdamWOptions(2).weight_decay(0.3), AdamWOptions());
  expect_round_trip(SGDOptions(2).momentum(0.5).nesterov(true), SGDOptions(1));
  expect_round_trip(AdagradOptions(2).lr_decay(0.1), AdagradOptions());
  expect_round_trip(RMSpropOptions(2).centered(true).momentum(0.1), RMSpropOptions());
  expect_round_trip(LBFGSOptions(2).max_iter(7).max_eval(9).line_search_fn("strong_wolfe"),
                    LBFGSOptions().max_eval(1).line_search_fn("none"));
}

TEST(OptimizerOptions, AnOptionWithoutValueIsLeftOut) {
  EXPECT_FALSE(state_values_of(torch::optim::LBFGSOptions()).contains("max_eval"));
  expect_round_trip(torch::optim::LBFGSOptions(2), torch::optim::LBFGSOptions(1));
}

std::string refusal_of(const StateValues& values) {
  AdamOptions options;
  std::string text;
  EXPECT_EQ(fault_of([&] { set_state_values(options, values); }, &text), Fault::misuse);
  EXPECT_TRUE(options == AdamOptions()) << "something was set";
  return text;
}

TEST(OptimizerOptions, ReportMissingUnknownAndMistypedOptionsByName) {
  StateValues missing = state_values_of(unusual());
  missing.erase("eps");
  EXPECT_NE(refusal_of(missing).find("option eps was not saved"), std::string::npos);
  StateValues unknown = state_values_of(unusual());
  unknown["momentum"] = 0.5;
  EXPECT_NE(refusal_of(unknown).find("option momentum was saved and does not exist here"),
            std::string::npos);
  StateValues other = state_values_of(unusual());
  other["lr"] = std::int64_t{1};
  EXPECT_NE(refusal_of(other).find("option lr was saved with another type"), std::string::npos);
  other = state_values_of(unusual());
  other["betas"] = std::vector<double>{0.5};
  EXPECT_NE(refusal_of(other).find("option betas was saved with another type"), std::string::npos);
}

struct Nested : torch::optim::OptimizerCloneableOptions<Nested> {
  void serialize(torch::serialize::OutputArchive& archive) const override {
    torch::serialize::OutputArchive inner(archive.compilation_unit());
    inner.write("steps", c10::IValue(steps));
    archive.write("warmup", inner);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    torch::serialize::InputArchive inner;
    archive.read("warmup", inner);
    c10::IValue value;
    inner.read("steps", value);
    steps = value.toInt();
  }
  std::int64_t steps = 12;
};

TEST(OptimizerOptions, OptionsWithArchivesInTheirArchiveAreSet) {
  EXPECT_EQ(state_values_of(Nested()), (StateValues{{"warmup.steps", std::int64_t{12}}}));
  Nested options;
  set_state_values(options, {{"warmup.steps", std::int64_t{13}}});
  EXPECT_EQ(options.steps, 13);
}

struct Rate : torch::optim::OptimizerCloneableOptions<Rate> {
  double get_lr() const override { return rate; }
  void set_lr(double lr) override { rate = lr; }
  double rate = 0.125;
};
struct ConstantRate : torch::optim::OptimizerCloneableOptions<ConstantRate> {
  double get_lr() const override { return 0.125; }
};
struct WriteOnly : torch::optim::OptimizerCloneableOptions<WriteOnly> {
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("lr", c10::IValue(0.125));
  }
};

TEST(OptimizerOptions, OptionsThatCannotBeSerialisedAreTheirLearningRate) {
  Rate options;
  EXPECT_EQ(state_values_of(options), (StateValues{{"lr", 0.125}}));
  set_state_values(options, {{"lr", 0.5}});
  EXPECT_EQ(options.rate, 0.5);
}

TEST(OptimizerOptions, OptionsThatCanOnlyBeReadAreRefused) {
  ConstantRate constant;
  EXPECT_EQ(fault_of([&] { set_state_values(constant, {{"lr", 0.5}}); }), Fault::unsupported);
  WriteOnly write_only;
  EXPECT_EQ(fault_of([&] { set_state_values(write_only, {{"lr", 0.5}}); }), Fault::unsupported);
}

std::vector<torch::Tensor> weights(int count) {
  std::vector<torch::Tensor> all;
  for (int i = 0; i < count; ++i) all.push_back(torch::zeros(1, torch::requires_grad()));
  return all;
}

std::string value_of(const torch::optim::Optimizer& optimizer, const std::string& name) {
  for (const auto& [known, value] : hyperparameters_of(optimizer))
    if (known == name) return value;
  return "not there";
}

TEST(Hyperparameters, AreThoseOfAdamByName) {
  const torch::optim::Adam adam(
      weights(3), torch::optim::AdamOptions(1e-3).betas({0.9, 0.999}).weight_decay(0.1));
  EXPECT_EQ(hyperparameters_of(adam), (Facts{{"optimizer", "torch::optim::Adam"},
                                             {"number of param groups", "1"},
                                             {"param group 0: number of parameters", "3"},
                                             {"param group 0: lr", "0.001"},
                                             {"param group 0: betas", "(0.9, 0.999)"},
                                             {"param group 0: eps", "1e-08"},
                                             {"param group 0: weight_decay", "0.1"},
                                             {"param group 0: amsgrad", "False"}}));
}

TEST(Hyperparameters, AreFoundInEveryOptimizerOfLibTorch) {
  const std::string momentum = "param group 0: momentum";
  EXPECT_EQ(
      value_of(torch::optim::SGD(weights(1), torch::optim::SGDOptions(1).momentum(0.9)), momentum),
      "0.9");
  EXPECT_EQ(
      value_of(torch::optim::RMSprop(weights(1), torch::optim::RMSpropOptions().momentum(0.5)),
               momentum),
      "0.5");
  EXPECT_EQ(value_of(torch::optim::AdamW(weights(1), torch::optim::AdamWOptions().amsgrad(true)),
                     "param group 0: amsgrad"),
            "True");
  EXPECT_EQ(value_of(torch::optim::Adagrad(weights(1), torch::optim::AdagradOptions().lr_decay(2)),
                     "param group 0: lr_decay"),
            "2");
  EXPECT_EQ(value_of(torch::optim::LBFGS(weights(1), torch::optim::LBFGSOptions().max_iter(7)),
                     "param group 0: max_iter"),
            "7");
}

TEST(Hyperparameters, NumbersThatDifferInTheLastBitAreOtherTexts) {
  torch::optim::SGD sgd(weights(1), torch::optim::SGDOptions(0.1));
  const Facts before = hyperparameters_of(sgd);
  sgd.param_groups()[0].options().set_lr(std::nextafter(0.1, 1.0));
  EXPECT_NE(hyperparameters_of(sgd), before);
}

TEST(Hyperparameters, EachParamGroupHasItsOwn) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights(1), std::make_unique<torch::optim::SGDOptions>(0.5));
  groups.emplace_back(weights(2), std::make_unique<torch::optim::SGDOptions>(0.25));
  const torch::optim::SGD sgd(groups, torch::optim::SGDOptions(1));
  EXPECT_EQ(value_of(sgd, "number of param groups"), "2");
  EXPECT_EQ(value_of(sgd, "param group 0: lr"), "0.5");
  EXPECT_EQ(value_of(sgd, "param group 1: lr"), "0.25");
  EXPECT_EQ(value_of(sgd, "param group 1: number of parameters"), "2");
}

struct Silent : torch::optim::OptimizerCloneableOptions<Silent> {};

template <class Options>
struct Own : torch::optim::Optimizer {
  Own() : Optimizer(weights(1), std::make_unique<Options>()) {}
  torch::Tensor step(LossClosure) override { return {}; }
};

TEST(Hyperparameters, OptionsWithArchivesInTheirArchiveAreRead) {
  EXPECT_EQ(value_of(Own<Nested>(), "param group 0: warmup.steps"), "12");
}

TEST(Hyperparameters, OptionsThatCannotBeSerialisedAreTheirLearningRate) {
  EXPECT_EQ(value_of(Own<Rate>(), "param group 0: lr"), "0.125");
}

TEST(Hyperparameters, RejectOptionsThatCannotBeRead) {
  std::string text;
  EXPECT_EQ(fault_of([] { hyperparameters_of(Own<Silent>()); }, &text), Fault::unsupported);
  EXPECT_NE(text.find("Silent overrides neither serialize() nor get_lr()"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::optim::optimizer_options_test
