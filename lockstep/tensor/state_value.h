// A number, a truth value or a text of a training state, such as a step or a learning rate.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

// Texts are UTF-8. Doubles keep their bits, also infinities and NaN (which becomes the usual one).
using StateValue = std::variant<bool, std::int64_t, double, std::string, std::vector<double>>;

using StateValues = std::map<std::string, StateValue>;

}  // namespace lockstep
