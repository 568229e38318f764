// A rank's connection to the fd broker (FdBroker) that has the job control block (JobControlBlock).
// The agent runs this broker, or rank 0 if there is no agent.
//
// Thread safety: one thread at a time may call the members.
// Errors: peer_lost when the broker's process has ended.

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

  // Sends `fd` to the broker's process, under `key`. The caller keeps `fd`.
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
  bool read_replies();  // Returns false when the broker's process has ended.

  const FileDescriptor socket_;
  std::map<std::string, Reply, std::less<>> replies_;
};

// A rank's connection to its agent, for a group with ranks of several agents.
class LOCKSTEP_API AgentConnection {
 public:
  // `agent_fd` is the inherited end of the socket pair. It stays open. Errors: misuse when it is
  // not open.
  explicit AgentConnection(int agent_fd);

  // Returns nothing when the job has no token. Errors: system when the agent refuses, with its
  // reason; peer_lost when the agent has ended; timeout.
  std::optional<JobToken> job_token(Deadline deadline);

  // Returns the control block of the agent's own ranks. The agent reports their ends there until it
  // receives a session page. Errors: as job_token()'s.
  JobControlBlock own_page(Deadline deadline);

  // Returns the number of ranks that the agent passed to its ranks. Errors: as job_token()'s.
  int world_size(Deadline deadline) { return own_page(deadline).world_size(); }

  // Sends the agent the control block for ranks of all agents. The agent reads their activity and
  // records the ends of its own ranks there.
  void offer_session_page(const JobControlBlock& page);

 private:
  HostLink link_;
};

// Duplicates the inherited descriptor with close-on-exec. Errors: as AgentConnection's.
FileDescriptor duplicate_agent_fd(int agent_fd);

// Returns the sealed memory that an agent publishes under job_token_key: the token's text and a
// zero byte.
LOCKSTEP_API FileDescriptor share_job_token(const std::optional<JobToken>& token);

}  // namespace lockstep
