// Finds the result of poll() for one descriptor, in a loop whose parts each have their own.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <vector>

namespace lockstep {

// Returns the events of `fd`; 0 when it was not watched.
inline short events_of(const std::vector<pollfd>& entries, int fd) {
  for (const pollfd& entry : entries)
    if (entry.fd == fd) return entry.revents;
  return 0;
}

}  // namespace lockstep
