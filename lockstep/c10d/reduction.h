// How torch.distributed asks for reductions.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/comm/core/buffer.h"

namespace lockstep::c10d {

// A combination of all ranks' elements, which may be multiplied before.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  at::Tensor factor = {};  // Of one element; undefined: none.

  // Returns `input`, or its product with the factor, which is new memory.
  at::Tensor weighted(const at::Tensor& input) const;
};

// Errors: unsupported for an operation that is not one of torch.distributed.ReduceOp.
Reduction reduction_of(const ::c10d::ReduceOp& op);

}  // namespace lockstep::c10d
