// Lists of tensors without duplicates. Module::parameters() lists a tied weight under each of its
// names.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Removes duplicates: each tensor stays at its first place, under its first name. All undefined
// tensors count as one.
std::vector<at::Tensor> distinct(std::vector<at::Tensor> tensors);
NamedTensors distinct(NamedTensors tensors);

}  // namespace lockstep
