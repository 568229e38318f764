// Checks that a model's parameters are this rank's own, and whole.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <string_view>

namespace lockstep::prune {

// Errors, with `call`: misuse without values, and, with `if_shared`, if all ranks share a
// parameter; unsupported, with `if_cut`, if it is cut over ranks.
void require_own_parameters(const torch::nn::Module& model, std::string_view call,
                            std::string_view if_shared, std::string_view if_cut);

}  // namespace lockstep::prune
