// Reports of a host's ranks to their agent.
//
// Thread safety: none. Blocking: only in examine(), as JobControlBlock's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/job_control_block.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/later_groups.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/status.h"

namespace lockstep::launch {

// The job control blocks of a host's ranks. The agent's own block has a slot for each local rank.
// In a job of several agents, a page that ranks make replaces it: the session page, with a slot for
// each rank of the job.
class RankPages {
 public:
  // Errors: system.
  RankPages(int local_ranks, const Round& round);

  int own_descriptor() const { return own_.descriptor(); }

  // Ignores a page with more or fewer slots than job ranks. Errors: JobControlBlock::attach()'s.
  void use_session_page(FileDescriptor fd);

  bool has_session_page() const { return session_.has_value(); }

  // For status(): see LaterGroups::add().
  void show_later_group(FileDescriptor fd) { later_groups_.add(std::move(fd)); }

  // Another process will take the rank's place. Until it enters the slot, the rank is_stale(): its
  // phase is vacant.
  void renew(int local_rank);

  const JobControlBlock& page() const { return session_ ? *session_ : own_; }
  int slot(int local_rank) const { return session_ ? number(local_rank) : local_rank; }

  // Rank in the job.
  int number(int local_rank) const { return first_rank_ + local_rank; }

  JobControlBlock::Phase phase(int local_rank) const;

  // Whether the rank is in a group, or has lost it and may still run.
  bool is_attached(int local_rank) const;

  // Whether the rank would detect a failure: attached, or waiting for a group.
  bool listens(int local_rank) const;

  // Pid of the process that joined the group, perhaps a child of the started one.
  pid_t pid(int local_rank) const { return page().pid(slot(local_rank)); }
  // False while is_stale().
  bool expects_preemption(int local_rank) const;

  // See renew().
  bool is_stale(int local_rank) const;
  bool follows_abort(int local_rank) const;

  // Call it before signalling the rank's process.
  void tell_to_end(int local_rank) const { page().tell_to_end(slot(local_rank)); }

  // The rank's latest activity and exit report; the caller adds how it ended.
  Failure examine(int local_rank, pid_t pid) const;

  // Report a failure, or the cause of the rank's end, to this host's ranks, in a group or not.
  void report(const Failure& failure) const;
  void report_end(int local_rank, const Failure& end) const;

  std::optional<Failure> failure() const { return page().failure(); }

  // Reports the rank's orderly exit to ranks that wait for it in a new group.
  void note_end(int local_rank, const Failure& end) const { own_.note_end(local_rank, end); }

  // In the newest group in which the rank lives. `pids`: as in LaterGroups::status().
  RankStatus status(int local_rank, const std::vector<pid_t>& pids) const;
  RankTimes times(int local_rank) const;

 private:
  const int first_rank_;
  const int world_size_;
  JobControlBlock own_;
  std::optional<JobControlBlock> session_;
  LaterGroups later_groups_;
  std::map<int, pid_t> earlier_pids_;  // By local rank: the process before renew().
};

class AttemptResult {
 public:
  // `exit_code` is not 0.
  void fail_to_start(int exit_code) { start_error_ = exit_code; }

  void preempt() { preempted_ = true; }
  void fail(const Failure& end);

  // Sets the first failure, once, perhaps of another host's rank. `noticed_after`: time from its
  // first report on this host.
  void set_first(const Failure& failure, std::chrono::milliseconds noticed_after);

  // Adds details when the first failure's rank, of this host, has ended.
  void complete_first(const Failure& end);

  // 0 if the program could be started.
  int start_error() const { return start_error_; }

  // complete_first() may change it.
  const std::optional<Failure>& first_failure() const { return first_; }
  std::chrono::milliseconds noticed_after() const { return noticed_after_; }

  // The start error, or else the first failure's code; 0 without either.
  int exit_code() const;

  // Adds to its `ranks` this host's ranks that ended with the same exception.
  std::optional<Failure> first_with_alike() const;

  // This host's other failed ranks, with another exception or none.
  std::vector<int> also_failed() const;

  // Call it when no rank is running.
  Outcome outcome() const;

 private:
  int start_error_ = 0;
  bool preempted_ = false;
  std::optional<Failure> first_;
  std::chrono::milliseconds noticed_after_{0};
  std::map<int, Failure> failed_;  // By rank in the job.
  int code_of_first_end_ = 0;
};

}  // namespace lockstep::launch
