// Tensors of a torch::nn::Module by path, such as "layers.0.weight".

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "lockstep/base/api.h"

namespace lockstep {

// Returns the submodule "layers.0", and "weight". Registers missing submodules as empty modules.
LOCKSTEP_API std::pair<torch::nn::Module*, std::string> place_of(torch::nn::Module& root,
                                                                 const std::string& path);

}  // namespace lockstep
