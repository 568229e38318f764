// Layout of gradients in memory: like the parameter's, in memory of their own.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Returns an uninitialised tensor with dense_strides().
at::Tensor like_gradient(const at::Tensor& parameter);

// Makes `gradient` writable: with dense_strides(), in memory that no other tensor uses. Copies it
// if necessary; an undefined gradient becomes zeros. For a hook of the parameter's accumulator:
// `incoming` is autograd's tensor, whose memory `gradient` may use.
void make_writable(at::Tensor& gradient, const at::Tensor& parameter, const at::Tensor& incoming);

}  // namespace lockstep
