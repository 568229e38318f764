// Stage 1 of ZeRO: each rank keeps optimizer state of some parameters.
//
//   lockstep::ZeroRedundancyOptimizer<torch::optim::Adam> adam(net->parameters(), world,
//                                                              torch::optim::AdamOptions(1e-3));
//   ...
//   loss.backward();  // Gradients must be equal on all ranks: DistributedDataParallel's are.
//   adam.step();      // Weights are the plain optimizer's, bit for bit.
//
// A rank needs about 1 / world.size() of the state's memory and the step's time; parameters are not
// split. At the end of step(), each rank broadcasts its parameters. Semantics are those of
// torch.distributed.optim.ZeroRedundancyOptimizer.
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

// By rank: indices of its parameters over all groups, in the order of assignment. The rule is
// PyTorch's (zero_redundancy_optimizer.py, _partition_parameters): each group is sorted by size,
// largest first. Each parameter goes to the rank with the fewest elements so far; on ties, to the
// lowest rank.
LOCKSTEP_API std::vector<std::vector<std::size_t>> partition_parameters(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, int ranks);

class LOCKSTEP_API WholeParameterOptimizer : public ShardedOptimizer {
 public:
  // As partition_parameters().
  const std::vector<std::vector<std::size_t>>& partition() const { return partition_; }

  // The rank that steps `parameter`. Errors: misuse for other tensors.
  int owner(const at::Tensor& parameter) const;

 protected:
  WholeParameterOptimizer(const Groups& groups,
                          std::unique_ptr<torch::optim::OptimizerOptions> defaults, Make make,
                          const ProcessGroup& group);

 private:
  friend class DistributedDataParallelBase;

  void after_step() override;
  bool has_gradients_apart() const override { return has_gradients_apart_; }

  const std::vector<std::vector<std::size_t>> partition_;
  bool has_gradients_apart_ = false;
};

// `Plain` is constructible from param groups and its `Options`. The name Optimizer would hide the
// base class.
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
