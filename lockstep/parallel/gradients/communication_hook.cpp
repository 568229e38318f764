// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/communication_hook.h"

#include <ATen/ops/zeros.h>

#include <map>

#include "lockstep/tensor/collectives.h"

namespace lockstep {
namespace {

class Compress {
 public:
  explicit Compress(at::ScalarType dtype) : dtype_(dtype) {}

  void operator()(GradientBucket& bucket) {
    const at::Tensor compressed = buffer_like(bucket);
    compressed.copy_(bucket.buffer).div_(bucket.group.size());
    all_reduce(compressed, bucket.group, ReduceOp::sum, {.label = bucket.label});
    bucket.buffer.copy_(compressed);
  }

 private:
  // Has the bucket's size and kind of memory; kept for the next pass.
  at::Tensor buffer_like(const GradientBucket& bucket) {
    at::Tensor& kept = buffers_[bucket.index];
    if (kept.defined() && kept.numel() == bucket.buffer.numel()) return kept;
    kept = bucket.buffer.is_cpu()
               ? registered_zeros(bucket.buffer.sizes(), dtype_, bucket.group)
               : at::zeros(bucket.buffer.sizes(), bucket.buffer.options().dtype(dtype_));
    return kept;
  }

  at::ScalarType dtype_;
  std::map<std::size_t, at::Tensor> buffers_;
};

}  // namespace

CommunicationHook fp16_compress_hook() { return Compress(at::kHalf); }
CommunicationHook bf16_compress_hook() { return Compress(at::kBFloat16); }

}  // namespace lockstep
