// Stage 1 of ZeRO: each rank keeps the optimizer's state of some parameters, instead of every rank
// all.
//
//   lockstep::ZeroRedundancyOptimizer<torch::optim::Adam> adam(net->parameters(), world,
//                                                              torch::optim::AdamOptions(1e-3));
//   ...
//   loss.backward();  // Gradients are the same on all ranks: DistributedDataParallel's.
//   adam.step();      // Weights are the plain optimizer's, bit for bit.
//
// State takes 1 / world.size() of the memory, as nearly as whole parameters allow, and stepping so
// much of the time; then every rank broadcasts the parameters that it has stepped, which is as many
// bytes as all of them are. Semantics are those of torch.distributed.optim.ZeroRedundancyOptimizer.
//
// Thread safety, Errors: as ShardedOptimizer's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep {

// Of each rank, the indices of its parameters, counted over all groups, in the order in which it
// got them: PyTorch's (zero_redundancy_optimizer.py, _partition_parameters). In each group, the
// largest first, each goes to the rank that has the fewest elements so far, the first of these on
// ties.
LOCKSTEP_API std::vector<std::vector<std::size_t>> partition_parameters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, int ranks);

// What ZeroRedundancyOptimizer is whatever the type of its optimizer.
class LOCKSTEP_API WholeParameterOptimizer : public ShardedOptimizer {
 public:
  // By rank, as partition_parameters() has it.
  const std::vector<std::vector<std::size_t>>& partition() const { return partition_; }

  // The rank that steps it. Errors: misuse for a tensor that is none of the parameters.
  int owner(const at::Tensor& parameter) const;

 protected:
  WholeParameterOptimizer(const Groups& groups,
                          std::unique_ptr<torch::optim::OptimizerOptions> defaults, Make make,
                          const ProcessGroup& group);

 private:
  void after_step() override;

  const std::vector<std::vector<std::size_t>> partition_;
};

// `Plain` is constructible from param groups and `Options`, its own type of them. It is not called
// Optimizer, which here is the base class.
template <std::derived_from<torch::optim::Optimizer> Plain>
class ZeroRedundancyOptimizer : public WholeParameterOptimizer {
 public:
  // Collective.
  template <std::derived_from<torch::optim::OptimizerOptions> Options>
  ZeroRedundancyOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          const ProcessGroup& group, const Options& defaults)
      : WholeParameterOptimizer(
            groups, std::make_unique<Options>(defaults),
            [defaults](const Groups& some) { return std::make_unique<Plain>(some, defaults); },
            group) {}

  template <std::derived_from<torch::optim::OptimizerOptions> Options>
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, const ProcessGroup& group,
                          const Options& defaults)
      : ZeroRedundancyOptimizer(
            std::vector{torch::optim::OptimizerParamGroup(std::move(parameters))}, group,
            defaults) {}
};

}  // namespace lockstep
