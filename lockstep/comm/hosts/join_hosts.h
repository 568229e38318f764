// Joins the ranks of a job on several hosts, or on one host with an engine.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/init_options.h"
#include "lockstep/comm/hosts/hosts_group.h"
#include "lockstep/comm/hosts/late_ranks.h"
#include "lockstep/job/host_session.h"

namespace lockstep::comm {

struct JoinedHosts {
  std::shared_ptr<HostSession> session;        // Has a slot for every rank of the job.
  std::shared_ptr<HostsContext> context = {};  // Null when shared memory serves all ranks.
  std::string backend = {};
  std::string why = {};
};

// Collective over the job. `group` names this rendezvous. Blocking, Errors: as
// init_process_group().
JoinedHosts join_hosts(LaunchEnvironment& who, const InitOptions& options, const std::string& group,
                       LateRanks& late);

// InitOptions::backend, or LOCKSTEP_BACKEND if that is empty.
std::string backend_asked_for(const InitOptions& options);

}  // namespace lockstep::comm
