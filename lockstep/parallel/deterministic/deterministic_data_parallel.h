// Data parallel training whose weights have the same bits on every number of ranks.
//
//   lockstep::DeterministicDataParallel ddp(net, world, {.microbatches = 8});
//   ddp.train_microbatches(step, loss_of_microbatch);  // Instead of loss.backward().
//
// Sums gradients of microbatches in a fixed order (docs/guide/shared-parameters.md). Passes do not
// broadcast buffers and may not change them. CPU memory only.
// Thread safety: none.
// Errors: as DistributedDataParallel's. Also misuse if the number of ranks does not divide
// `microbatches`, or ranks do not compute with `threads` intra-op threads. unsupported for sparse
// gradients, experts, and parameters of a DistributedDataParallel.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/script_module.h"

namespace lockstep::parallel {

class DeterministicPass;

}  // namespace lockstep::parallel

namespace lockstep {

// A microbatch of the global batch.
//
// Rank p mod R of R ranks computes microbatch p of k. Rank r must have the samples r, r + R, r + 2R
// and so on, as from DistributedSampler. Microbatch p then has the samples p, p + k, p + 2k and so
// on, on every number of ranks.
struct GlobalMicrobatch {
  int index;  // From 0, over all ranks.
  int count;
  int ranks;

  // This microbatch's part of `rows`, the rank's samples along dim 0: `rows` itself or a copy. The
  // layout, on which kernels' bits may depend, is equal on every number of ranks.
  // Errors: misuse if the rank's microbatches would have unequal numbers of rows.
  LOCKSTEP_API at::Tensor of(const at::Tensor& rows) const;
};

// A microbatch's loss: the mean over its samples or, with GradientMean::over_samples, the sum.
using MicrobatchLoss = std::function<at::Tensor(const GlobalMicrobatch& microbatch)>;

using Piece [[deprecated("renamed to GlobalMicrobatch")]] = GlobalMicrobatch;
using PieceLoss [[deprecated("renamed to MicrobatchLoss")]] = MicrobatchLoss;

struct DeterministicOptions {
  // Microbatches of a step's global batch. The bits are the same on every number of ranks that
  // divides it. More, smaller microbatches take longer.
  int microbatches = 0;

  // Intra-op threads, which every rank sets by torch::set_num_threads(). The bits depend on them.
  // Several need setDeterministicAlgorithms().
  int threads = 1;

  // For random numbers, as of dropout.
  std::uint64_t seed = 0;

  // As DistributedDataParallelOptions'.
  bool share_parameters = false;
  bool find_unused_parameters = false;
  GradientMean mean = GradientMean::over_ranks;
  NonFinite non_finite = NonFinite::fail;
};

class LOCKSTEP_API DeterministicBase : public DataParallelBase {
 public:
  // Collective: the passes of one step. Calls `loss_of` for each of this rank's microbatches, and
  // backward() on the result. Each `.grad` becomes the mean over the microbatches, or samples
  // (GradientMean), of all ranks. Returns the mean loss. Both have the same bits on every number of
  // ranks. backward() outside of this call is misuse.
  // `step` counts the steps of the whole training, also after a resumption, and determines random
  // numbers. With GradientMean::over_samples, `loss_of` must call count_samples().
  // Errors: those of backward(). unsupported, with its name, for a BatchNorm or InstanceNorm that
  // would update running statistics, a SyncBatchNorm in training mode, and a tensor that `loss_of`
  // changes. misuse if the number of intra-op threads has changed. mismatch if ranks are in
  // different steps. After an Error, all gradients are undefined.
  double train_microbatches(std::int64_t step, const MicrobatchLoss& loss_of);

  int microbatches() const;
  std::vector<at::Tensor> microbatch_memory() const;  // Sums of gradients.

 protected:
  // Collective.
  DeterministicBase(const std::shared_ptr<torch::nn::Module>& module, const ProcessGroup& group,
                    const DeterministicOptions& options);
  ~DeterministicBase() override;

 private:
  const std::unique_ptr<parallel::DeterministicPass> pass_;
};

template <class Module>
class DeterministicDataParallel : public DeterministicBase {
 public:
  // Collective: all ranks get rank 0's parameters and buffers.
  DeterministicDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                            const DeterministicOptions& options)
      : DeterministicBase(module, group, options), module_(std::move(module)) {}

  DeterministicDataParallel(const torch::nn::ModuleHolder<Module>& holder,
                            const ProcessGroup& group, const DeterministicOptions& options)
      : DeterministicDataParallel(holder.ptr(), group, options) {}

  DeterministicDataParallel(const torch::jit::Module& script, const ProcessGroup& group,
                            const DeterministicOptions& options)
    requires std::same_as<Module, ScriptModule>
      : DeterministicDataParallel(std::make_shared<ScriptModule>(script), group, options) {}

  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return call(*module_, std::forward<Arguments>(arguments)...);
  }

  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  const std::shared_ptr<Module> module_;
};

DeterministicDataParallel(const torch::jit::Module& script, const ProcessGroup& group,
                          const DeterministicOptions& options)
    -> DeterministicDataParallel<ScriptModule>;

// train_microbatches() returns the mean loss.
std::function<at::Tensor()> average_loss(DeterministicBase& ddp,
                                         std::function<at::Tensor()> closure) = delete;

}  // namespace lockstep
