// Suggestions for misspelled subcommands and options.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tools {

// Empty if none of `names` is close. A prefix counts as close.
std::string suggestion_for(std::string_view name, const std::vector<std::string>& names);

// With the most similar of `names`, or all of them.
std::string unknown_subcommand(std::string_view command, std::string_view word,
                               const std::vector<std::string>& names);

// "; the subcommands are a, b".
std::string list_of_subcommands(const std::vector<std::string>& names);

}  // namespace lockstep::tools
