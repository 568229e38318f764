// Batch normalisation whose statistics are those of all ranks' batches together.
//
//   torch::nn::Sequential net(Conv2d(...), lockstep::SyncBatchNorm(64), ReLU(), ...);
//   lockstep::convert_sync_batchnorm(*net, world);        // Gives every one of them the group.
//   lockstep::DistributedDataParallel ddp(net, world);
//
// Semantics are those of torch.nn.SyncBatchNorm 2.13, which has no CPU form: with N ranks, outputs,
// running statistics and the gradient of the input are what torch::nn::BatchNorm computes on the
// whole batch; gradients of weight and bias are this rank's part of the sum, which
// DistributedDataParallel averages. Without a group, with one rank and in evaluation it is plain
// batch norm. State names are BatchNorm's, so checkpoints fit either.
//
// Input: [N, C] to [N, C, D, H, W], as BatchNorm1d, 2d and 3d take, in CPU memory. Ranks' N and the
// rest may differ, N may be 0: such a rank takes part in forward() and backward() all the same. The
// type is the weights', or float16 or bfloat16 beside float32 weights.
//
// Every rank must call the same layers in the same order, in training mode, and run backward()
// through each as often as the others. A rank that has run out of data must go on with empty
// batches: no other means of joining uneven inputs knows of these collectives.
//
// Blocking: forward() in training until all ranks are in it, an all_gather of 2 C + 1 numbers;
// backward() likewise, an all_reduce of 2 C, unless the input needs no gradient.
// Errors: misuse when all ranks together have one value per channel; unsupported for backward()
// with create_graph; those of ProcessGroup, such as mismatch when ranks call different layers.

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

  // Whether it was made with a group, which convert_sync_batchnorm() then leaves alone.
  bool has_own_group() const { return has_own_group_; }

  // From now on training is synchronised over `group`. `name` tells this layer's collectives from
  // other layers': it goes into their tags, and into messages.
  void synchronize(const ProcessGroup& group, std::string name);

  // Takes the place of a BatchNorm that was made with the same options: the same parameters, so
  // that an optimizer that has them stays valid, and buffers in the same memory.
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

}  // namespace lockstep
