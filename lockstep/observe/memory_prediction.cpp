// Implements the predictions of memory_report.h.

// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/observe/memory_report.h"
#include "lockstep/parallel/deterministic/microbatch_sums.h"
#include "lockstep/parallel/fully_sharded/unit_memory.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/replicate/own_experts.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

std::size_t bytes_of_storages(const NamedTensors& parameters) {
  std::set<const void*> seen;
  std::size_t bytes = 0;
  for (const auto& [name, parameter] : parameters)
    if (seen.insert(parameter.storage().unsafeGetStorageImpl()).second)
      bytes += parameter.storage().nbytes();
  return bytes;
}

Tensors tensors_of(const NamedTensors& named) {
  Tensors tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

std::size_t bytes_of(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

bool shares_parameters(MemorySharing sharing) {
  return sharing == MemorySharing::shared_parameters || sharing == MemorySharing::fully_sharded;
}

bool has_pool(const MemoryPlan& plan) { return plan.ranks > 1 && plan.microbatches == 0; }

// Allocated by BucketedGradients, GradientSlices and GradientPool. A single rank has no pool, and
// buckets only for SharedOptimizer. ZeRO stage 2 has no buckets.
std::size_t bytes_of_buckets(const NamedTensors& trained, const MemoryPlan& plan) {
  if (plan.sharing == MemorySharing::fully_sharded)
    return bytes_of_unit_gradients(trained, plan.units, plan.ranks);
  const bool shared_parameters = plan.sharing == MemorySharing::shared_parameters;
  std::size_t bytes = 0;
  if (plan.microbatches > 0)
    bytes += MicrobatchSums::bytes_for(trained, MicrobatchTree(plan.microbatches, plan.ranks),
                                       plan.ranks);
  if (plan.sharing == MemorySharing::zero_stage_2 || (!has_pool(plan) && !shared_parameters))
    return bytes;
  for (const auto& [name, tensor] : trained)
    if (has_pool(plan) || !is_large_gradient(tensor.nbytes())) bytes += padded(tensor.nbytes());
  return bytes;
}

// Gradients outside the buckets and the pool, on a rank that steps `stepped` bytes.
std::size_t bytes_of_gradients(const NamedTensors& trained, std::size_t stepped,
                               const MemoryPlan& plan) {
  if (shares_parameters(plan.sharing) || plan.microbatches > 0) return 0;
  if (plan.sharing == MemorySharing::zero_stage_2 || plan.ranks == 1) return stepped;
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : trained)
    if (!plan.gradient_as_bucket_view && !is_large_gradient(tensor.nbytes()))
      bytes += tensor.nbytes();
  return bytes;
}

// Autograd sums the gradients of a parameter with several names. A large sum is outside the pool.
std::size_t bytes_beside_pool(const NamedTensors& parameters, const MemoryPlan& plan) {
  const bool keeps_gradients =
      plan.sharing == MemorySharing::none || plan.sharing == MemorySharing::zero_stage_1;
  if (!has_pool(plan) || !keeps_gradients) return 0;
  std::map<const void*, int> names;
  std::size_t bytes = 0;
  for (const auto& [name, parameter] : parameters)
    if (parameter.requires_grad() && is_large_gradient(parameter.nbytes()) &&
        ++names[parameter.unsafeGetTensorImpl()] == 2)
      bytes += parameter.nbytes();
  return bytes;
}

// Parameter bytes that each rank steps.
std::vector<std::size_t> stepped_bytes(const Tensors& tensors, MemorySharing sharing,
                                       std::size_t ranks) {
  const std::size_t all = bytes_of(tensors);
  std::vector<std::size_t> bytes(ranks, all);
  if (sharing == MemorySharing::none) return bytes;
  if (shares_parameters(sharing)) {
    for (std::size_t r = 0; r < ranks; ++r) bytes[r] = all * (r + 1) / ranks - all * r / ranks;
    return bytes;
  }
  const auto parts =
      partition_parameters({torch::optim::OptimizerParamGroup(tensors)}, static_cast<int>(ranks));
  std::fill(bytes.begin(), bytes.end(), 0);
  for (std::size_t r = 0; r < ranks; ++r)
    for (const std::size_t i : parts[r]) bytes[r] += tensors[i].nbytes();
  return bytes;
}

}  // namespace

MemoryTable predict_memory(const torch::nn::Module& module, const MemoryPlan& plan) {
  require(plan.ranks > 0, "predict_memory: the number of ranks must be positive");
  require(plan.state_tensors >= 0, "predict_memory: the number of state tensors is negative");
  const auto ranks = static_cast<std::size_t>(plan.ranks);
  const NamedTensors parameters = named_parameters(module);
  require(plan.microbatches >= 0 && plan.microbatches % plan.ranks == 0,
          "predict_memory: the number of microbatches must be a multiple of the number of ranks");
  const NamedTensors stepped_ones = trained_parameters(parameters);
  const NamedTensors bucketed_ones = without_experts(stepped_ones, module);
  const Tensors tensors = tensors_of(stepped_ones);
  const std::size_t beside_buckets = bytes_of(tensors) - bytes_of(tensors_of(bucketed_ones));

  MemoryTable table;
  MemoryParts each{.parameters = bytes_of_storages(parameters),
                   .buckets = bytes_of_buckets(bucketed_ones, plan)};
  for (const std::size_t stepped : stepped_bytes(tensors, plan.sharing, ranks)) {
    each.gradients = bytes_of_gradients(bucketed_ones, stepped, plan) +
                     bytes_beside_pool(parameters, plan) + (has_pool(plan) ? beside_buckets : 0);
    each.optimizer_state = stepped * static_cast<std::size_t>(plan.state_tensors);
    table.ranks.push_back(each);
    table.host.gradients += each.gradients;
    table.host.optimizer_state += each.optimizer_state;
  }
  table.host.parameters = each.parameters * (shares_parameters(plan.sharing) ? 1 : ranks);
  table.host.buckets = each.buckets * ranks;
  return table;
}

}  // namespace lockstep
