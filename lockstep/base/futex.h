// Sleeps until a word in shared memory changes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "lockstep/base/api.h"

namespace lockstep {

// Sleeps while `word` equals `seen`, for `limit` at most. May return early without a reason.
// Processes may share the word.
LOCKSTEP_API void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                             std::chrono::nanoseconds limit);

// Wakes all threads that sleep on `word`.
LOCKSTEP_API void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace lockstep
