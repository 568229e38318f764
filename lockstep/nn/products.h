// Products with a Linear's cut weight, in forward and backward. Sums over the ranks are in place.
// Results and gradients equal those of at::linear() and tensor/differentiable.h, bit for bit.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/nn/parallel_layer.h"

namespace lockstep::nn {

// A whole `x` times this rank's rows: [..., in] to [..., own out]. backward() sums the gradient of
// `x` over the ranks. The bias may be undefined.
at::Tensor product_of_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const CutTo& cut);

// This rank's features of `x` times its columns, summed over the ranks, plus a whole bias: [...,
// own in] to [..., out]. The bias may be undefined.
at::Tensor product_of_columns(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                              const CutTo& cut);

}  // namespace lockstep::nn
