// The parameters of this process that are parts of whole ones. A function that gets tensors alone,
// without the module that cut them (sharded_module.h), can tell here that they are no copies.
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/tensor/sharded_module.h"

namespace lockstep {

// `parameter` is the part that `layout` describes, as long as it lives.
void note_part(const at::Tensor& parameter, const ParameterLayout& layout);

// Such as " is [0, 8] + [4, 8] of [4, 16]": offsets and sizes of its boxes. Empty for a whole one.
std::string part_text(const at::Tensor& parameter);

}  // namespace lockstep
