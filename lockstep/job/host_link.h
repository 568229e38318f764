// A rank's connection to the FdBroker that has the JobControlBlock: the agent's, or rank 0's
// without an agent.
//
// Thread safety: one thread at a time. Errors: peer_lost when the broker's process has ended.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/job/fd_broker.h"
#include "lockstep/job/job_control_block.h"
#include "lockstep/job/store/tcp_store.h"

namespace lockstep {

class LOCKSTEP_API HostLink {
 public:
  explicit HostLink(FileDescriptor socket) : socket_(std::move(socket)) {}

  // Sends `fd`, which the caller keeps.
  void offer(std::string_view key, int fd);

  // Blocks until the broker has sent `key`. Errors: timeout.
  FileDescriptor obtain(std::string_view key, Deadline deadline);

 private:
  struct Reply {
    Packet packet;
    FileDescriptor fd;
  };

  void send(const Packet& packet, int fd = -1);
  FileDescriptor take(std::string_view key);
  bool read_replies();  // False when the broker's process has ended.

  const FileDescriptor socket_;
  std::map<std::string, Reply, std::less<>> replies_;
};

// A rank's connection to its agent, for a group with ranks of several agents.
class LOCKSTEP_API AgentConnection {
 public:
  // `agent_fd` is the inherited end of the socket pair, and stays open. Errors: misuse when it is
  // not open.
  explicit AgentConnection(int agent_fd);

  // Empty when the job has no token. Errors: system, with the reason, when the agent refuses;
  // peer_lost; timeout.
  std::optional<JobToken> job_token(Deadline deadline);

  // The control block of the agent's own ranks, where the agent reports their ends until it
  // receives a session page. Errors: as job_token()'s.
  JobControlBlock own_page(Deadline deadline);

  // As the agent passed it to its ranks. Errors: as job_token()'s.
  int world_size(Deadline deadline) { return own_page(deadline).world_size(); }

  // Sends the control block of all agents' ranks. The agent reads activity and records its ranks'
  // ends there.
  void offer_session_page(const JobControlBlock& page);

 private:
  HostLink link_;
};

// Duplicates it with close-on-exec. Errors: as AgentConnection's.
FileDescriptor duplicate_agent_fd(int agent_fd);

// The sealed memory that an agent publishes under job_token_key: the token's text and a zero byte.
LOCKSTEP_API FileDescriptor share_job_token(const std::optional<JobToken>& token);

}  // namespace lockstep
