// Lists of tensors without duplicates, such as tied weights, which parameters() lists under each
// name.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Keeps the first place and name of each tensor. All undefined tensors count as one.
std::vector<at::Tensor> distinct(std::vector<at::Tensor> tensors);
NamedTensors distinct(NamedTensors tensors);

}  // namespace lockstep
