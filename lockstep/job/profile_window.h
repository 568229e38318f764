// The range of steps whose operators a timeline records: "steps=FIRST:END" in LOCKSTEP_PROFILE and
// `lockstep run --profile`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

struct ProfileWindow {
  std::int64_t first = 0;
  std::int64_t end = 0;  // First step after the window.
};

// Empty for other text, and for a window without steps.
LOCKSTEP_API std::optional<ProfileWindow> profile_window_of(std::string_view text);

}  // namespace lockstep
