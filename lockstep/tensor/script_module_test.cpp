// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/script_module.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/function_module.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/rigs/small_script.h"
#include "tests/saved_state.h"

namespace lockstep::tensor::script_module_test {
namespace {

using test::fault_of;
using test::SavedState;
using test::small_script;

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

at::Tensor buffer(const torch::nn::Module& module, std::size_t index) {
  return named_buffers(module).at(index).second;
}

TEST(ScriptModule, HasTheTensorsOfTheScriptUnderTheirNames) {
  const torch::jit::Module jit = small_script();
  const ScriptModule module(jit);
  EXPECT_EQ(names_of(named_parameters(module)), (std::vector<std::string>{"bias", "layer.weight"}));
  EXPECT_EQ(names_of(named_buffers(module)), (std::vector<std::string>{"calls", "total"}));
  EXPECT_TRUE(module.parameters()[0].is_same(jit.attr("bias").toTensor()));
  EXPECT_TRUE(module.parameters()[1].requires_grad());
}

TEST(ScriptModule, TrainsTheScript) {
  const torch::jit::Module jit = small_script();
  ScriptModule module(jit);
  torch::optim::SGD sgd(module.parameters(), 0.5);
  module.forward(torch::ones({1, 3})).toTensor().sum().backward();
  sgd.step();
  EXPECT_TRUE(torch::equal(jit.attr("bias").toTensor(), torch::full({2}, -0.5)));
  EXPECT_TRUE(torch::equal(module.forward(std::vector<c10::IValue>{torch::ones({1, 3})}).toTensor(),
                           torch::ones({1, 2})));
}

TEST(ScriptModule, BuffersHaveTheValuesThatTheScriptAssigned) {
  torch::jit::Module jit = small_script();
  ScriptModule module(jit);
  const at::Tensor calls = buffer(module, 0);
  for (int i = 0; i < 2; ++i) module.forward(torch::ones({1, 3}));
  EXPECT_EQ(calls.item<float>(), 2);
  EXPECT_EQ(buffer(module, 1).item<float>(), 4);
  jit.forward({torch::ones({1, 3})});  // Past this module.
  EXPECT_EQ(buffer(module, 0).item<float>(), 3);
  calls.fill_(7);  // As a broadcast does.
  module.forward(torch::ones({1, 3}));
  EXPECT_EQ(jit.attr("calls").toTensor().item<float>(), 8);
  jit.setattr("calls", torch::full({1}, 5.0F));
  EXPECT_EQ(buffer(module, 0).item<float>(), 5);
}

TEST(ScriptModule, BuffersWithinAnotherModuleHaveTheValuesThatTheScriptAssigned) {
  const torch::jit::Module jit = small_script();
  const auto inner = std::make_shared<torch::nn::Module>("inner");
  inner->register_module("script", std::make_shared<ScriptModule>(jit));
  torch::nn::Module outer("outer");
  outer.register_module("inner", inner);
  torch::jit::Module(jit).forward({torch::ones({1, 3})});
  EXPECT_EQ(names_of(named_buffers(outer)),
            (std::vector<std::string>{"inner.script.calls", "inner.script.total"}));
  EXPECT_EQ(buffer(outer, 0).item<float>(), 1);
  buffer(outer, 0).fill_(7);  // As a broadcast does.
  EXPECT_EQ(jit.attr("calls").toTensor().item<float>(), 7);
}

TEST(ScriptModule, RefusesTensorsThatItCannotFollow) {
  std::string text;
  EXPECT_EQ(fault_of([] { ScriptModule(torch::jit::Module()); }, &text), Fault::misuse);
  torch::jit::Module jit = small_script();
  ScriptModule module(jit);
  jit.setattr("calls", torch::zeros({1}, torch::kDouble));
  EXPECT_EQ(fault_of([&] { named_tensors(module); }, &text), Fault::misuse);
  EXPECT_NE(text.find("calls"), text.npos) << text;
  jit.setattr("calls", torch::zeros({1}));
  jit.setattr("bias", torch::zeros({2}));
  EXPECT_EQ(fault_of([&] { module.forward(torch::ones({1, 3})); }, &text), Fault::misuse);
  EXPECT_NE(text.find("parameter bias"), text.npos) << text;
}

TEST(ScriptModule, ModeIsThatOfTheScript) {
  torch::jit::Module jit = small_script();
  ScriptModule module(jit);
  module.eval();
  EXPECT_FALSE(jit.is_training());
  jit.train();
  EXPECT_TRUE(module.is_training());
}

TEST(ScriptModule, StateComesBackInAnotherScript) {
  torch::jit::Module source = small_script();
  source.attr("bias").toTensor().detach().fill_(3);
  source.forward({torch::ones({1, 3})});  // Assigns a buffer.
  SavedState state;
  state.add(state_of(source)->state_dict(), 0);
  EXPECT_EQ(state.whole().tensors.size(), 4U);
  const torch::jit::Module target = small_script();
  test::load(*state_of(target), state.whole());
  EXPECT_EQ(sha256(ScriptModule(target)), sha256(ScriptModule(source)));
  EXPECT_EQ(target.attr("calls").toTensor().item<float>(), 1);
}

TEST(FunctionModule, SharesTensorsUnderTheirNames) {
  const at::Tensor weight = torch::ones({2, 2}).requires_grad_();
  const at::Tensor frozen = torch::ones({2});
  const at::Tensor mean = torch::zeros({2});
  const auto model = function_module(
      {{"layer.weight", weight}, {"scale", frozen}}, {{"layer.mean", mean}},
      [=](const at::Tensor& x, double factor) { return (x - mean).matmul(weight) * factor; });
  EXPECT_EQ(names_of(named_tensors(*model)),
            (std::vector<std::string>{"scale", "layer.weight", "layer.mean"}));
  EXPECT_TRUE(model->parameters()[1].is_same(weight));
  EXPECT_FALSE(frozen.requires_grad());
  EXPECT_TRUE(torch::equal(model->forward(torch::ones({1, 2}), 0.5), torch::ones({1, 2})));
}

TEST(FunctionModule, RefusesListsThatMakeNoModule) {
  const at::Tensor tensor = torch::ones({2});
  const at::Tensor trained = torch::ones({2}).requires_grad_();
  const auto refuses = [](const NamedTensors& parameters, const NamedTensors& buffers,
                          const std::string& reason) {
    std::string text;
    EXPECT_EQ(fault_of([&] { function_module(parameters, buffers, [] {}); }, &text), Fault::misuse);
    EXPECT_NE(text.find(reason), text.npos) << text;
  };
  refuses({{"a", tensor}}, {{"a", tensor}}, "two tensors have the name 'a'");
  refuses({{"a..b", tensor}}, {}, "has an empty part");
  refuses({{"", tensor}}, {}, "is empty");
  refuses({{"a", at::Tensor()}}, {}, "'a' is undefined");
  refuses({{"a", trained * 2}}, {}, "is the result of an operation");
}

}  // namespace
}  // namespace lockstep::tensor::script_module_test
