// The elements of dense and sparse gradients, for norms and scaling.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace lockstep::optim {

// Returns a dense tensor with the elements of the parameter's gradient, in its memory: the gradient
// itself, or the values of a sparse one. Empty if there is no element. Coalesces a sparse gradient
// first, because the square of a sum is not the sum of squares.
// Errors: unsupported for other layouts.
std::optional<at::Tensor> gradient_elements(const at::Tensor& parameter);

}  // namespace lockstep::optim
