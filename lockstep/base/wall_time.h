// The wall clock, for time stamps in files. It can jump: use Clock (time.h) for durations.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>

namespace lockstep {

// Nanoseconds since 1970.
inline std::int64_t wall_time_ns() {
  constexpr std::int64_t nanoseconds = 1'000'000'000;
  std::timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * nanoseconds + now.tv_nsec;
}

inline double wall_time() { return static_cast<double>(wall_time_ns()) * 1e-9; }

}  // namespace lockstep
