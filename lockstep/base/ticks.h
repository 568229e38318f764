// Time stamps that cost a few nanoseconds, for display only; deadlines use Clock.
// On x86-64 they are the processor's counter, which runs at a constant rate on all cores of current
// processors. Elsewhere they are the steady clock.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/base/time.h"

namespace lockstep {

using Ticks = std::uint64_t;

inline Ticks ticks_now() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<Ticks>(Clock::now().time_since_epoch().count());
#endif
}

// Converts `ticks` of this process, or of another one on this host, to the steady clock.
LOCKSTEP_API Clock::time_point time_of(Ticks ticks);

}  // namespace lockstep
