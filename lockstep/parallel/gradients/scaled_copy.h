// A single pass over a gradient that copies it into a bucket, scales it and checks that it is
// finite.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Sets `to` to `from` times `scale`, rounded as by at::mul(). Both may be the same tensor. Returns
// whether all elements of `from` are finite; the check costs nothing beside the copy. Both are
// strided, in CPU memory and of one shape and type. Complex numbers are pairs of reals.
bool scaled_copy(const at::Tensor& to, const at::Tensor& from, double scale);

// Adds `from` to `to`, with the same requirements and result.
bool checked_add(const at::Tensor& to, const at::Tensor& from);

bool all_finite(const at::Tensor& tensor);

}  // namespace lockstep
