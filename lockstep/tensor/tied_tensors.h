// Tied weights: one tensor that a module has under several names.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// The first name of the same tensor, by each name: itself, for most. Two tensors are the same when
// they have all of their elements in the same places of memory.
std::map<std::string, std::string> first_names(const NamedTensors& tensors);

}  // namespace lockstep
