// A rank's identity in one group: a value that never changes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/processes.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/group/flight_recorder.h"

namespace lockstep::comm {

struct GroupIdentity {
  std::string name;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = default_timeout;  // Default of calls.
  std::vector<int> members = {};                        // Job ranks, by rank here; empty for all.
  std::string backend = {};
  Backend::Place local = {};
  pid_t pid = this_process();  // Not its fork()ed children's.

  // -1 for a rank that this group does not have.
  int world_rank(int group_rank) const;

  // A call's timeout; by default, the group's. Errors: misuse for a negative one.
  std::chrono::milliseconds timeout_of(std::optional<std::chrono::milliseconds> requested) const;

  std::string describe(const Collective& collective) const;
  std::string describe(const Message& message) const;

  FlightRecordHeader record_header(std::string error = {}) const;

  // Errors: misuse in a fork()ed child. Call it before taking a lock, which another thread may have
  // held at the fork().
  void require_own_process() const {
    if (pid != this_process()) throw_foreign();
  }
  [[noreturn]] void throw_foreign() const;
};

}  // namespace lockstep::comm
