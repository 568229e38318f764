// Suggestions for misspelled subcommands and options.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

// Returns the one of `names` that is most similar to `name`; empty if none is close. A prefix
// counts as close.
std::string suggestion_for(std::string_view name, const std::vector<std::string>& names);

}  // namespace lockstep::tools
