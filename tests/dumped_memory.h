// Finds text that a core dump of this process would show.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

// The mappings that hold a text, of those that are writable and not left out of dumps. The text is
// given from its end to its begin, lest the search finds itself.
std::vector<std::string> dumped_mappings_with(std::string_view reversed_text);

}  // namespace lockstep::test
