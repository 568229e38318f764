// What pruning asks of a model: parameters that are this rank's own, and whole.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <string_view>

namespace lockstep::prune {

// Errors: misuse for a parameter without values; misuse for one that all ranks share, with the
// reason `if_shared`; unsupported for one that is cut over ranks, with `if_cut`. Their texts begin
// with `call`, and name the parameter.
void require_own_parameters(const torch::nn::Module& model, std::string_view call,
                            std::string_view if_shared, std::string_view if_cut);

}  // namespace lockstep::prune
