// The element types that both LibTorch and safetensors have.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep {

LOCKSTEP_API at::ScalarType scalar_type_of(SafetensorsType type);

// Returns the header entry for `tensor`, without begin and end.
// Errors: misuse, with the name, for an undefined tensor; unsupported for a tensor that is not
// dense or whose type the format lacks.
SafetensorsEntry entry_for(const std::string& name, const at::Tensor& tensor);

}  // namespace lockstep
