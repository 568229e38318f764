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

// Whether `name` has as many levels as `pattern`, and fnmatch() says of each that it fits. As in
// PyTorch, a star matches no dot.
bool matches(const std::string& pattern, const std::string& name);

// The beginning of `name`, of as many levels as `pattern` has, if that matches and more follows.
std::optional<std::string> matching_parent(const std::string& pattern, const std::string& name);

}  // namespace lockstep
