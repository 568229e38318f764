// This process's membership in a job on this host: its slot in the JobControlBlock, the liveness
// thread, memory passed between ranks, and preemption signals. One per world.
//
// Thread safety: full.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/job/environment.h"
#include "lockstep/job/fd_broker.h"
#include "lockstep/job/job_control_block.h"

namespace lockstep {

// Holds the process's robust mutex in the job control block, so that peers detect its death.
// Increments the heartbeat, checks for lost peers, and runs this process's fd brokers.
class LOCKSTEP_API LivenessThread {
 public:
  // Returns when the thread has entered `slot` of `page`; `page` and the brokers must outlive this
  // object. Calls `look`, which must not throw, ten times a second until leave_as(). Errors: misuse
  // when a running process holds the slot.
  LivenessThread(JobControlBlock& page, int slot, std::vector<FdBroker*> brokers,
                 std::function<void()> look);

  // Leaves the slot as leave_as() set, by default as abandoned.
  ~LivenessThread();
  LivenessThread(const LivenessThread&) = delete;
  LivenessThread& operator=(const LivenessThread&) = delete;

  void leave_as(JobControlBlock::Phase how) { how_ = how; }

 private:
  void live(std::promise<void> entered);
  void watch_fd_brokers(std::vector<pollfd>& entries) const;
  void serve_what_is_left(std::vector<pollfd>& entries);

  JobControlBlock& page_;
  const int slot_;
  const std::vector<FdBroker*> brokers_;
  const std::function<void()> look_;
  std::atomic<JobControlBlock::Phase> how_{JobControlBlock::Phase::abandoned};
  FileDescriptor stop_;
  Thread thread_;
};

// The processes of a session and their rendezvous: the agent, or the abstract Unix socket
// `identity`.
struct LOCKSTEP_API HostMeeting {
  int rank = 0;  // This process's slot.
  int size = 1;
  std::string job_id = {};
  JobControlBlock::Announced announced = {};  // Published, unless its `meeting` is 0.
  std::optional<int> agent_fd = {};           // Empty: `identity` is used.
  std::string identity = {};                  // Unique to the session.
  bool opens = false;                         // Creates the control block and the socket.
  bool is_alone = false;                      // With `opens`: expects no others, needs no socket.

  static HostMeeting through_agent(const LaunchEnvironment& who);

  // `name` distinguishes this session from an earlier one that a slow rank has not left yet.
  // `secret`, if not empty, replaces the job's id, which other users could guess. Errors: misuse
  // when both together are too long.
  static HostMeeting on_socket(const LaunchEnvironment& who, std::string_view name,
                               std::string_view secret = {});
};

// Errors of offer(), fetch(), deliver() and take(): system when this process has too many open
// files.
class LOCKSTEP_API HostSession {
 public:
  // Returns when this rank has its slot; others may join later. Calls `meanwhile` until rank 0
  // listens. Errors: timeout if it does not. Mismatch if the launcher, or without one rank 0, has
  // another number of ranks; with `announced`, only if this rank has no slot. Misuse if a running
  // process has this rank, or another job this identity.
  HostSession(
      const HostMeeting& meeting, Deadline deadline,
      const std::function<void()>& meanwhile = [] {});

  // Leaves the slot: finished after finish(), vacant after withdraw(), otherwise abandoned.
  ~HostSession();

  int rank() const { return rank_; }
  int meeting() const { return meeting_; }
  int size() const { return page_->slots(); }
  bool has_agent() const { return has_agent_; }  // Otherwise rank 0 created the control block.
  JobControlBlock& page() { return *page_; }

  // For use after this session ends.
  std::shared_ptr<const JobControlBlock> shared_page() const { return page_; }

  // Publishes `fd`, which the caller keeps, until withdraw().
  void offer(std::string_view key, int fd) const;

  // Makes fetch() of `key` throw Error(system).
  void refuse(std::string_view key, std::string_view reason) const;
  void withdraw(std::string_view key) const noexcept;

  // offer() until the result is destroyed. A fork()ed child may destroy its copy.
  std::shared_ptr<const void> hand_out(std::string key, int fd) const;

  // Blocks as fetch() (fd_broker.h) until `slot` has offered `key`; empty at the deadline.
  FileDescriptor fetch(int slot, std::string_view key, Deadline deadline,
                       const std::function<void()>& check) const;

  // Sends `fd`, which the caller keeps, to `slot`, which can take it even after this process has
  // ended. Does nothing unless that rank runs in its slot. Errors: also timeout, after 30 s.
  void deliver(int slot, std::string_view key, int fd) const;

  // Returns what another rank has delivered under `key`; empty before that. Never blocks.
  FileDescriptor take(std::string_view key) const;

  // Discards another rank's deliver() of `key`, before or after this call.
  void drop(std::string_view key) const noexcept;

  // Throws Error(peer_lost) for the job's first failure, such as a lost rank, or for a rank that
  // exited before joining. Logs it once. Costs about 20 ns per rank: do not call it in a spin loop.
  void throw_if_peer_lost(std::string_view context) const;

  // Records and logs that running ranks, or ranks that left, made a call of this process fail.
  // If another rank detected the failure, an earlier record of the same fault has priority.
  void note_break(Failure failure);

  // Call it when all ranks have destroyed the group: leaving is then no failure. Ends all offers.
  void finish();

  // As finish(), when this rank leaves in order and others continue: they see it at once, not at
  // destruction.
  void leave();
  bool has_left() const { return page_->phase(rank_) == JobControlBlock::Phase::finished; }

  // The destructor then vacates the slot: this process joins its peers elsewhere.
  void withdraw() { liveness_->leave_as(JobControlBlock::Phase::vacant); }

  // Call it when this rank continues without its group: its peers' calls then fail.
  void abandon() { page_->abandon(rank_); }

 private:
  std::optional<Failure> find_failure() const;
  void look() noexcept;
  bool is_logged(const Failure& failure) const;
  void log_once(const Failure& failure) const;
  Failure examine(int peer) const;
  std::optional<Failure> recorded_failure() const;
  void open_fd_broker(const HostMeeting& meeting);

  const int rank_;
  const int meeting_;
  const bool has_agent_;
  std::shared_ptr<JobControlBlock> page_;
  std::unique_ptr<FdBroker> broker_;  // Rank 0's, without an agent.
  std::shared_ptr<FdBroker> own_memory_;
  mutable std::mutex logged_mutex_;
  mutable std::set<std::string> logged_;
  std::atomic<bool> is_speaking_{false};
  Thread speaker_;                            // The liveness thread must not wait for a log.
  std::unique_ptr<LivenessThread> liveness_;  // Last: its thread uses the members above.
};

// Handles SIGTERM and SIGUSR1 as requests to save and exit, for all groups of the process. A second
// call has no effect. Errors: system.
LOCKSTEP_API void keep_preemption_signals();

LOCKSTEP_API bool keeps_preemption_signals();
LOCKSTEP_API bool preemption_signalled();

}  // namespace lockstep
