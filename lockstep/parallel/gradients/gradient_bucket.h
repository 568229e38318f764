// One bucket of gradients, as passed to a communication hook.

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
  std::size_t index;  // Position in the order of reduction.
  std::size_t count;  // Number of buckets.
  // All gradients side by side, [elements]; complex numbers are pairs of reals. A few zeros may lie
  // between gradients.
  at::Tensor buffer = {};
  // Views of `buffer` with the parameters' shapes, types and names.
  NamedTensors gradients = {};
  std::vector<at::Tensor> parameters = {};
  std::string label = {};  // For CallOptions: ranks that reduce different buckets get a mismatch.
  ProcessGroup group;
};

}  // namespace lockstep
