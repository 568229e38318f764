// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/own_experts.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/parallel/replicate/replicas.h"
#include "lockstep/tensor/sharded_module.h"

namespace lockstep {
namespace {

Layouts layouts_of_experts(const torch::nn::Module& module) {
  Layouts layouts = layouts_of(module);
  std::erase_if(layouts, [](const auto& item) { return !item.second.is_averaged; });
  return layouts;
}

}  // namespace

bool has_experts(const torch::nn::Module& module) { return !layouts_of_experts(module).empty(); }

NamedTensors without_experts(NamedTensors tensors, const torch::nn::Module& module) {
  const Layouts experts = layouts_of_experts(module);
  std::erase_if(tensors, [&](const auto& item) { return experts.contains(item.first); });
  return tensors;
}

void require_all_ranks_of_experts(const torch::nn::Module& module, const ProcessGroup& group) {
  for (const auto& [name, layout] : layouts_of_experts(module)) {
    const int replicas = layout.replicas ? layout.replicas->size() : 1;
    require(layout.group.size() * replicas == group.size(), [&, &name = name] {
      return "DistributedDataParallel over " + std::to_string(group.size()) + " ranks: " + name +
             " is cut over " + std::to_string(layout.group.size()) + " ranks and has " +
             std::to_string(replicas) + " replicas, so its gradient is a mean over " +
             std::to_string(layout.group.size() * replicas) +
             ": name the other ranks in ExpertParallel::replicas";
    });
  }
}

void broadcast_experts(const torch::nn::Module& module) {
  const Layouts experts = layouts_of_experts(module);
  for (const auto& item : named_parameters(module))
    if (const auto layout = experts.find(item.first);
        layout != experts.end() && layout->second.replicas)
      parallel::broadcast_replica({item}, *layout->second.replicas);
}

}  // namespace lockstep
