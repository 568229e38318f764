// Keeping the gradients of a step within a norm.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/base/api.h"

namespace lockstep {

// Multiplies the gradients of `parameters` by min(1, max_norm / (total + 1e-6)), where total is the
// norm of all of them taken as one vector, and returns total: a tensor without dimensions on the
// device of the first gradient, 0 when there is none. A norm_type of infinity takes the largest
// absolute value. One tensor converts to a list of one. Gradients and total equal those of Python's
// torch.nn.utils.clip_grad_norm_ bit for bit, which torch::nn::utils' do not.
//
// In data-parallel training call it after backward(): the gradients are averages then, so every
// rank finds the same total.
//
// Errors: misuse for a negative max_norm, and for shared parameters, which their optimizer clips;
// unsupported for sparse gradients; corrupt when error_if_nonfinite and the total is not finite:
// skip this step. The gradients are then as they were.
LOCKSTEP_API at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false);

}  // namespace lockstep
