// The elements of gradients, which norms and factors of dense and sparse gradients are made of.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace lockstep::optim {

// A dense tensor with the elements of the parameter's gradient, in its memory: the gradient itself
// or, of a sparse one, the values. Nothing if there is no element. A sparse gradient is coalesced
// first, as the square of a sum is not the sum of squares.
// Errors: unsupported for other layouts.
std::optional<at::Tensor> gradient_elements(const at::Tensor& parameter);

}  // namespace lockstep::optim
