// Constructs a module without memory for its tensors; it may be larger than the memory.
//
//   const auto gpt = lockstep::on_meta(make);  // Names, types and shapes, but no values.
//   lockstep::FullyShardedDataParallel fsdp(gpt, world, {.units = {"transformer.h.*"}});
//   fsdp.initialize(make);  // Or lockstep::load_weights(fsdp, path).
//
// All tensors that the function `make` creates are on LibTorch's meta device, except those from
// torch::tensor() or from_blob(), or with a named device. Initializers do nothing there and draw no
// random numbers.
//
// FullyShardedDataParallel, and DistributedDataParallel with share_parameters, allocate the memory
// of such a module. Until initialize(), load_weights() or a checkpoint gives it values, forward()
// is an Error. Rank 0 draws initialize()'s random numbers, so values have the same bits on any
// number of ranks. A member tensor that is neither a registered parameter nor a buffer remains on
// meta.
//
// Thread safety: affects tensors that the calling thread creates.
// Errors: the function's. LibTorch throws for operators that read values (item(), at::tensor(),
// data_ptr()) or do not exist on meta (randperm()). Unsupported if another library uses the
// dispatch key DeferredInit.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "lockstep/base/api.h"

namespace lockstep::tensor {

class OperatorInterception;

}  // namespace lockstep::tensor

namespace lockstep {

// While it exists, tensors that this thread creates are on meta. May be nested.
class LOCKSTEP_API OnMeta {
 public:
  OnMeta();
  ~OnMeta();
  OnMeta(const OnMeta&) = delete;
  OnMeta& operator=(const OnMeta&) = delete;

 private:
  const std::unique_ptr<const tensor::OperatorInterception> interception_;
};

template <class Make>
auto on_meta(Make&& make) {
  const OnMeta guard;
  return std::forward<Make>(make)();
}

}  // namespace lockstep
