// Patterns of module and parameter names, such as "blocks.*.attention".

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

std::vector<std::string> levels_of(const std::string& name);

// Whether the numbers of levels are equal and fnmatch() accepts each: a star does not match a dot.
LOCKSTEP_API bool matches(const std::string& pattern, const std::string& name);

// The first levels of `name` that match all of `pattern`, if more levels follow.
LOCKSTEP_API std::optional<std::string> matching_parent(const std::string& pattern,
                                                        const std::string& name);

}  // namespace lockstep
