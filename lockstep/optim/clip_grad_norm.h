// Clips the gradients of a step to a norm.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/base/api.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// Multiplies the gradients of `parameters` by min(1, max_norm / (total + 1e-6)) and returns total:
// the norm of all gradients as one vector. The result is a tensor without dimensions on the device
// of the first gradient; 0 if there are no gradients. A norm_type of infinity takes the largest
// absolute value. One tensor converts to a list of one. A tensor that comes twice, as tied weights
// do in module.parameters(), counts once. Gradients and total equal those of Python's
// torch.nn.utils.clip_grad_norm_ bit for bit; those of torch::nn::utils do not.
//
// In data-parallel training, call it after backward(). The gradients are averages then, so every
// rank finds the same total. Sparse gradients count as the dense ones; they are coalesced.
//
// Errors: misuse for a negative max_norm, for shared parameters, which their optimizer clips, and
// for parameters that are cut over ranks: clip their module; unsupported for gradients that
// are neither dense nor sparse COO tensors; corrupt if error_if_nonfinite is set and the total is
// not finite. After corrupt the gradients are unchanged: skip this step.
LOCKSTEP_API at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false);

// As above, for all parameters of `module`. Those that are cut over ranks (sharded_module.h) count
// as the whole ones: parts are added up, copies count once, and the total is equal on all ranks. It
// is then computed in double precision, and the call is collective over the group of each layout.
// Errors: in addition, misuse for a norm_type that is not positive when parameters are cut.
LOCKSTEP_API at::Tensor clip_grad_norm_(torch::nn::Module& module, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false);

}  // namespace lockstep
