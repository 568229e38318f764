// The optimizer for share_parameters, on one host, and for FullyShardedDataParallel.
//
//   lockstep::DistributedDataParallel ddp(net, world, {.share_parameters = true});
//   lockstep::SharedOptimizer<lockstep::Adam> adam(ddp, net->parameters(),
//                                                  torch::optim::AdamOptions(1e-3));
//
// Each rank owns a slice, 1 / world.size() of the parameters. step() averages the slice's gradients
// over all ranks, unless backward() has, and steps the slice (docs/guide/shared-parameters.md).
//
// Thread safety: none.
// Errors: as ShardedOptimizer's. misuse without share_parameters, and in step() after a shared
// parameter was moved or written outside edit_parameters(). mismatch in the constructor if ranks'
// options differ. unsupported for LARS
// and LAMB with DeterministicDataParallel: the order of summing squares depends on the number of
// ranks. If a rank is lost in step(), weights may be partially updated
// (DistributedDataParallel::has_partially_updated_parameters()).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"

namespace lockstep::parallel {

class ParameterStore;
class SteppedSlices;

}  // namespace lockstep::parallel

namespace lockstep {

class LOCKSTEP_API SharedOptimizerBase : public ShardedOptimizer {
 public:
  ~SharedOptimizerBase() override;

  // As the plain optimizer's. Also drops the means of clip_grad_norm_() and of
  // FullyShardedDataParallel's backward().
  void zero_grad(bool set_to_none = true);

  // Into which small gradients are copied for summing.
  std::vector<at::Tensor> gradient_memory() const;

 protected:
  // `is_layerwise`: needs norms of whole parameters.
  SharedOptimizerBase(const DataParallelBase& ddp, const Groups& groups,
                      std::unique_ptr<torch::optim::OptimizerOptions> defaults, Make make,
                      bool is_layerwise);

 private:
  void before_step(bool have_met) override;
  void after_step() override;
  void make_gradients() override;
  double gradient_norm(double norm_type) override;
  std::vector<at::Tensor> tensors_with_gradients() override;
  bool has_gradients_apart() const override { return !are_means_; }
  void omit_step() override;
  void average();

  const bool are_means_;  // Whether `.grad` is already the mean over all ranks.
  const std::shared_ptr<parallel::ParameterStore> parameters_;
  std::shared_ptr<parallel::SteppedSlices> slices_;
};

// `Inner` gets fragments of parameters, so it must step each element separately (is_elementwise,
// optimizers.h), or only need norms of whole parameters (layerwise.h).
//
// With DistributedDataParallel, `.grad` is this rank's own gradient: torch's clip_grad_norm_()
// would be wrong. step() and this clip_grad_norm_() reset it. With DeterministicDataParallel,
// `.grad` is the mean. A parameter that has a gradient on no rank is not stepped.
//
// If the number of ranks is a power of two, weights equal the plain optimizer's bit for bit. Only
// clipping, LARS and LAMB may differ: norms are summed in another order.
template <std::derived_from<torch::optim::Optimizer> Inner>
  requires is_elementwise<Inner> || std::derived_from<Inner, LayerwiseOptimizer>
class SharedOptimizer : public SharedOptimizerBase {
 public:
  // Collective. All parameters belong to `ddp`'s module.
  template <std::derived_from<torch::optim::OptimizerOptions> Options>
  SharedOptimizer(const DataParallelBase& ddp,
                  const std::vector<torch::optim::OptimizerParamGroup>& groups,
                  const Options& defaults)
      : SharedOptimizerBase(
            ddp, groups, std::make_unique<Options>(defaults),
            [defaults](const Groups& some) { return std::make_unique<Inner>(some, defaults); },
            std::derived_from<Inner, LayerwiseOptimizer>) {}

  template <std::derived_from<torch::optim::OptimizerOptions> Options>
  SharedOptimizer(const DataParallelBase& ddp, std::vector<at::Tensor> parameters,
                  const Options& defaults)
      : SharedOptimizer(ddp, std::vector{torch::optim::OptimizerParamGroup(std::move(parameters))},
                        defaults) {}
};

}  // namespace lockstep
