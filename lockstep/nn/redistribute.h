// Activations that change their placement between modules: PyTorch's PrepareModuleInput and
// PrepareModuleOutput with local tensors. LibTorch's modules have no forward hooks, so a model
// calls the function, or has a layer there.
//
//   struct Block : torch::nn::Module {                      // The layer does nothing until it is
//   cut:
//     torch::Tensor forward(const torch::Tensor& x) { return attention(prepare(x)); }
//     lockstep::nn::Redistribute prepare;
//   };
//   const lockstep::ParallelPlan plan = {
//       {"blocks.*.prepare", lockstep::Redistribution{.input = lockstep::sharded(1)}}};
//
//   from        to          forward      backward
//   replicated  sharded     own part     all_gather
//   sharded     replicated  all_gather   own part
//   sharded     sharded     all_to_all   all_to_all
//
// A gradient is placed as the activation is: whole on each rank, or its part. The layers that
// follow see to that.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/nn/parallel_layer.h"

namespace lockstep {

// Returns the activation whose placement is `from`, placed as `to` says. Returns `x` for equal
// placements. Parts are those of chunk_sizes().
// Blocking, Errors: as the collectives of tensor/differentiable.h.
LOCKSTEP_API at::Tensor redistribute(const at::Tensor& x, Placement from, Placement to,
                                     const ProcessGroup& group, const CallOptions& options = {});

namespace nn {

// redistribute() between the placements of a Redistribution, and the identity before it is cut. Has
// no parameters.
class LOCKSTEP_API RedistributeImpl : public torch::nn::Cloneable<RedistributeImpl>,
                                      public ParallelLayer {
 public:
  void reset() override {}
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor forward(const torch::Tensor& input);

  std::string misfit(const ParallelStyle& style, int ranks) const override;
};
TORCH_MODULE(Redistribute);

}  // namespace nn
}  // namespace lockstep
