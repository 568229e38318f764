// What may stand in the place of the all_reduce of gradients, after PyTorch's DDP communication
// hooks (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py).
//
//   ddp.register_comm_hook(lockstep::bf16_compress_hook());
//   ddp.register_comm_hook([](lockstep::GradientBucket& bucket) {   // What happens without a hook.
//     all_reduce(bucket.buffer, bucket.group, ReduceOp::average, {.label = bucket.label});
//   });

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "lockstep/base/api.h"
#include "lockstep/parallel/gradients/gradient_bucket.h"

namespace lockstep {

// Called for each bucket, in the same order on all ranks. The bucket holds this rank's gradients,
// not divided by anything; when the hook returns, it holds their mean over all ranks, in `buffer`
// or in what the hook has put in its place. It may block
// and communicate through `bucket.group`, but no other group. On a CUDA device it enqueues what it
// does on its thread's current stream, and need not wait for it. With overlap it runs on a thread
// of its own, while backward() computes other buckets. What it throws comes out of backward() on
// this rank. The others may wait for it in their own hook: `bucket.group` is given up, so that they
// throw Error(aborted) with the exception's text, and so does every later backward().
using CommunicationHook = std::function<void(GradientBucket& bucket)>;

// Gradients travel as float16 or bfloat16: half the bytes, and a mean of numbers with 11 or 8 bits.
// Each is cast, divided by the number of ranks and summed in that type, and cast back.
LOCKSTEP_API CommunicationHook fp16_compress_hook();
LOCKSTEP_API CommunicationHook bf16_compress_hook();

}  // namespace lockstep
