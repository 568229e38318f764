// poll() with a Deadline.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"

namespace lockstep {

// Timeout for poll() or epoll_wait(): at most 60 s, so call again until the deadline.
inline int milliseconds_until(Deadline deadline) {
  if (deadline == no_deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

// Waits until one of `watched` is ready; false at the deadline. Signals do not end the wait.
template <std::size_t n>
bool poll_until(std::array<pollfd, n>& watched, Deadline deadline) {
  for (;;) {
    const int ready = ::poll(watched.data(), watched.size(), milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready == 0 && Clock::now() >= deadline) return false;
  }
}

}  // namespace lockstep
