// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/tensor/tensor_lists.h"

namespace lockstep {
namespace {

// Indices, the largest first.
std::vector<std::size_t> by_size(const std::vector<at::Tensor>& parameters) {
  std::vector<std::size_t> indices(parameters.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  std::stable_sort(indices.begin(), indices.end(), [&](std::size_t a, std::size_t b) {
    return parameters[a].numel() > parameters[b].numel();
  });
  return indices;
}

}  // namespace

std::vector<std::vector<std::size_t>> partition_parameters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, int ranks) {
  std::vector<std::vector<std::size_t>> partition(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> elements(partition.size());
  std::size_t begin = 0;
  for (const auto& group : groups) {
    for (const std::size_t i : by_size(group.params())) {
      const auto smallest = std::min_element(elements.begin(), elements.end());
      *smallest += group.params()[i].numel();
      partition[static_cast<std::size_t>(smallest - elements.begin())].push_back(begin + i);
    }
    begin += group.params().size();
  }
  return partition;
}

WholeParameterOptimizer::WholeParameterOptimizer(
    const Groups& groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults, Make make,
    const ProcessGroup& group)
    : ShardedOptimizer(groups, std::move(defaults), std::move(make), group),
      partition_(partition_parameters(param_groups_, group.size())) {
  std::vector<Shard> shards;
  std::vector<at::Tensor> stepped;
  for (int rank = 0; rank < group.size(); ++rank)
    for (const std::size_t i : partition_[static_cast<std::size_t>(rank)]) {
      const at::Tensor& parameter = all_parameters()[i];
      shards.push_back({.parameter = i, .begin = 0, .end = parameter.numel(), .owner = rank});
      if (rank == group.rank()) stepped.push_back(parameter);
    }
  set_shards(std::move(shards), stepped);
}

int WholeParameterOptimizer::owner(const at::Tensor& parameter) const {
  const auto shard = std::find_if(shards().begin(), shards().end(), [&](const Shard& each) {
    return all_parameters()[each.parameter].is_same(parameter);
  });
  require(shard != shards().end(), "owner: this tensor is not a parameter of the optimizer");
  return shard->owner;
}

void WholeParameterOptimizer::after_step() {
  if (group().size() == 1) return;
  for (std::size_t rank = 0; rank < partition_.size(); ++rank) {
    std::vector<at::Tensor> parameters;
    for (const std::size_t i : partition_[rank]) parameters.push_back(all_parameters()[i]);
    broadcast_coalesced(parameters, group(), static_cast<int>(rank),
                        {.label = "stepped parameters"});
  }
}

}  // namespace lockstep
