// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/lora/lora.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/layers.h"
#include "tests/fault_of.h"

namespace lockstep::nn::lora_test {
namespace {

using test::fault_of;

struct Seeded {
  Seeded() { torch::manual_seed(4); }
};

struct Net : Seeded, torch::nn::Module {
  Net() {
    register_module("query", query);
    register_module("plain", plain);
    register_module("rest", rest);
  }

  at::Tensor forward(const at::Tensor& x) { return rest->forward(torch::tanh(query(plain(x)))); }

  Linear query{6, 8};
  torch::nn::Linear plain{6, 6};
  torch::nn::Sequential rest{torch::nn::Linear(8, 5), torch::nn::ReLU(), torch::nn::Linear(5, 2)};
};

const std::vector<std::string> chosen{"query", "rest.0"};

at::Tensor parameter(const torch::nn::Module& model, const std::string& name) {
  return model.named_parameters()[name];
}

// The adapters then differ from their initial values.
void train(Net& net, const Lora& lora) {
  net.forward(torch::ones({3, 6})).sum().backward();
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& trained : lora.parameters()) trained.add_(trained.grad(), 0.1);
  for (const at::Tensor& trained : lora.parameters()) trained.add_(0.01);
}

TEST(Lora, ChangesNothingAtFirst) {
  Net net, same;
  const at::Tensor x = torch::randn({3, 6});
  const Lora lora(net, chosen);
  EXPECT_TRUE(torch::equal(net.forward(x), same.forward(x)));
  EXPECT_EQ(parameter(net, "rest.0.lora_A.weight").sizes(), at::IntArrayRef({8, 8}));
  EXPECT_EQ(parameter(net, "rest.0.lora_B.weight").sizes(), at::IntArrayRef({5, 8}));
  EXPECT_GT(parameter(net, "query.lora_A.weight").abs().max().item<double>(), 0);
}

TEST(Lora, ComputesTheFormula) {
  Net net;
  const Lora lora(net, {"query"}, {.rank = 2, .alpha = 6});
  train(net, lora);
  const at::Tensor x = torch::randn({2, 3, 6});
  const at::Tensor a = parameter(net, "query.lora_A.weight");
  const at::Tensor b = parameter(net, "query.lora_B.weight");
  const at::Tensor expected =
      torch::matmul(x, (net.query->weight + 3 * b.mm(a)).t()) + net.query->bias;
  EXPECT_TRUE(torch::allclose(net.query(x), expected, 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(net.query(x), at::linear(x, net.query->weight, net.query->bias)));
}

TEST(Lora, TrainsTheAdaptersAlone) {
  Net net;
  const Lora lora(net, chosen, {.also_train = {"rest.2"}});
  std::vector<std::string> names;
  for (const auto& [name, trained] : lora.named_parameters()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"query.lora_A.weight", "query.lora_B.weight",
                                             "rest.0.lora_A.weight", "rest.0.lora_B.weight",
                                             "rest.2.weight", "rest.2.bias"}));
  net.forward(torch::randn({3, 6})).sum().backward();
  for (const auto& item : net.named_parameters())
    EXPECT_EQ(item.value().grad().defined(),
              std::find(names.begin(), names.end(), item.key()) != names.end())
        << item.key();
}

TEST(Lora, MergesAndUnmerges) {
  Net net;
  Lora lora(net, chosen);
  train(net, lora);
  const at::Tensor x = torch::randn({3, 6});
  const at::Tensor before = net.query->weight.clone();
  const at::Tensor separate = net.forward(x);
  lora.merge();
  lora.merge();  // Once.
  EXPECT_FALSE(torch::allclose(net.query->weight, before));
  EXPECT_TRUE(torch::allclose(net.forward(x), separate, 1e-4, 1e-5));
  EXPECT_EQ(fault_of([&] { lora.state_dict(); }), Fault::misuse);
  lora.unmerge();
  EXPECT_TRUE(torch::allclose(net.query->weight, before, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(net.forward(x), separate, 1e-4, 1e-5));
  lora.remove();
  EXPECT_TRUE(torch::allclose(net.forward(x), separate, 1e-4, 1e-5));
  EXPECT_FALSE(net.named_parameters().contains("query.lora_A.weight"));
  EXPECT_TRUE(lora.parameters().empty());
}

TEST(Lora, IsAbsentFromTheStateOfAMergedModel) {
  Net net, other;
  const std::vector<std::string> names = other.named_parameters().keys();
  Lora lora(net, chosen);
  train(net, lora);
  const at::Tensor x = torch::randn({3, 6});
  const at::Tensor expected = net.forward(x);
  lora.merge();
  EXPECT_EQ(net.named_parameters().keys(), names);
  {
    const torch::NoGradGuard no_grad;
    for (const std::string& name : names) parameter(other, name).copy_(parameter(net, name));
  }
  EXPECT_TRUE(torch::allclose(other.forward(x), expected, 1e-4, 1e-5));
  const Lora second(net, {"query"});
  EXPECT_EQ(fault_of([&] { lora.unmerge(); }), Fault::misuse);
}

TEST(Lora, KnowsItsAdaptersFromLayersOfTheirNames) {
  struct Own : torch::nn::Module {
    Own() { register_module("query", query), register_module("lora_A", lora_A); }
    Linear query{6, 6};
    Linear lora_A{6, 6};
  };
  struct Outer : torch::nn::Module {
    Outer() { register_module("own", own); }
    std::shared_ptr<Own> own = std::make_shared<Own>();
  } model;
  const Lora lora(model, {"own.query"});
  EXPECT_EQ(lora.parameters().size(), 2U);
  EXPECT_FALSE(model.own->lora_A->weight.requires_grad());
}

TEST(Lora, RefusesClonesOfAdaptedLayers) {
  Net net;
  Lora lora(net, chosen);
  std::string text;
  EXPECT_EQ(fault_of([&] { net.query->clone(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("LoRA"), std::string::npos) << text;
  lora.remove();
  EXPECT_NE(net.query->clone(), nullptr);
}

TEST(Lora, SavesAndLoadsTheAdaptersAlone) {
  Net net, other;
  Lora lora(net, chosen), loaded(other, chosen);
  train(net, lora);
  const StateDict state = lora.state_dict();
  EXPECT_EQ(state.tensors.size(), 4U);
  EXPECT_EQ(loaded.wanted(state).size(), 4U);
  loaded.load_state_dict(state);
  const at::Tensor x = torch::randn({3, 6});
  EXPECT_TRUE(torch::equal(net.forward(x), other.forward(x)));
  Net third;
  Lora narrow(third, chosen, {.rank = 2});
  std::string text;
  EXPECT_EQ(fault_of([&] { narrow.wanted(state); }, &text), Fault::misuse);
  EXPECT_NE(text.find("query.lora_A.weight"), std::string::npos) << text;
}

TEST(Lora, DropsInputsOfTheAdapterInTraining) {
  Net net;
  const Lora lora(net, {"query"}, {.dropout = 0.5});
  train(net, lora);
  const at::Tensor x = torch::randn({64, 6});
  EXPECT_FALSE(torch::equal(net.query(x), net.query(x)));
  net.eval();
  EXPECT_TRUE(torch::equal(net.query(x), net.query(x)));
}

TEST(Lora, RefusesLayersByName) {
  Net net;
  const auto refusal = [&](const std::vector<std::string>& layers, const LoraOptions& options) {
    std::string text;
    EXPECT_EQ(fault_of([&] { Lora(net, layers, options); }, &text), Fault::misuse);
    return text;
  };
  EXPECT_NE(refusal({"plain"}, {}).find("declare it as lockstep::nn::Linear"), std::string::npos);
  EXPECT_NE(refusal({"rest.1"}, {}).find("rest.1"), std::string::npos);
  EXPECT_NE(refusal({"query", "key"}, {}).find("'key'"), std::string::npos);
  EXPECT_NE(refusal({"query"}, {.rank = 0}).find("positive"), std::string::npos);
  EXPECT_NE(refusal({"query"}, {.also_train = {"head"}}).find("head"), std::string::npos);
  EXPECT_EQ(net.named_parameters().size(), 8U);
  const Lora lora(net, {"query"});
  EXPECT_NE(refusal({"query"}, {}).find("already"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::nn::lora_test
