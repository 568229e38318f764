// Time stamps that cost a few nanoseconds: on x86-64 the processor's own counter, which today runs
// at a constant rate on all cores; elsewhere the steady clock. For what is shown to people;
// deadlines use Clock.

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

// The time of the steady clock at `ticks`, of this process or another one of this host.
LOCKSTEP_API Clock::time_point time_of(Ticks ticks);

}  // namespace lockstep
