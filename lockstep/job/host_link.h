// A rank's connection to the FdBroker that has the JobControlBlock: the agent's or, without an
// agent, rank 0's.
//
// Thread safety: one thread at a time. Errors: peer_lost when the broker has ended; timeout.

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

  // Blocks until the broker has sent `key`. Errors: also those of descriptor_in().
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

// A rank's connection to its agent. Errors: as HostLink's; system, with the reason, when the agent
// refuses.
class LOCKSTEP_API AgentConnection {
 public:
  // `agent_fd`, the inherited end of the socket pair, stays open. Errors: misuse if it is not open.
  explicit AgentConnection(int agent_fd);

  // Empty when the job has no token.
  std::optional<JobToken> job_token(Deadline deadline);

  // The control block of the agent's own ranks. The agent reports their ends there, also after
  // offer_session_page().
  JobControlBlock own_page(Deadline deadline);

  int world_size(Deadline deadline) { return own_page(deadline).world_size(); }

  // Sends the control block of all agents' ranks. The agent then reads activity there, and also
  // reports its ranks' ends there.
  void offer_session_page(const JobControlBlock& page);

 private:
  HostLink link_;
};

// Close-on-exec. Errors: as AgentConnection's.
FileDescriptor duplicate_agent_fd(int agent_fd);

// Sealed memory for job_token_key: the token's text, if any, and a zero byte.
LOCKSTEP_API FileDescriptor share_job_token(const std::optional<JobToken>& token);

}  // namespace lockstep
