// A rank's connection to the switchboard that has the job page: the agent's, or without an agent
// rank 0's.
//
// Thread safety: one thread at a time may call the members.
// Errors: peer_lost when the switchboard is gone.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/job_page.h"
#include "lockstep/job/store/tcp_store.h"
#include "lockstep/job/switchboard.h"

namespace lockstep {

class LOCKSTEP_API HostLink {
 public:
  explicit HostLink(FileDescriptor socket) : socket_(std::move(socket)) {}

  // Gives `fd` to the process that runs the switchboard, under `key`. The caller keeps `fd`.
  void offer(std::string_view key, int fd);

  // Blocks until `key` has come. Errors: timeout.
  FileDescriptor obtain(std::string_view key, Deadline deadline);

 private:
  struct Reply {
    Packet packet;
    FileDescriptor fd;
  };

  void send(const Packet& packet, int fd = -1);
  FileDescriptor take(std::string_view key);
  bool read_replies();  // Returns false when the switchboard is gone.

  const FileDescriptor socket_;
  std::map<std::string, Reply, std::less<>> replies_;
};

// A rank's requests to its agent when its group has ranks of other agents too.
class LOCKSTEP_API AgentLine {
 public:
  // `agent_fd` is the inherited end of the socket pair, and stays open. Errors: misuse when it is
  // not open.
  explicit AgentLine(int agent_fd);

  // Returns nothing when the job has no token. Errors: system when the agent refuses, with its
  // reason; peer_lost when the agent is gone; timeout.
  std::optional<JobToken> job_token(Deadline deadline);

  // Returns the page on which the agent reports the ends of its ranks until it has a session page.
  // Errors: as job_token()'s.
  JobPage own_page(Deadline deadline);

  // Returns the number of ranks that the agent told its ranks. Errors: as job_token()'s.
  int world_size(Deadline deadline) { return own_page(deadline).world_size(); }

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
