// Prints what ChannelPruner, PruningMasks and GradualPruner do, for pruning_test.py:
//   pruning_trace plan cnn|resnet18|efficientnet_b0
//   pruning_trace masks IN OUT
//   pruning_trace schedule

// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/models/cnn.h"
#include "examples/models/efficientnet.h"
#include "examples/models/resnet.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/toolkit/prune/channel_pruner.h"
#include "lockstep/toolkit/prune/gradual_pruner.h"
#include "lockstep/toolkit/prune/pruning_masks.h"

namespace {

using lockstep::ChannelGroup;
using lockstep::PruningMasks;

// --- Plans ---------------------------------------------------------------------------------------

std::string sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += " " + name;
  return text;
}

template <class Model>
void print_plan(Model& model, std::int64_t size) {
  lockstep::ChannelPruner pruner(model, torch::randn({1, 3, size, size}),
                                 lockstep::ProcessGroup::self());
  const lockstep::PruningPlan plan = pruner.apply();
  for (const ChannelGroup& group : plan.groups)
    if (group.whole_because.empty())
      std::cout << group.channels << sorted(group.outputs) << " <" << sorted(group.inputs) << '\n';
  std::cout << "parameters " << plan.before.parameters << ' ' << plan.after.parameters << '\n';
}

int print_plan(const std::string& model) {
  if (model == "cnn") print_plan(*std::make_shared<Cnn>(3, 32, 10), 32);
  if (model == "resnet18") print_plan(*resnet18(), 64);
  if (model == "efficientnet_b0") print_plan(*efficientnet_b(0), 64);
  return 0;
}

// --- Masks ---------------------------------------------------------------------------------------

using Case = std::function<void(PruningMasks& masks)>;

constexpr double infinity = std::numeric_limits<double>::infinity();

const std::map<std::string, Case>& cases() {
  static const std::map<std::string, Case> all{
      {"l1", [](PruningMasks& m) { m.l1_unstructured("conv", 0.5); }},
      {"l1_all", [](PruningMasks& m) { m.l1_unstructured("conv", 1.0); }},
      {"l1_none", [](PruningMasks& m) { m.l1_unstructured("conv", 0); }},
      {"l1_ties", [](PruningMasks& m) { m.l1_unstructured("coarse", 0.5); }},
      {"l1_again",
       [](PruningMasks& m) {
         m.l1_unstructured("conv", 0.3);
         m.l1_unstructured("conv", 0.2);
         m.l1_unstructured("conv", 10);
       }},
      {"random", [](PruningMasks& m) { m.random_unstructured("conv", 0.35); }},
      {"random_after_l1",
       [](PruningMasks& m) {
         m.l1_unstructured("linear", 0.3);
         m.random_unstructured("linear", 0.5);
       }},
      {"ln_2", [](PruningMasks& m) { m.ln_structured("conv", 0.25, 2, 0); }},
      {"ln_1", [](PruningMasks& m) { m.ln_structured("conv", 2, 1, 1); }},
      {"ln_inf", [](PruningMasks& m) { m.ln_structured("linear", 0.5, infinity, -1); }},
      {"ln_again",
       [](PruningMasks& m) {
         m.ln_structured("conv", 0.25, 2, 0);
         m.ln_structured("conv", 0.5, 1, 0);
         m.ln_structured("conv", 0.5, 2, 1);
       }},
      {"ln_after_l1",
       [](PruningMasks& m) {
         m.l1_unstructured("linear", 0.4);
         m.ln_structured("linear", 0.5, 2, 0);
       }},
      {"random_structured", [](PruningMasks& m) { m.random_structured("conv", 3, 0); }},
      {"random_structured_again",
       [](PruningMasks& m) {
         m.ln_structured("linear", 0.3, 2, 0);
         m.random_structured("linear", 0.5, 0);
       }},
      {"global",
       [](PruningMasks& m) {
         m.global_l1_unstructured({"conv", "linear"}, 0.6);
       }},
      {"global_after_l1",
       [](PruningMasks& m) {
         m.l1_unstructured("linear", 0.2);
         m.global_l1_unstructured({"linear", "coarse", "conv"}, 300);
       }},
  };
  return all;
}

struct Weights : torch::nn::Module {
  explicit Weights(const lockstep::NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) register_parameter(name, tensor.clone());
  }
};

int save_masks(const std::string& in, const std::string& out) {
  const lockstep::Safetensors weights = lockstep::load_safetensors(in);
  lockstep::NamedTensors results;
  for (const auto& [name, prune] : cases()) {
    torch::manual_seed(11);
    Weights model(weights.tensors);
    PruningMasks masks(model, lockstep::ProcessGroup::self());
    prune(masks);
    for (const auto& [parameter, values] : weights.tensors)
      if (const at::Tensor mask = masks.mask(parameter); mask.defined())
        results.emplace_back(name + "." + parameter, mask);
  }
  lockstep::save_safetensors(out, results);
  return 0;
}

// --- Schedule ------------------------------------------------------------------------------------

int print_schedule() {
  Weights model({{"w", torch::rand({10, 10})}});
  torch::optim::SGD sgd(model.parameters(), 0.0);
  lockstep::GradualPruner pruner(
      model, lockstep::ProcessGroup::self(),
      {.initial_sparsity = 0.1, .final_sparsity = 0.83, .begin = 3, .end = 56, .every = 7});
  for (int step = 1; step <= 60; ++step) {
    pruner.step(sgd);
    std::cout << std::hexfloat << pruner.scheduled_sparsity() << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 2 && arguments[0] == "plan") return print_plan(arguments[1]);
  if (arguments.size() == 3 && arguments[0] == "masks")
    return save_masks(arguments[1], arguments[2]);
  if (arguments.size() == 1 && arguments[0] == "schedule") return print_schedule();
  return 64;
}
