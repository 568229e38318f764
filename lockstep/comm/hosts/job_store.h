// Finds or opens the store through which ranks on several hosts find each other.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/hosts/late_ranks.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {

struct JobStore {
  std::shared_ptr<Store> store = {};
  std::optional<JobToken> token;
  std::string host;                          // Empty when unknown.
  std::string place = "InitOptions::store";  // For messages.
};

// Returns the job's id, shortened if it is too long for a handshake.
std::string member_id(const std::string& job_id);

// This process's rank and size in `communicator`, an MPI_Comm* from the program; if null, in the
// whole job. Collective over it. Errors: unsupported without MPI, or for a too low thread level.
struct MpiWorld {
  const void* handle = nullptr;  // lockstep_engine_config::world.
  int rank = 0;
  int size = 1;
};
MpiWorld identify_by_mpi(const void* communicator);

// Returns the user's store, or for the user's MPI communicator, one that rank 0 opens and MPI
// announces. Otherwise returns the first that exists of: the agents', torchrun's, one that rank 0
// opens at the job's master address. Otherwise, under MPI, as for a communicator. `interface` is
// rank 0's default for listening. May set a name for the job in `who`. Blocking: until the store
// exists. Errors: misuse when none exists, and for a store on the network without a token; timeout;
// unsupported.
JobStore open_job_store(LaunchEnvironment& who, const InitOptions& options,
                        const std::string& interface, Deadline deadline, comm::LateRanks& late);

struct ServedStore {
  // Port 0 in `options` means any free one.
  explicit ServedStore(TcpStoreOptions options)
      : server({.address = options.host,
                .port = options.port,
                .job = options.member,
                .token = options.token}),
        store((options.port = server.port(), options)) {}

  TcpStoreServer server;
  TcpStore store;
};

}  // namespace lockstep
