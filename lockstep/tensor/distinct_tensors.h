// Lists of tensors with each tensor once. Module::parameters() lists a tied weight under each of
// its names.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Returns the tensors without repeated ones: each is where it was first, under its first name. All
// undefined ones count as one tensor.
std::vector<at::Tensor> distinct(std::vector<at::Tensor> tensors);
NamedTensors distinct(NamedTensors tensors);

}  // namespace lockstep
