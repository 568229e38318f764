// Tied weights: one tensor with several names in a module.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Maps each name to the first name of the same tensor, usually itself. Two tensors are the same if
// all of their elements lie at the same addresses.
std::map<std::string, std::string> first_names(const NamedTensors& tensors);

}  // namespace lockstep
