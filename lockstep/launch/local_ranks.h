// Starts and ends the ranks of one attempt on this host; passes descriptors between them.
//
// Thread safety: none.
// Blocking: until programs run, in the constructor and when a lost rank starts again.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/job/fd_broker.h"
#include "lockstep/job/store/tcp_store.h"
#include "lockstep/job/straggler.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/continuation.h"
#include "lockstep/launch/loop.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/rank_files.h"
#include "lockstep/launch/rank_processes.h"
#include "lockstep/launch/rank_reports.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"
#include "lockstep/launch/status.h"

namespace lockstep::launch {

class LocalRanks final : public Pollable {
 public:
  // `options`, `binding` and `output` must outlive it. Errors: system.
  LocalRanks(const RunOptions& options, const Round& round, const BindingPlan& binding,
             const std::optional<JobToken>& token, Output& output);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  const Round& round() const { return round_; }

  void watch(std::vector<pollfd>& entries) const override { broker_.watch(entries); }
  Deadline deadline() const override;
  void serve(const std::vector<pollfd>& entries) override;

  // Call it after serve() and reap().
  void act_on_deadlines();

  void reap();

  // Forwards a signal to the ranks that handle it. False without any.
  bool pass_on(int signal);

  // Empty with OnFailure::end_all.
  std::optional<Continuation>& continuation() { return continuation_; }

  // Whether ranks run, and all called on_preemption() or, as new replacements, handle SIGTERM.
  bool expect_preemption() const;

  // Final after the last rank's end.
  const AttemptResult& result() const { return result_; }

  // Prefers this host's record of the same rank's end. Adds ranks with the same exception.
  Failure better_known(const Failure& failure) const;

  // Also true for ranks of other hosts.
  bool was_attached(const Failure& failure) const;

  // `number` is a rank of the job.
  bool is_local(int number) const;

  // Ends the ranks after a failure on any host. Ranks in a group, or waiting for one, first get
  // time to throw an Error.
  void end_after(const Failure& failure);

  // Sends `signal`, and after `patience` SIGKILL to the remaining ranks.
  void end(int signal, std::chrono::milliseconds patience);

  void kill_all();

  bool ending() const { return termination_.begun(); }

  // Whether all ranks have ended, but other processes in their process groups have time to end.
  bool lingering() const;
  // Includes ranks that will start again.
  int running() const {
    return processes_.running() + (continuation_ ? continuation_->waiting() : 0);
  }

  std::vector<RankStatus> status() const;

  // Also available after the ranks' end.
  std::vector<RankTimes> times() const;

 private:
  void act_on(Termination::Step step);
  void act_on_losses(Clock::time_point now);
  void replace(int local_rank);
  void on_end(int local_rank, const siginfo_t& end);
  void on_failure(int local_rank, const Failure& failure);
  void take_for_first(int local_rank, const Failure& failure);
  void act_on_aborted(Clock::time_point now);
  int local_rank(int number) const { return number - round_.first_rank; }
  std::string names_of_left() const;

  const RunOptions& options_;
  const Round round_;
  const BindingPlan& binding_;
  Output& output_;
  RankPages pages_;
  FdBroker broker_;
  RankProcesses processes_;
  std::vector<ErrorFile> error_files_;
  AttemptResult result_;
  std::optional<Continuation> continuation_;

  // A rank that failed after another one had called abort(). The latter has until the deadline to
  // fail.
  struct Aborted {
    int local_rank = 0;
    Failure failure = {};
    Deadline until = {};
  };
  std::optional<Aborted> aborted_;
  Termination termination_;
};

}  // namespace lockstep::launch
