// This process's membership in a job on this host: slot in the job page, the sentinel thread that
// holds the slot, memory passed from rank to rank, and preemption signals. Exists once per process.
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
#include "lockstep/job/job_page.h"
#include "lockstep/job/switchboard.h"

namespace lockstep {

// The one background thread that runs as long as this process is part of a job.
//
// It holds the process's mutex in the job page, so that peers learn of a death from the kernel. It
// increases the heartbeat and looks for lost peers. It also runs this process's switchboards.
class LOCKSTEP_API Sentinel {
 public:
  // Returns once `slot` of `page` is taken. `page` and the switchboards must outlive the sentinel.
  // Calls `look` ten times a second until leave_as(); it must not throw. Errors: misuse when a
  // living process holds the slot.
  Sentinel(JobPage& page, int slot, std::vector<Switchboard*> switchboards,
           std::function<void()> look);

  // Leaves the slot in the phase given to leave_as(); without it, as abandoned.
  ~Sentinel();
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;

  void leave_as(JobPage::Phase how) { how_ = how; }

 private:
  void live(std::promise<void> entered);
  void watch_switchboards(std::vector<pollfd>& entries) const;
  void serve_what_is_left(std::vector<pollfd>& entries);

  JobPage& page_;
  const int slot_;
  const std::vector<Switchboard*> switchboards_;
  const std::function<void()> look_;
  std::atomic<JobPage::Phase> how_{JobPage::Phase::abandoned};
  FileDescriptor stop_;  // An eventfd, readable once the sentinel should end.
  Thread thread_;
};

// The processes of a session and how they find each other: through the agent that started all of
// them, or on the abstract Unix socket named by `identity`, which one of them opens.
struct LOCKSTEP_API HostMeeting {
  int rank = 0;  // This process's slot in the job page.
  int size = 1;
  std::string job_id = {};           // For messages only.
  JobPage::Told told = {};           // Announced to the others, unless its `meeting` is 0.
  std::optional<int> agent_fd = {};  // This process's end of the agent's socket pair. Empty:
                                     // `identity` is used.
  std::string identity = {};         // Names the socket; known to this session only.
  bool opens = false;                // Whether this process opens the socket.
  bool is_alone = false;             // Whether this process opens it and expects no others.

  static HostMeeting through_agent(const LaunchEnvironment& who);

  // `name` distinguishes this session from an earlier one of the same job, which a slower rank may
  // still be leaving. A non-empty `secret` replaces the job's id, which others could guess. Errors:
  // misuse when both together are too long.
  static HostMeeting on_socket(const LaunchEnvironment& who, std::string_view name,
                               std::string_view secret = {});
};

class LOCKSTEP_API HostSession {
 public:
  // Returns when this rank has its slot; others may come later. Errors: timeout when rank 0 does
  // not come. Mismatch when this rank has no slot. Mismatch when the launcher gives another number
  // of ranks (rank 0 does, if there is no launcher), unless `told` is announced. Misuse when a
  // process with this rank is already there.
  // Calls `meanwhile` while rank 0 has not come.
  HostSession(
      const HostMeeting& meeting, Deadline deadline,
      const std::function<void()>& meanwhile = [] {});

  // Leaves the job page: in order after finish(), otherwise as a rank that abandons the job.
  ~HostSession();

  int rank() const { return rank_; }
  int meeting() const { return meeting_; }  // From HostMeeting::told.
  int size() const { return page_->slots(); }
  bool has_agent() const { return has_agent_; }  // Else rank 0 has made the job page.
  JobPage& page() { return *page_; }

  // The page, for code that needs it after this session ends.
  std::shared_ptr<const JobPage> shared_page() const { return page_; }

  // Hands `fd` to every rank that fetches `key` from this one, until withdraw(). The caller keeps
  // `fd`. No other process is needed. Errors: system when this process has too many open files.
  void offer(std::string_view key, int fd) const;

  // Makes their fetch() throw Error(system) with this reason.
  void refuse(std::string_view key, std::string_view reason) const;
  void withdraw(std::string_view key) const noexcept;

  // As offer(), until the result is destroyed. A fork()ed child may destroy its copy.
  std::shared_ptr<const void> hand_out(std::string key, int fd) const;

  // Blocks until the rank in `slot` has offered `key`; empty at the deadline. Calls `give_up` every
  // 20 ms; it may throw. Errors: system when this process has too many open files, or when that
  // rank has refused.
  FileDescriptor fetch(int slot, std::string_view key, Deadline deadline,
                       const std::function<void()>& give_up) const;

  // Gives `fd` to the rank in `slot`, which takes it under `key` whenever it likes: this process
  // may have left or ended by then. The caller keeps `fd`. Does nothing if that rank has left or
  // was lost. Errors: system when this process has too many open files.
  void deliver(int slot, std::string_view key, int fd) const;

  // Returns what another rank has delivered under `key`; empty until it has come. Never blocks.
  // Errors: system when this process had no descriptor left to receive it.
  FileDescriptor take(std::string_view key) const;

  // Releases what another rank delivers under `key`, whether it has come or is still to come.
  void drop(std::string_view key) const noexcept;

  // Throws Error(peer_lost) when a rank of this host was lost; `context` begins its message. Costs
  // about 20 ns a rank: call it in a wait's slow path, not in a spin loop. Logs the failure record
  // once. The sentinel logs it if it notices first.
  void throw_if_peer_lost(std::string_view context) const;

  // Records in the job page that living ranks, or ranks that left, ended a call of this process,
  // and logs it. If another process detected the break by living ones, its record is used instead.
  void note_break(Failure failure);

  // All ranks destroyed the group: leaving is no failure from now on. Nothing is handed out any
  // more.
  void finish();

  // This rank has left in order, while others go on: its end is no failure from now on. They need
  // nothing of this session any more.
  void leave();
  bool has_left() const { return page_->phase(rank_) == JobPage::Phase::finished; }

  // This process meets its peers elsewhere: its slot gets its former state back.
  void withdraw() { sentinel_->leave_as(JobPage::Phase::vacant); }

  // This rank continues without its group: its peers' calls fail from now on.
  void abandon() { page_->abandon(rank_); }

 private:
  std::optional<Failure> find_failure() const;
  void look() noexcept;
  bool is_logged(const Failure& failure) const;
  void log_once(const Failure& failure) const;
  Failure examine(int peer) const;
  std::optional<Failure> recorded_failure() const;
  void open_switchboard(const HostMeeting& meeting);

  const int rank_;
  const int meeting_;
  const bool has_agent_;
  std::shared_ptr<JobPage> page_;
  std::unique_ptr<Switchboard> switchboard_;  // In rank 0, if no agent started the job: for those
                                              // that have not joined yet.
  std::shared_ptr<Switchboard> own_memory_;   // Null if this rank is alone.
  mutable std::mutex logged_mutex_;
  mutable std::set<std::string> logged_;  // Keys of the failures already logged.
  std::atomic<bool> is_speaking_{false};
  Thread speaker_;                      // Logs for the sentinel, which must not wait for a sink.
  std::unique_ptr<Sentinel> sentinel_;  // Last member: its thread must end before the members it
                                        // uses.
};

// Catches the preemption signals from now on, SIGTERM and SIGUSR1, so that they end no process.
// They tell a process that its job must make room. Signal handlers belong to the process, so all of
// its groups share this state. A second call changes nothing. Errors: system.
LOCKSTEP_API void keep_preemption_signals();

// Whether keep_preemption_signals() was called, and whether a signal has come since.
LOCKSTEP_API bool keeps_preemption_signals();
LOCKSTEP_API bool preemption_signalled();

}  // namespace lockstep
