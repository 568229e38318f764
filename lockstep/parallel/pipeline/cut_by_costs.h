// Divides a list of layers into stages of equal cost. Thread safety: a pure function.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// First layers of `stages` stages, such that the costliest stage is as cheap as possible. Requires
// at least as many layers as stages, and finite costs of at least 0.
LOCKSTEP_API std::vector<int> cut_by_costs(const std::vector<double>& costs, int stages);

}  // namespace lockstep
