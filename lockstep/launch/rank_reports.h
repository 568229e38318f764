// Reports of a host's ranks to their agent: activity, failures, and the end of an attempt.
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

// The job control blocks where a host's ranks report their activity.
//
// The agent's own block has a slot for each local rank. A session page replaces it for a group with
// another agent's ranks on this host; it has a slot for each rank of the job.
class RankPages {
 public:
  // Creates the agent's own block. Errors: system.
  RankPages(int local_ranks, const Round& round);

  int own_descriptor() const { return own_.descriptor(); }

  // Uses the session page in `fd`, if it is of this job. Errors: those of
  // JobControlBlock::attach().
  void use_session_page(FileDescriptor fd);

  // The block in use, and a rank's slot in it.
  const JobControlBlock& page() const { return session_ ? *session_ : own_; }
  int slot(int local_rank) const { return session_ ? number(local_rank) : local_rank; }

  // Rank in the job.
  int number(int local_rank) const { return first_rank_ + local_rank; }

  JobControlBlock::Phase phase(int local_rank) const { return page().phase(slot(local_rank)); }

  // True if the rank watches the block, or has just stopped doing so because of an exception.
  bool is_attached(int local_rank) const;

  // True if the rank would detect a failure: it is attached, or has waited for a group.
  bool listens(int local_rank) const;

  // Pid of the process that joined the group, which may be a child of the started one.
  pid_t pid(int local_rank) const { return page().pid(slot(local_rank)); }
  bool expects_preemption(int local_rank) const;
  bool follows_abort(int local_rank) const;

  // Call it before sending the rank's process a signal.
  void tell_to_end(int local_rank) const { page().tell_to_end(slot(local_rank)); }

  // Latest activity of a rank whose process was `pid`; the caller adds how it ended.
  Failure examine(int local_rank, pid_t pid) const;

  // Report a failure, or the cause of the rank's end, to all ranks, including those that have not
  // joined a group.
  void report(const Failure& failure) const;
  void report_end(int local_rank, const Failure& end) const;

  // The first failure that a rank or the agent reported.
  std::optional<Failure> failure() const { return page().failure(); }

  // The rank has exited in order. Reports this to ranks that wait for it in a new group.
  void note_end(int local_rank, const Failure& end) const { own_.note_end(local_rank, end); }

  RankStatus status(int local_rank) const;
  RankTimes times(int local_rank) const;

 private:
  const int first_rank_;
  const int world_size_;
  JobControlBlock own_;
  std::optional<JobControlBlock> session_;
};

// How one attempt ended on this host: its first failure, and the resulting exit code.
class AttemptResult {
 public:
  // The program could not be started; the job ends with this exit code, which is not 0.
  void fail_to_start(int exit_code) { start_error_ = exit_code; }

  // Ends of ranks of this host.
  void preempt() { preempted_ = true; }
  void fail(const Failure& end);

  // Sets the first failure, once: of a rank of this host, or of another host's rank that this
  // host's ranks have detected. `noticed_after`: time from its first detection by any process to
  // its detection by this agent.
  void set_first(const Failure& failure, std::chrono::milliseconds noticed_after);

  // Adds details of the first failure when its rank, of this host, has ended.
  void complete_first(const Failure& end);

  // Exit code of the job if the program could not be started; else 0.
  int start_error() const { return start_error_; }

  // Details may be added until the last rank has ended.
  const std::optional<Failure>& first_failure() const { return first_; }
  std::chrono::milliseconds noticed_after() const { return noticed_after_; }

  // Exit code of the launcher after the first failure; 0 without one.
  int exit_code() const;

  // Ranks of this host, numbered in the job, that ended with the same exception as the first failed
  // rank, including it. An example is an Error on which all ranks agree. The rank that ended first
  // is then not the cause. Empty if no other rank has ended with that exception.
  std::vector<int> ended_alike() const;

  // The other ranks of this host that failed after the first one.
  std::vector<int> also_failed() const;

  // Outcome of the attempt. Call it when no rank is running.
  Outcome outcome() const;

 private:
  int start_error_ = 0;
  bool preempted_ = false;
  std::optional<Failure> first_;
  std::chrono::milliseconds noticed_after_{0};
  std::map<int, std::string> failed_;  // By rank in the job; the text of the exception, or empty.
  int code_of_first_end_ = 0;          // Code of the first rank detected as failed.
};

}  // namespace lockstep::launch
