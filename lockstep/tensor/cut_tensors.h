// A registry of the parameters that are parts of whole ones, for functions that get tensors without
// their module (sharded_module.h).
//
// Thread safety: any thread may call any function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/tensor/sharded_module.h"

namespace lockstep {

// Records, for its lifetime, that `parameter` is the part that `layout` describes.
void note_part(const at::Tensor& parameter, const ParameterLayout& layout);

// The part's boxes as text, such as " is [0, 8] + [4, 8] of [4, 16]"; empty for a whole parameter.
std::string part_text(const at::Tensor& parameter);

}  // namespace lockstep
