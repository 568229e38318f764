// How the ranks of a job on several hosts, or of one host with an engine, come together.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/hosts/hosts_backend.h"
#include "lockstep/job/host_session.h"

namespace lockstep {

struct JoinedHosts {
  std::shared_ptr<HostSession> session;        // With a slot for every rank of the job.
  std::shared_ptr<HostsContext> context = {};  // Null where shared memory serves all ranks.
  std::string backend = {};
  std::string why = {};  // It was chosen, for people.
};

// Collective over the job. `group` names this meeting of its ranks. Blocking and errors: as
// init_process_group().
JoinedHosts join_hosts(LaunchEnvironment& who, const InitOptions& options,
                       const std::string& group);

// InitOptions::backend, or what LOCKSTEP_BACKEND says.
std::string backend_asked_for(const InitOptions& options);

}  // namespace lockstep
