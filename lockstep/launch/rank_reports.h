// Reports of a host's ranks to their agent: their activity, and the end of an attempt.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/job_page.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/status.h"

namespace lockstep::launch {

// The job pages on which a host's ranks report their activity, by local rank.
//
// Until there is a session page, it is the agent's own page, with a slot for each local rank. A
// session page is that of a group which they share with another agent's ranks on this host; it has
// a slot for each rank of the job.
class RankPages {
 public:
  // Makes the agent's own page. Errors: system.
  RankPages(int local_ranks, const Round& round);

  int own_descriptor() const { return own_.descriptor(); }

  // Uses the session page behind `fd`, if it is of this job. Errors: those of JobPage::attach().
  void use_session_page(FileDescriptor fd);

  // The page in use, and where a rank is on it.
  const JobPage& page() const { return session_ ? *session_ : own_; }
  int slot(int local_rank) const { return session_ ? number(local_rank) : local_rank; }

  // Rank in the job.
  int number(int local_rank) const { return first_rank_ + local_rank; }

  JobPage::Phase phase(int local_rank) const { return page().phase(slot(local_rank)); }

  // True if the rank watches the page, or has just stopped doing so because of an exception.
  bool is_attached(int local_rank) const;

  // True if the rank would learn of a failure: it is attached, or has waited for a group.
  bool listens(int local_rank) const;

  // Pid of the process that joined the group, which may be a child of the one that we started.
  pid_t pid(int local_rank) const { return page().pid(slot(local_rank)); }
  bool expects_preemption(int local_rank) const;
  bool follows_abort(int local_rank) const;

  // To be called before the rank's process is told.
  void tell_to_end(int local_rank) const { page().tell_to_end(slot(local_rank)); }

  // Last activity of a rank whose process was `pid`; the caller adds how it ended.
  Failure examine(int local_rank, pid_t pid) const;

  // Report a failure to all ranks, those that are in no group yet, too: this one, or the cause of
  // the rank's end.
  void report(const Failure& failure) const;
  void report_end(int local_rank, const Failure& end) const;

  // The first failure that was reported, by a rank or by the agent.
  std::optional<Failure> failure() const { return page().failure(); }

  // The rank has ended in order. Tells those that wait for it in a new group.
  void note_end(int local_rank, const Failure& end) const { own_.note_end(local_rank, end); }

  RankStatus status(int local_rank) const;
  RankTimes times(int local_rank) const;

 private:
  const int first_rank_;
  const int world_size_;
  JobPage own_;
  std::optional<JobPage> session_;
};

// How one attempt ended on this host: its first failure, and the exit code that follows from it.
class AttemptResult {
 public:
  // The program could not be started; the job ends with this exit code, which is not 0.
  void fail_to_start(int exit_code) { start_error_ = exit_code; }

  // Ends of ranks of this host.
  void preempt() { preempted_ = true; }
  void fail(const Failure& end);

  // Sets the first failure, once: of a rank of this host, or of another host's rank that this
  // host's ranks have noticed. `noticed_after` is the time from its first notice by any process to
  // its notice by this agent.
  void set_first(const Failure& failure, std::chrono::milliseconds noticed_after);

  // Adds what is known of the first failure once its rank, of this host, has ended.
  void complete_first(const Failure& end);

  // Exit code of the job if the program could not be started; else 0.
  int start_error() const { return start_error_; }

  // More may become known of it until the last rank has ended.
  const std::optional<Failure>& first_failure() const { return first_; }
  std::chrono::milliseconds noticed_after() const { return noticed_after_; }

  // Exit code of the launcher because of the first failure; 0 without one.
  int exit_code() const;

  // Ranks of this host, by their rank in the job, that failed by themselves after the first one.
  std::vector<int> also_failed() const;

  // Outcome of the attempt. To be called once no rank is running.
  Outcome outcome() const;

 private:
  int start_error_ = 0;
  bool preempted_ = false;
  std::optional<Failure> first_;
  std::chrono::milliseconds noticed_after_{0};
  std::set<int> failed_;       // By rank in the job.
  int code_of_first_end_ = 0;  // Code of the first rank that was seen to fail.
};

}  // namespace lockstep::launch
