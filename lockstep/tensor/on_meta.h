// Constructs a module without memory for its tensors.
//
//   const auto gpt = lockstep::on_meta(make);  // Names, types and shapes, but no values.
//   lockstep::FullyShardedDataParallel fsdp(gpt, world, {.units = {"transformer.h.*"}});
//   fsdp.initialize(make);  // Or lockstep::load_weights(fsdp, path).
//
// All tensors that `make` creates are on the meta device, except those from torch::tensor() or
// from_blob(), or with an explicit device. Initializers do nothing on meta and draw no random
// numbers.
//
// FullyShardedDataParallel, and DistributedDataParallel with share_parameters, allocate the memory
// of such a module. forward() is an Error until initialize(), load_weights() or a checkpoint sets
// the values. Rank 0 draws initialize()'s random numbers, so values have the same bits on any
// number of ranks. Tensors that are not registered remain on meta.
//
// Thread safety: affects tensors that the calling thread creates.
// Errors: those of `make`. LibTorch throws for operators that read values (item(), at::tensor(),
// data_ptr()) or lack a meta kernel (randperm()). Unsupported if another library uses the dispatch
// key DeferredInit.

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
