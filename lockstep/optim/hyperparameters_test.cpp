// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/hyperparameters.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/fault_of.h"

namespace lockstep::hyperparameters_test {
namespace {

using test::fault_of;
using torch::optim::OptimizerParamGroup;

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
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(weights(1), std::make_unique<torch::optim::SGDOptions>(0.5));
  groups.emplace_back(weights(2), std::make_unique<torch::optim::SGDOptions>(0.25));
  const torch::optim::SGD sgd(groups, torch::optim::SGDOptions(1));
  EXPECT_EQ(value_of(sgd, "number of param groups"), "2");
  EXPECT_EQ(value_of(sgd, "param group 0: lr"), "0.5");
  EXPECT_EQ(value_of(sgd, "param group 1: lr"), "0.25");
  EXPECT_EQ(value_of(sgd, "param group 1: number of parameters"), "2");
}

struct Silent : torch::optim::OptimizerCloneableOptions<Silent> {};
struct Rate : torch::optim::OptimizerCloneableOptions<Rate> {
  double get_lr() const override { return 0.125; }
};
struct Nested : torch::optim::OptimizerCloneableOptions<Nested> {
  void serialize(torch::serialize::OutputArchive& archive) const override {
    torch::serialize::OutputArchive inner(archive.compilation_unit());
    inner.write("steps", c10::IValue(12));
    archive.write("warmup", inner);
  }
};

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

TEST(Hyperparameters, OptionsThatTellNothingAreRefused) {
  std::string text;
  EXPECT_EQ(fault_of([] { hyperparameters_of(Own<Silent>()); }, &text), Fault::unsupported);
  EXPECT_NE(text.find("Silent overrides neither serialize() nor get_lr()"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::hyperparameters_test
