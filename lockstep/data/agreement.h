// Settings that must be equal on all ranks of a group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::data {

struct Setting {
  std::string_view name;
  std::uint64_t value;
  bool is_truth = false;  // The value is 0 or 1, for false or true.
};

// Collective; all ranks have settings of the same names. `owner` is the class that has them.
// Errors: mismatch on all ranks if a value differs. The message names two ranks and the difference.
void require_agreement(std::string_view owner, const std::vector<Setting>& settings,
                       const ProcessGroup& group);

}  // namespace lockstep::data
