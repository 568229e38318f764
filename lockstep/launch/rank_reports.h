// Reports of a host's ranks to their agent.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/job_control_block.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/status.h"

namespace lockstep::launch {

// The job control blocks of a host's ranks. The agent's own block has a slot for each local rank. A
// session page, with a slot for each rank of the job, replaces it when a group includes another
// agent's ranks on this host.
class RankPages {
 public:
  // Errors: system.
  RankPages(int local_ranks, const Round& round);

  int own_descriptor() const { return own_.descriptor(); }

  // Ignores a page with another number of slots than the job's ranks. Errors: those of
  // JobControlBlock::attach().
  void use_session_page(FileDescriptor fd);

  const JobControlBlock& page() const { return session_ ? *session_ : own_; }
  int slot(int local_rank) const { return session_ ? number(local_rank) : local_rank; }

  // Rank in the job.
  int number(int local_rank) const { return first_rank_ + local_rank; }

  JobControlBlock::Phase phase(int local_rank) const { return page().phase(slot(local_rank)); }

  // Whether the rank watches the block, or has just stopped doing so because of an exception.
  bool is_attached(int local_rank) const;

  // Whether the rank would detect a failure: it is attached, or has waited for a group.
  bool listens(int local_rank) const;

  // Pid of the process that joined the group, perhaps a child of the started one.
  pid_t pid(int local_rank) const { return page().pid(slot(local_rank)); }
  bool expects_preemption(int local_rank) const;
  bool follows_abort(int local_rank) const;

  // Call it before signalling the rank's process.
  void tell_to_end(int local_rank) const { page().tell_to_end(slot(local_rank)); }

  // The rank's latest activity; the caller adds how it ended.
  Failure examine(int local_rank, pid_t pid) const;

  // Report a failure, or the cause of the rank's end, to all ranks, also before they join a group.
  void report(const Failure& failure) const;
  void report_end(int local_rank, const Failure& end) const;

  std::optional<Failure> failure() const { return page().failure(); }

  // Reports the rank's orderly exit to ranks that wait for it in a new group.
  void note_end(int local_rank, const Failure& end) const { own_.note_end(local_rank, end); }

  RankStatus status(int local_rank) const;
  RankTimes times(int local_rank) const;

 private:
  const int first_rank_;
  const int world_size_;
  JobControlBlock own_;
  std::optional<JobControlBlock> session_;
};

// How one attempt ended on this host.
class AttemptResult {
 public:
  // The program could not be started; the code is not 0.
  void fail_to_start(int exit_code) { start_error_ = exit_code; }

  void preempt() { preempted_ = true; }
  void fail(const Failure& end);

  // Sets the first failure, once: of a rank here, or one that ranks here detected. `noticed_after`:
  // time from its first detection by any process to that by this agent.
  void set_first(const Failure& failure, std::chrono::milliseconds noticed_after);

  // Adds details of the first failure when its rank, of this host, has ended.
  void complete_first(const Failure& end);

  // 0 if the program could be started.
  int start_error() const { return start_error_; }

  // Details may be added until the last rank has ended.
  const std::optional<Failure>& first_failure() const { return first_; }
  std::chrono::milliseconds noticed_after() const { return noticed_after_; }

  // After the first failure; 0 without one.
  int exit_code() const;

  // Ranks of this host that ended with the first failed rank's exception, including it; empty if it
  // was the only one. The exception is then the cause, not the first rank.
  std::vector<int> ended_alike() const;

  // Ranks of this host that failed later, except ended_alike().
  std::vector<int> also_failed() const;

  // Call it when no rank is running.
  Outcome outcome() const;

 private:
  int start_error_ = 0;
  bool preempted_ = false;
  std::optional<Failure> first_;
  std::chrono::milliseconds noticed_after_{0};
  std::map<int, std::string> failed_;  // By rank in the job; the text of the exception, or empty.
  int code_of_first_end_ = 0;
};

}  // namespace lockstep::launch
