// Checks that settings are equal on all ranks of a group.

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
  bool is_truth = false;  // If true, the value is 0 for false or 1 for true.
};

// Collective. All ranks pass settings with the same names; `owner` is the class that has them.
// Errors: mismatch on all ranks if a value differs. The message names two ranks and both values.
void require_agreement(std::string_view owner, const std::vector<Setting>& settings,
                       const ProcessGroup& group);

}  // namespace lockstep::data
