// How `lockstep status` learns of a user's jobs: each agent answers on an abstract Unix socket, which
// has no name in any file system and ends with the agent.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/api.h"
#include "lockstep/comm/host/file_descriptor.h"

namespace lockstep {

struct RankStatus {
  int rank = 0;
  int pid = 0;
  std::string state = {};       // "starting", "running", "stopped", "waiting", "ended".
  std::vector<int> waits_for = {};  // The ranks that have yet to come, where that is known.
  std::uint64_t step = 0;
  std::string last = {};  // What describe(Activity) says.
  std::string bound_to = {};  // Cores, such as "0-3"; empty when it is not bound.
};

struct JobStatus {
  std::string job_id = {};
  std::string program = {};  // And its arguments.
  int agent_pid = 0;
  std::string host = {};
  int node = 0;
  int nodes = 1;
  int world_size = 1;
  int attempt = 0;
  std::string state = {};  // "running", "ending", "waiting for hosts".
  double seconds = 0;      // Since the agent started.
  std::vector<RankStatus> ranks = {};  // Of this host.
};

// The agent's side. Answers whoever runs as the same user.
//
// Thread safety: none; used by the one thread whose poll() loop it is part of. Blocking: never.
class StatusService {
 public:
  StatusService(const std::string& job_id, std::function<JobStatus()> status);

  void watch(std::vector<pollfd>& entries) const;
  void serve(const std::vector<pollfd>& entries);

 private:
  FileDescriptor listener_;
  std::function<JobStatus()> status_;
  std::vector<FileDescriptor> clients_;
};

// The other side: this user's jobs on this host, the oldest first. An agent that does not answer
// within a second is passed over.
LOCKSTEP_API std::vector<JobStatus> running_jobs();

LOCKSTEP_API std::string to_json(const std::vector<JobStatus>& jobs);

}  // namespace lockstep
