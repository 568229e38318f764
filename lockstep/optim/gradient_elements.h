// The elements of dense and sparse gradients, for norms and scaling.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace lockstep::optim {

// The elements of the parameter's gradient as a dense tensor in its memory; empty if there are
// none. Coalesces a sparse gradient first: the square of a sum is not the sum of squares. Errors:
// unsupported for layouts other than strided and sparse COO.
std::optional<at::Tensor> gradient_elements(const at::Tensor& parameter);

}  // namespace lockstep::optim
