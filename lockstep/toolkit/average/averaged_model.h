// Averages of weights: exponential (EMA), or equal weights (SWA). Program:
// docs/guide/large-batches.md.
//
//   lockstep::AveragedModel ema(ddp, lockstep::ema(0.999));
//   ema.update();  // After each adam.step().
//   ema.with_averages([&] { evaluate(ddp); });
//
// If ranks do not share parameters, averages equal those of torch.optim.swa_utils.AveragedModel
// with get_ema_multi_avg_fn() or get_swa_multi_avg_fn(), bit for bit. The first update copies the
// weights. If ranks share parameters, each averages its own parts, some of which differ from
// PyTorch's in the last bit. With FullyShardedOptions::param_type, float32 masters are averaged.
//
// Lifetime: the model outlives this object. Thread safety: none.
// Errors: misuse for a decay outside of [0, 1], for shared parameters without their
// DistributedDataParallel, and, within with_averages(), for this object's calls except updates().
// Also ProcessGroup's.

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

namespace lockstep {

class HeldTensors;

struct AveragingRule {
  std::optional<double> decay = {};  // Share of the old average; empty: equal weights.
};

// average = decay * average + (1 - decay) * weights
LOCKSTEP_API AveragingRule ema(double decay = 0.999);

// The mean of the weights at all updates.
LOCKSTEP_API AveragingRule swa();

struct AveragedModelOptions {
  // Whether buffers are averaged. Otherwise they are the model's at the last update. ema()
  // truncates averages of integers; swa() copies integers.
  bool use_buffers = false;
};

// TrainingState::add("ema", ema) saves it, for any number of ranks.
class LOCKSTEP_API AveragedModel final : public Stateful {
 public:
  AveragedModel(DataParallelBase& ddp, const AveragingRule& rule,
                const AveragedModelOptions& options = {});
  AveragedModel(const torch::nn::Module& module, const AveragingRule& rule,
                const AveragedModelOptions& options = {});
  ~AveragedModel() override;

  // Not collective.
  void update();

  // Runs `use` while the model has the averages, then restores its weights and buffers, also after
  // an exception. Values that `use` writes to buffers remain in the averages. Collective if ranks
  // share parameters: if `use` throws on one rank, the others throw Error(aborted) with its text.
  // The group breaks if a rank is lost, or throws while others are in a collective of `use`. Ranks
  // then restore only their own parts: shared weights are partially updated
  // (DistributedDataParallel::has_partially_updated_parameters()).
  void with_averages(const std::function<void()>& use);

  // Replaces weights and buffers by the averages. Collective as with_averages().
  void apply();

  std::int64_t updates() const { return updates_; }

  StateDict state_dict() override;
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 private:
  struct Average {
    std::string name;
    at::Tensor value;
    StateTensor current;
  };

  AveragedModel(const torch::nn::Module& module, std::unique_ptr<HeldTensors> held,
                const AveragingRule& rule, const AveragedModelOptions& options);
  void average(const std::vector<Average>& tensors) const;
  void swap_held();
  void exchange();
  void require_own_weights(const char* call) const;

  const torch::nn::Module& module_;
  const std::unique_ptr<HeldTensors> held_;
  const AveragingRule rule_;
  const AveragedModelOptions options_;
  std::vector<Average> parameters_;  // This rank's.
  std::vector<Average> buffers_;
  std::int64_t updates_ = 0;
  bool is_swapped_in_ = false;  // The model has the averages.
};

// Sets the statistics of every BatchNorm of `module`, including SyncBatchNorm, as
// torch.optim.swa_utils.update_bn does. They become means over the batches on which
// `pass_over_data` calls forward(), in training mode without gradients. Collective:
// statistics are those of all ranks' batches. Call the module's forward(), because
// DistributedDataParallel's may broadcast buffers. Ranks may have unequal numbers of batches, or
// none, unless SyncBatchNorm or FullyShardedDataParallel communicates.
// Errors: unsupported for a TorchScript module with BatchNorm.
LOCKSTEP_API void update_bn(torch::nn::Module& module, const std::function<void()>& pass_over_data,
                            const ProcessGroup& group);
[[deprecated("pass a group")]] inline void update_bn(torch::nn::Module& module,
                                                     const std::function<void()>& pass_over_data) {
  update_bn(module, pass_over_data, ProcessGroup::self());
}

}  // namespace lockstep
