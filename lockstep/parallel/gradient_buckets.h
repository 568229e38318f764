// Gradients of all parameters side by side in memory that every rank of the host has mapped, so
// that averaging them is one all_reduce for each element type, in place.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class GradientBuckets {
 public:
  // Collective. `parameters` are the same on all ranks; of types that can be reduced.
  GradientBuckets(const NamedTensors& parameters, const ProcessGroup& group);

  // Where the gradient of parameter `index` lies: of its shape, and of its strides when it is
  // dense, which is what AccumulateGrad and the optimizers' kernels want.
  const at::Tensor& view(std::size_t index) const { return views_[index]; }

  // Blocking: every view becomes its sum over all ranks.
  void all_reduce(const ProcessGroup& group) const;

 private:
  struct Bucket {
    at::Tensor flat;
    std::string tag;  // Ranks that reduce different buckets get a mismatch.
  };

  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> views_;
};

}  // namespace lockstep
