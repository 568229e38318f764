// One bucket of gradients, as a communication hook sees it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

struct GradientBucket {
  std::size_t index;  // Of this bucket; they are reduced in this order,
  std::size_t count;  // of so many.
  // All gradients side by side, [elements], complex ones as pairs of reals. A few zeros may lie
  // between them.
  at::Tensor buffer = {};
  // Views of `buffer`, in the parameters' shapes and types and under their names.
  NamedTensors gradients = {};
  std::vector<at::Tensor> parameters = {};
  std::string label = {};  // For CallOptions: ranks that reduce different buckets get a mismatch.
  ProcessGroup group;
};

}  // namespace lockstep
