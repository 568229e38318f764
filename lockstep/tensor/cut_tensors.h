// A registry of the parameters that are parts of whole ones. Functions that get tensors without
// their module (sharded_module.h) can detect parts here.
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/tensor/sharded_module.h"

namespace lockstep {

// Records that `parameter` is the part that `layout` describes, for the parameter's lifetime.
void note_part(const at::Tensor& parameter, const ParameterLayout& layout);

// Returns offsets and sizes of the part's boxes, such as " is [0, 8] + [4, 8] of [4, 16]"; empty
// for a whole parameter.
std::string part_text(const at::Tensor& parameter);

}  // namespace lockstep
