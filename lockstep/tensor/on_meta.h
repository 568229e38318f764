// Makes a module without memory for its tensors, also one that is larger than the memory.
//
//   const auto make = [&] { return std::make_shared<Gpt>(options); };
//   const auto gpt = lockstep::on_meta(make);  // Names, types and shapes, but no values.
//   lockstep::FullyShardedDataParallel fsdp(gpt, world, {.units = {"transformer.h.*"}});
//   fsdp.initialize(make);                     // Or lockstep::load_weights(fsdp, path).
//
// All tensors that the function makes are on LibTorch's meta device, parameters and buffers alike.
// What initializes them, such as torch::nn::init::kaiming_uniform_(), then does nothing, and draws
// no random numbers. Tensors that are given their values, by torch::tensor() and from_blob(), and
// those whose device the function names, are as always.
//
// FullyShardedDataParallel, and DistributedDataParallel with share_parameters, take such a module
// and give it memory; all else that needs values refuses it. Values come from initialize(),
// load_weights() or a checkpoint, and forward() is an Error until then. Rank 0 draws the random
// numbers of initialize(), so the values have the same bits on any number of ranks. Ranks whose
// default generators were equal to rank 0's have equal ones afterwards, too.
//
// A tensor that is a mere member, neither registered as parameter nor as buffer, remains on meta:
// nobody can find it.
//
// Thread safety: any thread; the device is that of tensors which this thread makes.
// Errors: the function's. Among them LibTorch's own, of operators that read values, such as item(),
// at::tensor() and data_ptr(), or that do not exist on meta, such as randperm(); unsupported if
// another library has taken the dispatch key DeferredInit.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "lockstep/base/api.h"

namespace lockstep::tensor {

class OperatorInterception;

}  // namespace lockstep::tensor

namespace lockstep {

// While it lives, tensors that this thread makes are on meta. May be nested.
class LOCKSTEP_API OnMeta {
 public:
  OnMeta();
  ~OnMeta();
  OnMeta(const OnMeta&) = delete;
  OnMeta& operator=(const OnMeta&) = delete;

 private:
  const std::unique_ptr<const tensor::OperatorInterception> interception_;
};

// Returns what `make` returns, made on meta.
template <class Make>
auto on_meta(Make&& make) {
  const OnMeta guard;
  return std::forward<Make>(make)();
}

}  // namespace lockstep
