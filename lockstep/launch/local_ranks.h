// The ranks of one attempt on this host: their start, their descriptors, and their end.
//
// Thread safety: none; used by the thread of its poll() loop.
// Blocking: only the constructor, until every program runs.

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

  // Call it in each loop iteration, after serve() and reap().
  void act_on_deadlines();

  void reap();

  // Forwards a signal to the ranks that handle it. False when there are none.
  bool pass_on(int signal);

  // True if all running ranks handle SIGTERM as a preemption: ProcessGroup::on_preemption().
  bool expect_preemption() const;

  // Details may be added until the last rank has ended.
  const AttemptResult& result() const { return result_; }

  // Returns this host's record of the failure if the failed rank was here: it has more details.
  Failure better_known(const Failure& failure) const;

  // Also true for ranks of other hosts.
  bool was_attached(const Failure& failure) const;

  // `number` is a rank of the job.
  bool is_local(int number) const;

  // Ends the ranks after a failure here or on another host. They first get time to throw an Error
  // with it.
  void end_after(const Failure& failure);

  // Sends `signal`, and after `patience` SIGKILL to the remaining ranks.
  void end(int signal, std::chrono::milliseconds patience);

  void kill_all();

  bool ending() const { return termination_.begun(); }

  // True if only processes in the ranks' process groups run, and still have time to end.
  bool lingering() const;
  int running() const { return processes_.running(); }

  std::vector<RankStatus> status() const;

  // Also available after the ranks' end.
  std::vector<RankTimes> times() const;

 private:
  void act_on(Termination::Step step);
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

  // A rank that ended after another one had called abort(). The latter is the cause, and may end
  // until the deadline.
  struct Aborted {
    int local_rank = 0;
    Failure failure = {};
    Deadline until = {};
  };
  std::optional<Aborted> aborted_;
  Termination termination_;
};

}  // namespace lockstep::launch
