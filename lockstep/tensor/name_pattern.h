// Patterns of names of modules and parameters, such as "blocks.*.attention".
//
// Thread safety: none is needed.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The parts between the dots.
std::vector<std::string> levels_of(const std::string& name);

// Returns whether `name` has as many levels as `pattern`, and fnmatch() accepts each of them. As in
// PyTorch, a star does not match a dot.
bool matches(const std::string& pattern, const std::string& name);

// Returns the first levels of `name`, as many as `pattern` has, if they match and more levels
// follow.
std::optional<std::string> matching_parent(const std::string& pattern, const std::string& name);

}  // namespace lockstep
