// The same module on every rank, kept equal by averaging gradients in backward().
//
//   auto net = std::make_shared<Net>();                     // any module with a forward()
//   lockstep::DistributedDataParallel ddp(net, world);      // everybody has rank 0's weights now
//   auto loss = torch::nll_loss(ddp(batch.data), batch.target);
//   loss.backward();                                        // gradients are averages over ranks
//
// Semantics are those of torch.nn.parallel.DistributedDataParallel 2.13: parameters and buffers
// are broadcast from rank 0 when it is made, buffers again before forward(), gradients become their
// mean over the ranks, and buckets are PyTorch's. Parameter names gain
// no prefix: the module stays the user's own, and may be called directly when nothing is to be
// synchronised, in an evaluation say. After backward() `.grad` may lie in memory of this class,
// which lives as long as the tensor does; large gradients are made there by an allocator that
// stands before LibTorch's own in the whole process (in the sources,
// lockstep/parallel/gradients/gradient_pool.h).
//
// Every backward() that reaches the module's parameters, after a forward() that was not under
// no_sync(), is averaged: on all ranks the same number of times. autograd::grad() with respect to
// other tensors is none, nor is one while all of them are frozen, as a GAN's discriminator in its
// generator's step. Every parameter that requires a
// gradient must take part in it, unless the options allow otherwise.
//
// Complex parameters are averaged as pairs of reals: a communication hook sees their buckets as
// such.
//
// Two modules may have parameters in common, as two heads on one encoder do, and a
// DistributedDataParallel each. Their gradients are then averaged once, in one backward() over both
// losses or in one after the other. All ranks call the two forward()s in the same order. Options of
// both are without share_parameters, deterministic and GradientMean::over_samples, and
// shard_gradients() and join() are unsupported: make one of a module that holds both.
//
// CUDA: parameters may be in the memory of this rank's CUDA device, local_device(), all of them:
// then gradients are copied into buckets there and reduced in the order of the thread's current
// stream, or with overlap, the default with several ranks, on a stream of LibTorch's pool, which
// that of backward() waits for. backward() waits for the device once, to learn whether gradients
// are finite; not at all with NonFinite::ignore. Not done there: share_parameters, deterministic,
// shard_gradients(), SyncBatchNorm. Tested with a stand-in for the device, and not run on one yet.
//
// Thread safety: none; one training loop uses it.
// Errors: mismatch when the ranks' modules or options differ; unsupported for sparse gradients,
// for types that cannot be averaged and for gradients on several devices; those of ProcessGroup.
// backward() throws on all ranks: misuse, with the parameters' names, when some had no part in the
// loss; corrupt for gradients that are not finite, see NonFinite. All gradients are undefined then.
//
// Exceptions of others in backward(), a gradient hook's say: on the rank that throws, it leaves
// backward() once the other ranks have come to the end of theirs. These throw Error(aborted) with
// its text. All ranks have dropped the pass, and may go on. Ranks that do not come within 5 s may
// wait elsewhere for this one: the group is then given up, with that text. An exception before
// backward() has reached an output of forward(), and one on a CUDA device, becomes known when its
// rank ends.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/parallel/replicate/data_parallel_base.h"
#include "lockstep/parallel/replicate/forward_outputs.h"

namespace lockstep {

template <class Module>
class DistributedDataParallel : public DataParallelBase {
 public:
  // Collective.
  DistributedDataParallel(std::shared_ptr<Module> module, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DataParallelBase(module, group, options), module_(std::move(module)) {}

  // Takes what TORCH_MODULE makes, torch::nn::Sequential among them.
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), group, options) {}

  // The module's own forward(), whatever it takes and returns.
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    before_forward();
    using Output = decltype(module_->forward(std::forward<Arguments>(arguments)...));
    if constexpr (std::is_void_v<Output>) {
      module_->forward(std::forward<Arguments>(arguments)...);
    } else {
      Output output = module_->forward(std::forward<Arguments>(arguments)...);
      auto visit = [this](const at::Tensor& tensor) { watch(tensor); };
      visit_tensors(output, visit);
      return output;
    }
  }

  const std::shared_ptr<Module>& module() const { return module_; }

 private:
  const std::shared_ptr<Module> module_;
};

}  // namespace lockstep
