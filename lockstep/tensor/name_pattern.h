// Patterns of names of modules and parameters, such as "blocks.*.attention".

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

std::vector<std::string> levels_of(const std::string& name);

// Whether `name` has as many levels as `pattern`, and fnmatch() accepts each: a star does not match
// a dot.
bool matches(const std::string& pattern, const std::string& name);

// The first levels of `name` that match all of `pattern`, if more levels follow.
std::optional<std::string> matching_parent(const std::string& pattern, const std::string& name);

}  // namespace lockstep
