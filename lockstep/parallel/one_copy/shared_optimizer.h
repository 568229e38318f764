// The optimizer of parameters that all ranks of a host share, one copy for all.
//
//   lockstep::DistributedDataParallel ddp(net, world, {.share_parameters = true});
//   lockstep::SharedOptimizer<lockstep::Adam> adam(ddp, net->parameters(),
//                                                  torch::optim::AdamOptions(1e-3));
//   ...
//   adam.zero_grad();
//   torch::nll_loss(ddp(batch.data), batch.target).backward();
//   adam.clip_grad_norm_(1.0);  // Not torch's own: `.grad` is not the mean yet.
//   adam.step();
//
// Each rank owns a slice of the parameters, 1 / world.size() of them. step() sums the slice of all
// ranks' gradients and steps the user's optimizer on it; the optimizer's state lies once on the
// host, too, and nothing is gathered afterwards. Weights are the plain optimizer's, bit for bit,
// where the number of ranks is a power of two; but after clipping, whose norm is summed in another
// order.
//
// After backward() `.grad` is this rank's own gradient, or the sum of those since zero_grad();
// after step() and clip_grad_norm_() it is undefined. What is averaged is what is in `.grad` when
// step() is called: parameters that have none on any rank are not stepped.
// Param groups, options, schedulers and archives are as ShardedOptimizer's.
//
// Thread safety: none; one training loop uses it.
// Errors: as ShardedOptimizer's; unsupported for an optimizer that is not elementwise
// (is_elementwise, optimizer_state.h); misuse without share_parameters, and when a shared parameter
// was written to by something else or given other memory; mismatch when options differ between
// ranks when it is made. A rank that is lost in step() leaves the weights torn: see
// DistributedDataParallel::has_torn_parameters().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/replicate/data_parallel_base.h"

namespace lockstep {

class GradientSlices;
class SharedParameters;

// Where the time of step() and clip_grad_norm_() went, on this rank and since the beginning.
struct StepTimes {
  std::chrono::nanoseconds wait{};    // For ranks that are slower.
  std::chrono::nanoseconds reduce{};  // Averaging gradients.
  std::chrono::nanoseconds step{};    // The optimizer itself.
};

// What SharedOptimizer is whatever the type of its optimizer.
class LOCKSTEP_API SharedOptimizerBase : public ShardedOptimizer {
 public:
  ~SharedOptimizerBase() override;

  // As the plain optimizer's; also forgets what clip_grad_norm_() has averaged, as the next
  // backward() does.
  void zero_grad(bool set_to_none = true);

  StepTimes step_times() const { return times_; }

  // Registered memory into which small gradients are copied to be summed.
  std::vector<at::Tensor> gradient_memory() const;

 protected:
  // Errors: unsupported, unless `elementwise`; misuse when `ddp` shares no parameters.
  SharedOptimizerBase(const DataParallelBase& ddp, const Groups& groups,
                      std::unique_ptr<torch::optim::OptimizerOptions> defaults, Make make,
                      bool elementwise);

 private:
  void before_step() override;
  void after_step() override;
  double gradient_norm(double norm_type) override;
  bool is_averaged() const;
  void average();
  void forget();

  const bool are_means_;  // Whether `.grad` is the mean over all ranks already.
  const std::shared_ptr<const std::int64_t> passes_;  // That `ddp` has averaged.
  const std::shared_ptr<SharedParameters> parameters_;
  const std::unique_ptr<const GradientSlices> slices_;
  std::optional<std::int64_t> averaged_in_;  // The last one in what fragments have now.
  std::vector<bool> used_;                   // Which parameters they are of.
  StepTimes times_;
  std::chrono::steady_clock::time_point step_began_;
};

template <std::derived_from<torch::optim::Optimizer> Inner>
class SharedOptimizer : public SharedOptimizerBase {
 public:
  // Collective. All parameters are among those of `ddp`'s module.
  template <std::derived_from<torch::optim::OptimizerOptions> Options>
  SharedOptimizer(const DataParallelBase& ddp,
                  const std::vector<torch::optim::OptimizerParamGroup>& groups,
                  const Options& defaults)
      : SharedOptimizerBase(
            ddp, groups, std::make_unique<Options>(defaults),
            [defaults](const Groups& some) { return std::make_unique<Inner>(some, defaults); },
            is_elementwise<Inner>) {}

  template <std::derived_from<torch::optim::OptimizerOptions> Options>
  SharedOptimizer(const DataParallelBase& ddp, std::vector<at::Tensor> parameters,
                  const Options& defaults)
      : SharedOptimizer(ddp, std::vector{torch::optim::OptimizerParamGroup(std::move(parameters))},
                        defaults) {}
};

}  // namespace lockstep
