// Sleeping until a word in shared memory changes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "lockstep/base/api.h"

namespace lockstep {

// Sleeps while `word` is `seen`, for `limit` at the most. May also return early for no reason.
// The word may be shared between processes.
LOCKSTEP_API void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                             std::chrono::nanoseconds limit);

// Wakes all who sleep on `word`.
LOCKSTEP_API void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace lockstep
