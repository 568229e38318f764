// Attributes deaths to the kernel's OOM killer, by the count of its kills (base/memory.h). Does no
// I/O and reads no clock.
//
// Thread safety: the owner synchronizes. May be in shared memory, with zeros at first.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "lockstep/base/time.h"

namespace lockstep::job {

class OomKills {
 public:
  // Several processes may be killed before the first death is detected.
  static constexpr std::chrono::seconds time_to_notice{2};

  // `kills`: the count now; empty when unknown.
  void begin(std::optional<std::uint64_t> kills);

  // Call it once per death by SIGKILL, detected at `now`. Returns whether the OOM killer did it.
  // True if the count has grown since the previous death or, up to time_to_notice after it, exceeds
  // the kills already attributed.
  std::optional<bool> judge(std::optional<std::uint64_t> kills, Clock::time_point now);

 private:
  std::int64_t attributed_ = 0;  // Kills of detected deaths, or too old; -1 when unknown.
  std::int64_t seen_ = 0;        // The count at the previous death.
  Clock::rep noticed_ = 0;
};

}  // namespace lockstep::job
