// A number, a bool or a text of a training state, for example a step or a learning rate.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

// Texts are UTF-8. Doubles keep their bits, including infinities; every NaN becomes the default
// NaN.
using StateValue = std::variant<bool, std::int64_t, double, std::string, std::vector<double>>;

using StateValues = std::map<std::string, StateValue>;

}  // namespace lockstep
