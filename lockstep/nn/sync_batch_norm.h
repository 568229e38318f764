// Batch normalisation with statistics over the batches of all ranks.
//
//   torch::nn::Sequential net(Conv2d(...), lockstep::SyncBatchNorm(64), ReLU(), ...);
//   lockstep::convert_sync_batchnorm(*net, world);  // Before DistributedDataParallel.
//
// As torch.nn.SyncBatchNorm 2.13: outputs, running statistics and input gradients equal those of
// BatchNorm on the batches of all ranks. Gradients of weight and bias are this rank's part of the
// sum. Plain batch norm without a group, with one rank and in evaluation. BatchNorm and
// SyncBatchNorm can load each other's checkpoints.
//
// Input: [N, C] to [N, C, D, H, W], in CPU memory. N (also 0) and the sizes after C may differ
// between ranks. The type is that of the weights, or float16 or bfloat16 with float32 weights.
//
// In training, all ranks call the same layers in the same order, and backward() equally often: a
// rank without data continues with empty batches.
//
// Blocking: in training, forward() waits in an all_gather of 2 C + 1 numbers. backward() waits in
// an all_reduce of 2 C numbers, unless the input needs no gradient.
// Errors: misuse for other inputs, and if all ranks together have one value per channel.
// Unsupported for create_graph and GPUs. Also ProcessGroup's, such as mismatch for other layers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

class LOCKSTEP_API SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_norm,
                             std::optional<ProcessGroup> group = {});

  torch::Tensor forward(const torch::Tensor& input);

  const std::optional<ProcessGroup>& group() const { return group_; }

  // The constructor's.
  bool has_own_group() const { return has_own_group_; }

  // From now on. `name` identifies this layer's collectives.
  void synchronize(const ProcessGroup& group, std::string name);

  // Takes over a BatchNorm's tensors: the same parameters, so optimizers stay valid, and buffers
  // that share memory. Requires equal options.
  struct State {
    torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  };
  void share(const State& state);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  double next_momentum();
  torch::Tensor plain(const torch::Tensor& input);
  torch::Tensor synchronized(const torch::Tensor& input);

  std::optional<ProcessGroup> group_;
  bool has_own_group_;
  std::string name_ = "SyncBatchNorm";
};

TORCH_MODULE(SyncBatchNorm);

// Synchronises every lockstep::SyncBatchNorm in `module`, itself included, over `group`, unless the
// layer was created with a group. Replaces every BatchNorm1d, 2d and 3d in a torch::nn::Sequential,
// at any depth, by a SyncBatchNorm with the same options, mode and tensors. A handle to a replaced
// module remains a plain BatchNorm. Not collective, but all ranks must call it before they create
// DistributedDataParallel.
//
// Errors: unsupported, before any change, naming all batch norms that cannot be replaced. These are
// `module` itself, typed members, elements of a ModuleList or ModuleDict, derived classes, and
// layers of a script.
LOCKSTEP_API void convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group);

}  // namespace lockstep
