// Removes duplicates from lists of tensors, such as tied weights in parameters().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Keeps the first entry of each tensor, and one undefined tensor.
LOCKSTEP_API std::vector<at::Tensor> distinct(std::vector<at::Tensor> tensors);
LOCKSTEP_API NamedTensors distinct(NamedTensors tensors);

}  // namespace lockstep
