// Keeps the same module equal on every rank by averaging gradients in backward().
//
//   auto net = std::make_shared<Net>();                     // any module with a forward()
//   lockstep::DistributedDataParallel ddp(net, world);      // everybody has rank 0's weights now
//   auto loss = torch::nll_loss(ddp(batch.data), batch.target);
//   loss.backward();                                        // gradients are averages over ranks
//
// Semantics are those of torch.nn.parallel.DistributedDataParallel 2.13. Construction broadcasts
// parameters and buffers from rank 0; forward() broadcasts buffers again. Gradients become their
// mean over the ranks, and buckets are PyTorch's. Parameter names gain no prefix: the module stays
// the user's own. Call it directly where nothing is to be synchronised, for example in an
// evaluation.
// After backward(), `.grad` may lie in memory of this class, which lives as long as the tensor
// does. An allocator in front of LibTorch's own, for the whole process, makes large gradients there
// (lockstep/parallel/gradients/gradient_pool.h in the sources).
//
// Every backward() that reaches the module's parameters is averaged, unless its forward() was under
// no_sync(). All ranks must run equally many of them. Calls to autograd::grad() on other tensors,
// and passes where every parameter is frozen, are not averaged: for example a GAN's discriminator
// in its generator's step. Every parameter that requires a gradient must take part, unless the
// options allow otherwise.
//
// Complex parameters are averaged as pairs of reals; communication hooks see their buckets in that
// form.
//
// Two modules may share parameters, for example two heads on one encoder, and have a
// DistributedDataParallel each. Their gradients are averaged once, in one backward() over both
// losses or in one after the other. All ranks call the two forward()s in the same order. Neither
// may use share_parameters, deterministic or GradientMean::over_samples. shard_gradients() and
// join() are unsupported: use one DistributedDataParallel of a module that holds both.
//
// CUDA: all parameters may be in the memory of this rank's CUDA device, local_device(). Gradients
// are then copied into buckets there and reduced in the order of the thread's current stream. With
// overlap, the default for several ranks, a stream of LibTorch's pool reduces them, and
// backward()'s stream waits for it. backward() waits for the device once, to learn whether
// gradients are finite; with NonFinite::ignore it does not wait. Not supported there:
// share_parameters, deterministic, shard_gradients(), SyncBatchNorm. Tested with a stand-in for the
// device, and not run on one yet.
//
// Thread safety: none; one training loop uses it.
// Errors: mismatch if the ranks' modules or options differ; unsupported for sparse gradients, for
// types that cannot be averaged and for gradients on several devices; those of ProcessGroup.
// backward() throws on all ranks: misuse, with the parameters' names, if some had no part in the
// loss; corrupt for gradients that are not finite, see NonFinite. All gradients are undefined then.
//
// Foreign exceptions in backward(), for example from a gradient hook: on the throwing rank, the
// exception leaves backward() after the other ranks have reached the end of theirs. The others
// throw Error(aborted) with its text. All ranks drop the pass and may continue. If the other ranks
// do not arrive within 5 s, they may be waiting elsewhere for this one, and the group is aborted
// with that text. Two kinds of exception become known only when their rank ends: one before
// backward() has reached an output of forward(), and one on a CUDA device.

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

  // Takes the holders that TORCH_MODULE makes, including torch::nn::Sequential.
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder, const ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), group, options) {}

  // Calls the module's own forward(), with any arguments and result.
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
