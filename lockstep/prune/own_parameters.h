// Checks that a model's parameters are this rank's own, and whole, as pruning requires.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <string_view>

namespace lockstep::prune {

// Errors, with `call` and the parameter's name: misuse for a parameter without values, and, with
// the reason `if_shared`, for one that all ranks share. Unsupported, with `if_cut`, for one that is
// cut over ranks.
void require_own_parameters(const torch::nn::Module& model, std::string_view call,
                            std::string_view if_shared, std::string_view if_cut);

}  // namespace lockstep::prune
