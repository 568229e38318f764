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

// Returns the message that `command` has no subcommand `word`, with the most similar one of `names`
// or all of them.
std::string unknown_subcommand(std::string_view command, std::string_view word,
                               const std::vector<std::string>& names);

// Returns "; the subcommands are a, b".
std::string list_of_subcommands(const std::vector<std::string>& names);

}  // namespace lockstep::tools
