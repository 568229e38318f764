// The one pass over a gradient on its way into a bucket.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// `to` becomes `from` times `scale`, rounded as at::mul() rounds it; they may be the same tensor.
// Returns whether all elements of `from` are finite, which costs nothing beside the copy.
// Both are strided, in CPU memory and of one shape and type. Complex numbers are pairs of reals.
bool scaled_copy(const at::Tensor& to, const at::Tensor& from, double scale);

// To `to` is added `from`, likewise.
bool checked_add(const at::Tensor& to, const at::Tensor& from);

bool all_finite(const at::Tensor& tensor);

}  // namespace lockstep
