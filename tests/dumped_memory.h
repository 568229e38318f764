// Searches for text that would be in a core dump of this process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

// Returns the writable, dumped mappings that contain a text. The text is given in reverse, so that
// the search does not find itself.
std::vector<std::string> dumped_mappings_with(std::string_view reversed_text);

}  // namespace lockstep::test
