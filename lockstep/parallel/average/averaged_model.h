// Averages of a model's weights over the steps of its training, which often generalise better than
// the weights themselves: exponential (EMA), or with equal weights (SWA).
//
//   lockstep::AveragedModel ema(ddp, lockstep::ema(0.999));
//   ...
//   adam.step();
//   ema.update();
//   ...
//   ema.with_averages([&] { evaluate(ddp); });
//
// Averages equal those of torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn() or
// get_swa_multi_avg_fn(), bit for bit, where a rank has whole parameters. The first update copies
// the weights. A tied weight is averaged once.
//
// With share_parameters and FullyShardedDataParallel each rank keeps the averages of its own parts,
// 1 / world.size() of the memory, and update() sends nothing; some averages then differ from the
// above in the last bit. With masters (param_type) these are averaged.
//
// Lifetime: the model outlives this. Thread safety: none; one training loop uses it.
// Errors: misuse for a decay outside of [0, 1], for parameters that ranks share without their
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

// How an average moves towards the weights.
struct AveragingRule {
  std::optional<double> decay = {};  // Share of the old average; empty for equal weights.
};

// average = decay * average + (1 - decay) * weights
LOCKSTEP_API AveragingRule ema(double decay = 0.999);

// The mean of the weights at all updates.
LOCKSTEP_API AveragingRule swa();

struct AveragedModelOptions {
  // Whether buffers are averaged, too, such as the running statistics of BatchNorm. Otherwise they
  // are the model's at the last update. Integers are rounded down with ema(), copied with swa().
  bool use_buffers = false;
};

// Saved as a part of a checkpoint: TrainingState::add("ema", ema). Tensors have the names of the
// model's, and any number of ranks can load them.
class LOCKSTEP_API AveragedModel final : public Stateful {
 public:
  AveragedModel(DataParallelBase& ddp, const AveragingRule& rule,
                const AveragedModelOptions& options = {});
  AveragedModel(const torch::nn::Module& module, const AveragingRule& rule,
                const AveragedModelOptions& options = {});
  ~AveragedModel() override;

  // Call after the optimizer's step. Not collective.
  void update();

  // Runs `use` while the model's weights and buffers are the averages, then gives it back its own.
  // Values that `use` has written to buffers, as update_bn() does, stay with the averages.
  // Collective where ranks share parameters: if `use` throws on one rank, all ranks throw, the
  // others Error(aborted) with its text.
  // An exception is thrown once the model has its weights again. If the group has broken by then,
  // because a rank was lost or others were in a collective of `use`, each rank has put back its own
  // parts only: shared weights are torn (DistributedDataParallel::has_torn_parameters()).
  void with_averages(const std::function<void()>& use);

  // The model's weights and buffers become the averages, for good. Collective as with_averages().
  void apply();

  // Number of updates so far.
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
  bool lent_ = false;  // The model has the averages, and each Average its weights.
};

// Gives every BatchNorm of `module`, also SyncBatchNorm, the statistics of the data on which
// `pass_over_data` calls forward(): the mean over batches, as torch.optim.swa_utils.update_bn. The
// module is in training mode and gradients are off meanwhile.
//   ema.with_averages([&] {
//     lockstep::update_bn(*net, [&] { for (auto& b : loader) net->forward(b.data); }, world);
//   });
// With a `group` the statistics are those of all ranks' batches; then collective. Ranks may have
// unequal numbers of batches, also none, as long as forward() does not communicate: call that of
// the module, not DistributedDataParallel's, which may broadcast buffers. SyncBatchNorm and weights
// that FullyShardedDataParallel gathers need equal numbers.
// Errors: unsupported for a TorchScript module with BatchNorm.
LOCKSTEP_API void update_bn(torch::nn::Module& module, const std::function<void()>& pass_over_data,
                            const std::optional<ProcessGroup>& group = {});

}  // namespace lockstep
