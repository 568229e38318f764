// The store through which ranks of several hosts find each other, wherever it comes from.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/core/init_options.h"
#include "lockstep/job/store/job_token.h"

namespace lockstep {

struct JobStore {
  std::shared_ptr<Store> store = {};
  std::optional<JobToken> token;  // Of the job, where there is one.
  std::string host;               // Where the store is: empty when that is not known.
};

// Launchers' variables together may be too long for a handshake: a name of the job that is not.
std::string member_id(const std::string& job_id);

// Whether an MPI launcher started this process.
bool is_under_mpi(const LaunchEnvironment& who);

// Who this process is in `communicator`, an MPI_Comm* that the program hands over, or in the whole
// job when that is null; collective over it. Errors: unsupported without MPI, or with too low a
// thread level.
struct MpiWorld {
  const void* handle = nullptr;  // lockstep_engine_config::world.
  int rank = 0;
  int size = 1;
};
MpiWorld identify_by_mpi(const void* communicator);

// The user's store; else that of the job's agents; else torchrun's; else one that rank 0 opens at
// the job's master address; else, under MPI, one that rank 0 opens anywhere and MPI tells of.
// `interface` is where rank 0 listens when nothing else says it. `who` may gain a name for the job.
// Blocking: until it is there. Errors: misuse when there is none of these, and for one on the
// network without a token; timeout; unsupported.
JobStore open_job_store(LaunchEnvironment& who, const InitOptions& options,
                        const std::string& interface, Deadline deadline);

}  // namespace lockstep
