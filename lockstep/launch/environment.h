// Environment variables that tell a rank who it is: torchrun's, so that programs made for torchrun
// run unchanged, and a few of Lockstep's own.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/rendezvous.h"

namespace lockstep {

struct RankPlace {
  int local_rank = 0;
  int local_world_size = 1;
  Round round = {};      // master_port of master_addr is free for rank 0 to listen on.
  int max_restarts = 0;  // As given to the launcher.
  // File into which the rank, or torchrun's @record in it, writes its exception.
  std::string error_file = {};
  int agent_fd = -1;  // The rank's end of its socket to the agent.
  int threads = 1;    // Value of OMP_NUM_THREADS, unless the user has set it.

  // Width of the rank's lines on a terminal; empty without a terminal.
  std::optional<int> columns = {};
};

// Returns a rank's variables as "KEY=value". `inherited` ends with a null pointer, as environ does.
// Unless `inherited` configures malloc, a rank keeps freed memory for its next step.
std::vector<std::string> environment_of(const RankPlace& place, const char* const* inherited);

// Returns 128 random bits as 32 hexadecimal digits: no two jobs have the same id.
std::string random_job_id();

}  // namespace lockstep
