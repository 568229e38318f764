// What memory_report.h predicts.

// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/comm/error.h"
#include "lockstep/parallel/memory_report.h"
#include "lockstep/parallel/padded.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors trained(const NamedTensors& parameters) {
  Tensors tensors;
  for (const auto& [name, parameter] : parameters)
    if (parameter.requires_grad()) tensors.push_back(parameter);
  return tensors;
}

std::size_t bytes_of_storages(const NamedTensors& parameters) {
  std::set<const void*> seen;
  std::size_t bytes = 0;
  for (const auto& [name, parameter] : parameters)
    if (seen.insert(parameter.storage().unsafeGetStorageImpl()).second)
      bytes += parameter.storage().nbytes();
  return bytes;
}

std::size_t bytes_of(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// As GradientBuckets and GradientPool lay them out.
std::size_t padded_bytes_of(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += padded(tensor.nbytes());
  return bytes;
}

// Parameters of each rank by PyTorch's rule (torch/distributed/optim/zero_redundancy_optimizer.py,
// _partition_parameters, of one param group): the largest first, each to the rank with fewest
// elements.
std::vector<Tensors> whole_parameters_by_rank(Tensors tensors, std::size_t ranks) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return a.numel() > b.numel(); });
  std::vector<Tensors> parts(ranks);
  std::vector<std::int64_t> elements(ranks, 0);
  for (const at::Tensor& tensor : tensors) {
    const auto least = std::min_element(elements.begin(), elements.end());
    *least += tensor.numel();
    parts[static_cast<std::size_t>(least - elements.begin())].push_back(tensor);
  }
  return parts;
}

// What each rank steps, and so has the state of, in bytes of parameters.
std::vector<std::size_t> stepped_bytes(const Tensors& tensors, MemorySharing sharing,
                                       std::size_t ranks) {
  const std::size_t all = bytes_of(tensors);
  std::vector<std::size_t> bytes(ranks, all);
  if (sharing == MemorySharing::none) return bytes;
  if (sharing == MemorySharing::one_copy) {
    for (std::size_t r = 0; r < ranks; ++r) bytes[r] = all * (r + 1) / ranks - all * r / ranks;
    return bytes;
  }
  const auto parts = whole_parameters_by_rank(tensors, ranks);
  std::transform(parts.begin(), parts.end(), bytes.begin(), bytes_of);
  return bytes;
}

}  // namespace

MemoryTable predict_memory(const torch::nn::Module& module, const MemoryPlan& plan) {
  require(plan.ranks > 0, "predict_memory: there are no ranks");
  require(plan.state_tensors >= 0, "predict_memory: the number of state tensors is negative");
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  const NamedTensors parameters = named_parameters(module);
  const Tensors tensors = trained(parameters);

  MemoryParts each{.parameters = bytes_of_storages(parameters)};
  (ranks > 1 ? each.buckets : each.gradients) =
      ranks > 1 ? padded_bytes_of(tensors) : bytes_of(tensors);
  MemoryTable table;
  for (const std::size_t bytes : stepped_bytes(tensors, plan.sharing, ranks)) {
    each.optimizer_state = bytes * static_cast<std::size_t>(plan.state_tensors);
    table.ranks.push_back(each);
    table.host.optimizer_state += each.optimizer_state;
  }
  const bool one_copy = plan.sharing == MemorySharing::one_copy;
  table.host.parameters = each.parameters * (one_copy ? 1 : ranks);
  table.host.gradients = each.gradients * ranks;
  table.host.buckets = each.buckets * ranks;
  return table;
}

}  // namespace lockstep
