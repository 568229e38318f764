// Chooses a job's backend from its ranks' descriptions. Every rank gets the same result.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/hosts/rendezvous.h"

namespace lockstep::comm {

struct BackendChoice {
  std::string name = {};      // As in InitOptions::backend, never "auto".
  std::string engine = {};    // Empty without an engine.
  bool shares_memory = true;  // Whether ranks of one place share memory.
  std::string why = {};       // For messages.
  std::vector<int> places;    // By rank: the first rank of the same place.
};

// The engines that `backend` may use, best first. `under_mpi`: MPI started this process, or it has
// an MPI communicator. Errors: misuse for an unknown backend.
std::vector<std::string> engines_for(std::string_view backend, bool under_mpi);

// Errors: mismatch when ranks request different backends, or contradict their launcher.
// Unsupported, with the reason, when no engine runs on all ranks, and for shm on several hosts.
BackendChoice choose_backend(const std::vector<RankInfo>& ranks);

}  // namespace lockstep::comm
