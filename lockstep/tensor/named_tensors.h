// Tensors with names, in a defined order.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The module's parameters or buffers, in its own order and sharing its memory. A bias that a layer
// was made without is left out.
LOCKSTEP_API NamedTensors named_parameters(const torch::nn::Module& module);
LOCKSTEP_API NamedTensors named_buffers(const torch::nn::Module& module);

// The parameters, then the buffers.
LOCKSTEP_API NamedTensors named_tensors(const torch::nn::Module& module);

}  // namespace lockstep
