// Checks that settings are equal on all ranks of a group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

struct Setting {
  std::string_view name;
  std::uint64_t value;
  bool is_truth = false;  // The value is printed as false or true.
};

// Collective, with the same names on all ranks. `owner` is the class with the settings.
// Errors: mismatch on all ranks if a value differs, naming two ranks and both values.
LOCKSTEP_API void require_agreement(std::string_view owner, const std::vector<Setting>& settings,
                                    const ProcessGroup& group);

}  // namespace lockstep
