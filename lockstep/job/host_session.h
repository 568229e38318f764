// This process's membership in a job on this host. It has the slot in the job control block
// (JobControlBlock), the liveness thread, memory passed between ranks, and preemption signals.
// Exists once per process.
//
// Thread safety: any thread may call any member at any time.

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

// The liveness thread: runs as long as this process is part of a job.
//
// It holds the process's robust mutex in the job control block, so that the kernel reports the
// process's death to peers. It increments the heartbeat, checks for lost peers, and runs this
// process's fd brokers.
class LOCKSTEP_API LivenessThread {
 public:
  // Returns when it has entered `slot` of `page`. `page` and the brokers must outlive this object.
  // Calls `look` ten times a second until leave_as(); it must not throw. Errors: misuse when a
  // running process holds the slot.
  LivenessThread(JobControlBlock& page, int slot, std::vector<FdBroker*> brokers,
                 std::function<void()> look);

  // Leaves the slot in the phase given to leave_as(), by default as abandoned.
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
  FileDescriptor stop_;  // An eventfd, readable once the thread should end.
  Thread thread_;
};

// The processes of a session and their rendezvous. They meet through the agent that started them,
// or on the abstract Unix socket `identity`, which one of them opens.
struct LOCKSTEP_API HostMeeting {
  int rank = 0;  // This process's slot in the job control block.
  int size = 1;
  std::string job_id = {};                    // For messages only.
  JobControlBlock::Announced announced = {};  // Published to the others, unless its `meeting` is 0.
  std::optional<int> agent_fd = {};  // This process's end of the agent's socket pair. Empty:
                                     // `identity` is used.
  std::string identity = {};         // Names the socket; only this session has it.
  bool opens = false;                // Whether this process opens the socket.
  bool is_alone = false;             // Whether this process opens it and expects no others.

  static HostMeeting through_agent(const LaunchEnvironment& who);

  // `name` distinguishes this session from an earlier one of the same job, which a slower rank may
  // not have left. A non-empty `secret` replaces the job's id, which other users could guess.
  // Errors: misuse when both together are too long.
  static HostMeeting on_socket(const LaunchEnvironment& who, std::string_view name,
                               std::string_view secret = {});
};

// Errors of offer(), fetch(), deliver() and take(): system when this process has too many open
// files.
class LOCKSTEP_API HostSession {
 public:
  // Returns when this rank has its slot; others may join later. Errors: timeout when rank 0 does
  // not connect. Mismatch when this rank has no slot. Mismatch when the launcher (without one, rank
  // 0) has another number of ranks, unless `announced` is published. Misuse when a process with
  // this rank has already joined. Calls `meanwhile` until rank 0 has connected.
  HostSession(
      const HostMeeting& meeting, Deadline deadline,
      const std::function<void()>& meanwhile = [] {});

  // Leaves the job control block: in order after finish(), otherwise as abandoned.
  ~HostSession();

  int rank() const { return rank_; }
  int meeting() const { return meeting_; }  // From HostMeeting::announced.
  int size() const { return page_->slots(); }
  bool has_agent() const { return has_agent_; }  // Otherwise rank 0 created the job control block.
  JobControlBlock& page() { return *page_; }

  // The control block, for code that needs it after this session ends.
  std::shared_ptr<const JobControlBlock> shared_page() const { return page_; }

  // Sends `fd` to every rank that fetches `key` from this rank, until withdraw(). Needs no other
  // process. The caller keeps `fd`.
  void offer(std::string_view key, int fd) const;

  // Makes fetch() of `key` throw Error(system) with this reason.
  void refuse(std::string_view key, std::string_view reason) const;
  void withdraw(std::string_view key) const noexcept;

  // As offer(), until the result is destroyed. A fork()ed child may destroy its copy.
  std::shared_ptr<const void> hand_out(std::string key, int fd) const;

  // Blocks until the rank in `slot` has offered `key`; empty at the deadline. Calls `check` every
  // 20 ms; it may throw. Errors: also system when that rank has refused.
  FileDescriptor fetch(int slot, std::string_view key, Deadline deadline,
                       const std::function<void()>& check) const;

  // Sends `fd` to the rank in `slot`, which can take it under `key` at any time, even after this
  // process has left or ended. The caller keeps `fd`. Does nothing if that rank has left or was
  // lost.
  void deliver(int slot, std::string_view key, int fd) const;

  // Returns the descriptor that another rank has delivered under `key`; empty before that. Never
  // blocks.
  FileDescriptor take(std::string_view key) const;

  // Releases what another rank delivers under `key`, before or after this call.
  void drop(std::string_view key) const noexcept;

  // Throws Error(peer_lost) when a rank of this host was lost; the message begins with `context`.
  // Costs about 20 ns per rank: call it in a wait's slow path, not in a spin loop. Logs the failure
  // record, unless the liveness thread has logged it.
  void throw_if_peer_lost(std::string_view context) const;

  // Records in the job control block, and logs, that running ranks or ranks that left made a call
  // of this process fail. If another process detected the failure of running ranks, that record is
  // used instead.
  void note_break(Failure failure);

  // Call it when all ranks have destroyed the group: leaving is then not a failure. Ends all
  // offers.
  void finish();

  // Call it when this rank leaves in order while others continue: its end is then not a failure.
  // The others must not need this session any more.
  void leave();
  bool has_left() const { return page_->phase(rank_) == JobControlBlock::Phase::finished; }

  // Vacates the slot because this process joins its peers elsewhere.
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
  std::unique_ptr<FdBroker> broker_;      // In rank 0 without an agent: serves ranks that join.
  std::shared_ptr<FdBroker> own_memory_;  // Null if this rank is alone.
  mutable std::mutex logged_mutex_;
  mutable std::set<std::string> logged_;  // Keys of the logged failures.
  std::atomic<bool> is_speaking_{false};
  Thread speaker_;  // Logs for the liveness thread, which must not wait for a
                    // sink.
  std::unique_ptr<LivenessThread> liveness_;  // Last member: its thread uses the members above and
                                              // must end first.
};

// Installs handlers for the preemption signals SIGTERM and SIGUSR1, so that they do not end the
// process but request it to save and exit. Signal handlers belong to the process, so all of its
// groups share this state. A second call has no effect. Errors: system.
LOCKSTEP_API void keep_preemption_signals();

// Whether keep_preemption_signals() was called, and whether a signal has arrived since.
LOCKSTEP_API bool keeps_preemption_signals();
LOCKSTEP_API bool preemption_signalled();

}  // namespace lockstep
