// A rank's requests to its agent when its group has ranks of other agents too. A group within one
// agent passes descriptors over the same connection: host_session.h.
//
// Thread safety: one thread at a time.

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
  // not open.
  explicit AgentLine(int agent_fd);

  // Returns nothing when the job has no token. Errors: system when the agent refuses, with its
  // reason; peer_lost when the agent is gone; timeout.
  std::optional<JobToken> job_token(Deadline deadline);

  // Returns the number of ranks that the agent told its ranks. Errors: as job_token()'s.
  int world_size(Deadline deadline);

  // Gives the agent the page of all agents' ranks. It then sees their activity, and records there
  // what it knows of its own ranks.
  void offer_session_page(const JobPage& page);

 private:
  HostLink link_;
};

// Duplicates the inherited descriptor; child processes do not get the copy. Errors: as AgentLine's.
FileDescriptor duplicate_agent_fd(int agent_fd);

// Returns the memory that an agent publishes under job_token_key: sealed, with the token's text and
// a zero byte.
LOCKSTEP_API FileDescriptor share_job_token(const std::optional<JobToken>& token);

}  // namespace lockstep
