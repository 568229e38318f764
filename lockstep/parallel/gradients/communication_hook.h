// Hooks that replace the all_reduce of gradients, after PyTorch's
// (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py).
//
//   ddp.register_comm_hook(lockstep::bf16_compress_hook());
//   ddp.register_comm_hook([](lockstep::GradientBucket& bucket) {   // The default:
//     all_reduce(bucket.buffer, bucket.group, ReduceOp::average, {.label = bucket.label});
//   });

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// A communication hook's argument.
struct GradientBucket {
  std::size_t index;  // In the order of reduction.
  std::size_t count;  // Number of buckets.
  // All gradients side by side, [elements]; complex numbers are pairs of reals. Zeros may separate
  // gradients.
  at::Tensor buffer = {};
  // Views of `buffer` with the parameters' shapes, types and names.
  NamedTensors gradients = {};
  std::vector<at::Tensor> parameters = {};
  std::string label = {};  // For CallOptions: different buckets are a mismatch.
  ProcessGroup group;
};

// Called for each bucket, in the same order on all ranks, with this rank's undivided gradients. On
// return, `buffer` must hold their mean over all ranks; the hook may assign another tensor to it.
// Blocking: the hook may communicate through `bucket.group`, or a group of some of its ranks. It
// must abort the latter on an exception. On a CUDA device it enqueues its work on the current
// stream. With overlap it runs on a separate thread.
// Errors: backward() throws the hook's exception, and aborts `bucket.group`. The other ranks and
// every later backward() throw Error(aborted) with its text.
using CommunicationHook = std::function<void(GradientBucket& bucket)>;

// Send float16 or bfloat16: half the bytes, and a mean with 11 or 8 significant bits. Each gradient
// is cast, divided by the number of ranks, summed in that type and cast back.
LOCKSTEP_API CommunicationHook fp16_compress_hook();
LOCKSTEP_API CommunicationHook bf16_compress_hook();

}  // namespace lockstep
