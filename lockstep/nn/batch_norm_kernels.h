// The two steps of a batch norm over several ranks for which ATen has no function, or a slow one.
//
// Tensors are [N, C, ...] and packed: contiguous, or contiguous in a channels-last format.
// Thread safety: yes. They use the calling thread's share of ATen's threads.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/nn/moments.h"

namespace lockstep {

// Itself, or a packed copy of it; autograd sees the copy.
at::Tensor packed(const at::Tensor& tensor);
at::Tensor packed_like(const at::Tensor& tensor, const at::Tensor& model);

// The type in which ATen keeps what belongs to a channel: float for half precision.
at::ScalarType channel_type(at::ScalarType input);

// Of each channel. Where channels do not come last the input is read once and vectorised; ATen's
// batch_norm_update_stats takes 3 to 7 times as long there, var_mean some 20 times.
std::vector<Moments> channel_moments(const at::Tensor& input);

// scale * (gradient - offset - (input - mean) * slope), where the four are of each channel, as rows
// of `coefficients` in this order: mean, offset, slope, scale. [4, C], contiguous, channel_type().
at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& coefficients);

}  // namespace lockstep
