// The types of elements that both LibTorch and safetensors have.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep {

LOCKSTEP_API at::ScalarType scalar_type_of(SafetensorsType type);

// What describes `tensor` in a header; begin and end are not set.
// Errors: misuse, with the name, for an undefined tensor; unsupported for one that is not dense or
// whose type the format has no place for.
SafetensorsEntry entry_for(const std::string& name, const at::Tensor& tensor);

}  // namespace lockstep
