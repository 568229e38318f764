// A rank's connection to the switchboard of its host, and through it to its agent.
//
// Thread safety: any thread may call any member of HostLink at any time; one thread at a time those
// of AgentLine.
// Errors: peer_lost when the switchboard is gone, or when a rank of the job was lost during a wait.
// At first a call meets a switchboard that is gone as one that does not answer: whoever waits may
// know which rank was lost.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
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

  int socket() const { return socket_.get(); }

  // Lets `readers` other ranks obtain `fd` under `key`. The caller keeps `fd`.
  void offer(std::string_view key, int readers, int fd);

  // Makes their obtain() throw Error(system) with this reason.
  void refuse(std::string_view key, int readers, std::string_view reason);

  // Blocks until a rank has offered `key`. Calls `give_up` every 20 ms; it may throw.
  FileDescriptor obtain(
      std::string_view key, Deadline deadline, const std::function<void()>& give_up = [] {});

  // Takes back offer(), refuse() and obtain() of `key`, after which nobody needs it any more. Never
  // throws: without a switchboard there is nothing to take back.
  void withdraw(std::string_view key) noexcept;

  // obtain() in two steps that do not block. poll() returns nothing until the descriptor has come.
  void request(std::string_view key);
  FileDescriptor poll(std::string_view key);

 private:
  struct Reply {
    Packet packet;
    FileDescriptor fd;
  };

  void send(const Packet& packet, int fd = -1);
  void note_end();
  FileDescriptor take(std::string_view key);
  bool read_replies();  // Whether there were replies.

  const FileDescriptor socket_;
  std::atomic<Deadline> gone_{no_deadline};  // Until when an end of the switchboard is no Error.
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool reading_ = false;  // One of the waiting threads reads for all of them.
  std::map<std::string, Reply, std::less<>> replies_;
};

// A rank's requests to its agent when its group has ranks of other agents too. A group within one
// agent passes descriptors over the same connection: host_session.h.
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
