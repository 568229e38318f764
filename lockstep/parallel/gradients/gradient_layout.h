// Where in memory a gradient lies: as its parameter does, and alone.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Uninitialised, with dense_strides().
at::Tensor like_gradient(const at::Tensor& parameter);

// Makes `gradient` a tensor that may be written to: laid out by dense_strides(), and with memory in
// which nobody else's tensor lies. A copy where it has to be; zeros when it is undefined. For a
// hook of the parameter's accumulator: `incoming` is what autograd has made, in whose memory
// `gradient` may lie.
void make_writable(at::Tensor& gradient, const at::Tensor& parameter, const at::Tensor& incoming);

}  // namespace lockstep
