// Search for text that a core dump of this process would show.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

// Returns the writable mappings in dumps that hold a text. The text is given in reverse, so that
// the search does not find itself.
std::vector<std::string> dumped_mappings_with(std::string_view reversed_text);

}  // namespace lockstep::test
