// What a rank and the agent that started it have for each other when the rank's group reaches
// beyond that agent's ranks. Within them, descriptors pass over the same line: host_session.h.
//
// Thread safety: an AgentLine is for one thread at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/host_link.h"
#include "lockstep/job/job_page.h"
#include "lockstep/job/store/job_token.h"

namespace lockstep {

class LOCKSTEP_API AgentLine {
 public:
  // `agent_fd` is the inherited end of the socket pair, and stays open. Errors: misuse when it is
  // not.
  explicit AgentLine(int agent_fd);

  // Empty when the job has none. Errors: system when the agent refuses, with its reason;
  // peer_lost when it is gone; timeout.
  std::optional<JobToken> job_token(Deadline deadline);

  // How many ranks the agent has told its ranks of. Errors: as job_token()'s.
  int world_size(Deadline deadline);

  // Lets the agent see what the ranks of all agents are doing, and record what it knows of its own.
  void offer_session_page(const JobPage& page);

 private:
  HostLink link_;
};

// A descriptor of our own for an inherited one, which no child of ours gets. Errors: as
// AgentLine's.
FileDescriptor duplicate_agent_fd(int agent_fd);

// What an agent publishes under job_token_key: sealed memory with the token's text and a zero.
LOCKSTEP_API FileDescriptor share_job_token(const std::optional<JobToken>& token);

}  // namespace lockstep
