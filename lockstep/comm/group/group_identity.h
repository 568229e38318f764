// Who a rank is in one group: a value that never changes while the group exists.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
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
  std::chrono::milliseconds timeout = default_timeout;  // Of calls without their own.
  std::vector<int> members = {};  // Ranks of the job, by rank of this group; empty for all.
  std::string backend = {};
  Backend::Place local = {};
  pid_t pid = this_process();  // The process that has this rank; its fork()ed children do not.

  // Returns the rank in the job; -1 for a rank that this group does not have.
  int world_rank(int group_rank) const;

  // Begin the messages about a call.
  std::string describe(const Collective& collective) const;
  std::string describe(const Message& message) const;

  // The head of this rank's flight record, which `error` ends.
  FlightRecordHeader record_header(std::string error = {}) const;

  // Errors: misuse in a fork()ed child. Called before any lock is taken: one that another thread
  // held at the fork() stays locked for ever.
  void require_own_process() const {
    if (pid != this_process()) throw_foreign();
  }
  [[noreturn]] void throw_foreign() const;
};

}  // namespace lockstep::comm
