// A registry of parameters that are parts (sharded_module.h), for functions without access to the
// module.
//
// Thread safety: full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/tensor/sharded_module.h"

namespace lockstep {

// Records `layout` until `parameter` is destroyed.
void note_part(const at::Tensor& parameter, const ParameterLayout& layout);

// Such as " is [0, 8] + [4, 8] of [4, 16]"; empty for a whole parameter.
std::string part_text(const at::Tensor& parameter);

}  // namespace lockstep
