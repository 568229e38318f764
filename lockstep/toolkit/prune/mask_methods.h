// The masks of torch/nn/utils/prune.py: the same operations in the same order, for the same bits.
// `values` and `mask` have one shape and type; the mask is 1 where nothing is pruned.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "lockstep/toolkit/prune/pruning_masks.h"

namespace lockstep::prune {

// L1Unstructured and RandomUnstructured, among unpruned elements.
at::Tensor l1_mask(const at::Tensor& values, const at::Tensor& mask, PruningAmount amount);
at::Tensor random_mask(const at::Tensor& values, const at::Tensor& mask, PruningAmount amount);

// LnStructured and RandomStructured, among slices along `dim` whose mask is not all 0.
at::Tensor ln_mask(const at::Tensor& values, const at::Tensor& mask, PruningAmount amount,
                   double norm, std::int64_t dim);
at::Tensor random_slices_mask(const at::Tensor& values, const at::Tensor& mask,
                              PruningAmount amount, std::int64_t dim);

}  // namespace lockstep::prune
