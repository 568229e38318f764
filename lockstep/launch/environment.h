// The environment variables from which a rank learns who it is: torchrun's, so that any program
// that runs under torchrun runs under us, and a few of our own.

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
  Round round = {};      // Free for rank 0 to listen on: master_port of master_addr.
  int max_restarts = 0;  // As the launcher was told.
  std::string error_file =
      {};             // Where the rank, or torchrun's @record in it, writes its exception.
  int agent_fd = -1;  // The rank's end of its socket to the agent.
  int threads = 1;    // What OMP_NUM_THREADS is to be, unless the user has set it.

  // How many columns a line of the rank has when it is shown on a terminal.
  std::optional<int> columns = {};
};

// Memory that a rank frees stays with it, for the next step, unless `inherited` says something of
// malloc. `inherited` ends with a null pointer, as environ does. The result is made of "KEY=value".
std::vector<std::string> environment_of(const RankPlace& place, const char* const* inherited);

// 128 random bits as 32 hexadecimal digits: no two jobs ever have the same.
std::string random_job_id();

}  // namespace lockstep
