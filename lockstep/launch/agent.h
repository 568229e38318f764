// Agent of one host: the process that starts and watches the ranks as its children.
//
// It obeys the rendezvous of the hosts: it starts, ends and restarts the ranks, and reports how
// they ended. It also orders their output, passes signals on, and answers `lockstep status`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/local_ranks.h"
#include "lockstep/launch/loop.h"
#include "lockstep/launch/metrics.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"
#include "lockstep/launch/status.h"

namespace lockstep::launch {

class Agent {
 public:
  // `options` and `binding` must outlive it; `signals` are blocked already. `lifeline` is a pipe
  // whose other end the guardian holds.
  Agent(const RunOptions& options, const BindingPlan& binding, const sigset_t& signals,
        int lifeline);

  // Returns run()'s exit code once the job is over and no process of a rank is left.
  int run();

 private:
  // State of the latest attempt; it only moves on.
  enum class Attempt {
    running,
    preempting,  // A stop signal was passed on to the ranks as a preemption notice.
    reported,    // The rendezvous knows, or has said itself, why the ranks end.
    concluded,   // It also knows that all ranks have ended; also before the first attempt.
  };

  // One turn of the loop: waits for an event, and acts on it.
  void turn();
  void write_what_is_left();

  void answer_as(const std::string& job_id);
  void obey(const Order& order);
  void start(const Round& round);
  void say_who_is_missing();
  void say_pause(const StartLater& order);
  void end(const EndRanks& order);
  void finish(const EndJob& order);

  // Called when the last rank of an attempt has ended.
  void conclude();
  void report_failure();
  void report(Outcome outcome, int exit_code);

  void on_signal(int signal);
  void on_stop_signal(int signal);
  bool over() const { return exit_code_ && (!ranks_ || ranks_->running() == 0); }

  void say_failure(const Failure& reported);
  void say_why(const EndJob& order);
  void say_straggler();
  std::string say_why_ended();
  JobStatus status() const;

  const RunOptions& options_;
  const Clock::time_point start_ = Clock::now();
  const BindingPlan& binding_;
  Lifeline guardian_;
  Output output_;
  LogQueue log_;
  Signals signals_;
  Rendezvous rendezvous_;
  Reminder reminder_;  // Says for whom this host waits, until ranks start.
  std::optional<StatusService> status_service_;
  std::optional<MetricsService> metrics_service_;
  // Ranks of the latest attempt.
  std::optional<LocalRanks> ranks_;
  Attempt attempt_ = Attempt::concluded;
  std::optional<EndRanks> ended_because_;  // Why the latest attempt was ended.
  // Signal that ends the job, or this host's part in it.
  std::optional<int> stopped_by_;
  // `stopped_by_` ends this host's part only.
  bool leaving_ = false;
  // Set once it is decided.
  std::optional<int> exit_code_;
};

}  // namespace lockstep::launch
