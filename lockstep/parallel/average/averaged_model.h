// Averages of a model's weights over training steps: exponential (EMA), or with equal weights
// (SWA). They often generalise better than the weights themselves.
//
//   lockstep::AveragedModel ema(ddp, lockstep::ema(0.999));
//   ...
//   adam.step();
//   ema.update();
//   ...
//   ema.with_averages([&] { evaluate(ddp); });
//
// Where a rank has whole parameters, averages equal those of torch.optim.swa_utils.AveragedModel
// with get_ema_multi_avg_fn() or get_swa_multi_avg_fn(), bit for bit. The first update copies the
// weights. A tied weight is averaged once. With share_parameters and FullyShardedDataParallel each
// rank keeps the averages of its own parts, 1 / world.size() of the memory, and update() sends
// nothing. Some averages then differ in the last bit. With param_type, the masters are averaged.
//
// Lifetime: the model outlives this object. Thread safety: none; one training loop uses it.
// Errors: misuse for a decay outside of [0, 1], for shared parameters without their
// DistributedDataParallel, and for update() and apply() within with_averages(); those of
// ProcessGroup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/state.h"

namespace lockstep::parallel {

class HeldTensors;

}  // namespace lockstep::parallel

namespace lockstep {

// The rule by which an average follows the weights.
struct AveragingRule {
  std::optional<double> decay = {};  // Share of the old average; empty for equal weights.
};

// average = decay * average + (1 - decay) * weights
LOCKSTEP_API AveragingRule ema(double decay = 0.999);

// The mean of the weights at all updates.
LOCKSTEP_API AveragingRule swa();

struct AveragedModelOptions {
  // Whether buffers are averaged too, such as the running statistics of BatchNorm. Otherwise they
  // are the model's at the last update. Averages of integers are rounded down with ema(); swa()
  // copies integers.
  bool use_buffers = false;
};

// Saved as a part of a checkpoint: TrainingState::add("ema", ema). Tensors have the model's names,
// and any number of ranks can load them.
class LOCKSTEP_API AveragedModel final : public Stateful {
 public:
  AveragedModel(DataParallelBase& ddp, const AveragingRule& rule,
                const AveragedModelOptions& options = {});
  AveragedModel(const torch::nn::Module& module, const AveragingRule& rule,
                const AveragedModelOptions& options = {});
  ~AveragedModel() override;

  // Call it after the optimizer's step. Not collective.
  void update();

  // Runs `use` while the model's weights and buffers are the averages, then restores its own.
  // Values that `use` writes to buffers, as update_bn() does, remain in the averages. Collective if
  // ranks share parameters: if `use` throws on one rank, the other ranks throw Error(aborted) with
  // its text.
  // Exceptions are thrown after the weights are restored. The group may have broken by then,
  // because a rank was lost or others were in a collective of `use`. Then each rank restores only
  // its own parts. Shared weights are then partially updated
  // (DistributedDataParallel::has_partially_updated_parameters()).
  void with_averages(const std::function<void()>& use);

  // Replaces the model's weights and buffers by the averages permanently. Collective as
  // with_averages().
  void apply();

  std::int64_t updates() const { return updates_; }

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  // A tensor of the model and its average, of the same type and layout.
  struct Average {
    std::string name;
    at::Tensor value;
    StateTensor current;
  };

  AveragedModel(const torch::nn::Module& module, std::unique_ptr<parallel::HeldTensors> held,
                const AveragingRule& rule, const AveragedModelOptions& options);
  void average(const std::vector<Average>& tensors) const;
  void swap_held();
  void exchange();
  void require_own_weights(const char* call) const;

  const torch::nn::Module& module_;
  const std::unique_ptr<parallel::HeldTensors> held_;
  const AveragingRule rule_;
  const AveragedModelOptions options_;
  std::vector<Average> parameters_;  // Those that this rank holds.
  std::vector<Average> buffers_;
  std::int64_t updates_ = 0;
  bool is_swapped_in_ =
      false;  // True while the model has the averages, and each Average its weights.
};

// Sets the statistics of every BatchNorm of `module`, including SyncBatchNorm, to the mean over the
// batches on which `pass_over_data` calls forward(), as torch.optim.swa_utils.update_bn. Meanwhile
// the module is in training mode and gradients are off.
//   ema.with_averages([&] {
//     lockstep::update_bn(*net, [&] { for (auto& b : loader) net->forward(b.data); }, world);
//   });
// With a `group` the call is collective, and statistics are those of all ranks' batches. Ranks may
// have unequal numbers of batches, or none, if forward() does not communicate. Call the module's
// forward(), because DistributedDataParallel's may broadcast buffers. SyncBatchNorm and weights
// that FullyShardedDataParallel gathers need equal numbers.
// Errors: unsupported for a TorchScript module with BatchNorm.
LOCKSTEP_API void update_bn(torch::nn::Module& module, const std::function<void()>& pass_over_data,
                            const std::optional<ProcessGroup>& group = {});

}  // namespace lockstep
