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
// That is the norm of all gradients as one vector, or 0 without gradients: a scalar tensor on the
// device of the first gradient. For a norm_type of infinity, it is the largest absolute value. A
// repeated tensor counts once. Gradients and total equal those of Python's
// torch.nn.utils.clip_grad_norm_ bit for bit; those of torch::nn::utils do not.
//
// In data-parallel training, call it after backward(): gradients are then averages, so all ranks
// get the same total. Sparse gradients are coalesced and count like dense ones.
//
// Errors: misuse for a negative max_norm, for shared parameters (their optimizer clips them), and
// for parameters that are cut over ranks (clip their module). Unsupported for gradients that are
// neither dense nor sparse COO tensors. Corrupt if error_if_nonfinite is set and total is not
// finite; the gradients are then unchanged: skip this step.
LOCKSTEP_API at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false);

// The same for all parameters of `module`. Parameters that are cut over ranks (sharded_module.h)
// count as whole ones, and copies count once, so total is equal on all ranks. It is then computed
// in double precision, and the call is collective over the group of each layout. Errors: also
// misuse if parameters are cut and norm_type is not positive.
LOCKSTEP_API at::Tensor clip_grad_norm_(torch::nn::Module& module, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false);

}  // namespace lockstep
