// Converts reduction operations of torch.distributed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::torch_backend {

struct Reduction {
  ReduceOp op = ReduceOp::sum;
  at::Tensor factor = {};  // One element; may be undefined.

  // `input`, or its product with the factor in new memory.
  at::Tensor weighted(const at::Tensor& input) const;
};

// Errors: unsupported for an unknown operation.
Reduction reduction_of(const c10d::ReduceOp& op);

}  // namespace lockstep::torch_backend
