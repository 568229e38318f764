// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/replicate/own_experts.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
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

// Groups of the same rank need different names.
void require_all_ranks_of_experts(const torch::nn::Module& module, const ProcessGroup& group) {
  for (const auto& [name, layout] : layouts_of_experts(module)) {
    const std::string replicas = layout.replicas ? layout.replicas->name() : "";
    const auto all = all_gather_bytes(layout.group.name() + '\n' + replicas, group,
                                      {.label = "groups of experts"});
    std::map<std::string, int> of_experts, of_replicas;
    for (const std::string& names : all) {
      const std::size_t end = names.find('\n');
      ++of_experts[names.substr(0, end)];
      ++of_replicas[names.substr(end + 1)];
    }
    const int copies = layout.replicas ? layout.replicas->size() : 1;
    const auto has_all = [](const std::map<std::string, int>& members, int size) {
      return std::all_of(members.begin(), members.end(),
                         [&](const auto& item) { return item.second == size; });
    };
    require(has_all(of_experts, layout.group.size()) &&
                (!layout.replicas || has_all(of_replicas, copies)) &&
                group.size() == layout.group.size() * copies,
            [&, &name = name] {
              return "DistributedDataParallel over the " + std::to_string(group.size()) +
                     " ranks of group " + group.name() + ": " + name + " is cut over the " +
                     std::to_string(layout.group.size()) + " ranks of " + layout.group.name() +
                     (layout.replicas ? ", and has copies on the " + std::to_string(copies) +
                                            " ranks of " + replicas
                                      : "") +
                     ", so its gradient is a mean over these " +
                     std::to_string(layout.group.size() * copies) +
                     " ranks: give DistributedDataParallel the group of exactly these, and name "
                     "ranks that have the same experts in ExpertParallel::replicas";
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
