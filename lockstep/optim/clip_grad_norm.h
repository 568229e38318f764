// Gradient clipping by norm.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/base/api.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// Multiplies the gradients of `parameters` by min(1, max_norm / (total + 1e-6)) and returns total.
// Total is the norm of all gradients as one vector, or 0 without gradients: a scalar tensor on the
// first gradient's device. A norm_type of infinity gives the largest absolute value. A repeated
// tensor counts once. Gradients and total equal those of Python's torch.nn.utils.clip_grad_norm_
// bit for bit; those of torch::nn::utils do not.
//
// After DistributedDataParallel's backward(), gradients and total are equal on all ranks. With
// shard_gradients(), call the optimizer's clip_grad_norm_() instead. Coalesces sparse gradients.
//
// Errors: misuse for a negative max_norm, for shared parameters (their optimizer clips them), and
// for parameters that are cut over ranks (clip their module). Unsupported for gradients that are
// neither dense nor sparse COO tensors. Corrupt if error_if_nonfinite is set and total is not
// finite; gradients are then unchanged: skip this step.
LOCKSTEP_API at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false);

// The same for all parameters of `module`. Parameters that are cut over ranks (sharded_module.h)
// count as whole ones. Those that each rank has whole count once, so total is equal on all ranks.
// If any are cut, the call is collective over their groups, and joins norms in double precision.
// Errors: then also misuse if norm_type is not positive.
LOCKSTEP_API at::Tensor clip_grad_norm_(torch::nn::Module& module, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false);

}  // namespace lockstep
