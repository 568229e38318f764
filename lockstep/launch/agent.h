// The agent of one host, its ranks' parent process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <memory>
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
  // `options` and `binding` must outlive it. The caller has blocked `signals`. The supervisor holds
  // the other end of the pipe `lifeline`.
  Agent(const RunOptions& options, const BindingPlan& binding, const sigset_t& signals,
        int lifeline);

  // Returns run()'s exit code when no process of a rank is left.
  int run();

 private:
  // Ordered.
  enum class Attempt {
    running,
    preempting,  // SIGTERM was forwarded as a preemption.
    reported,    // The rendezvous knows why the ranks end.
    // The rendezvous knows that all ranks have ended; also before the first attempt.
    concluded,
  };

  void turn();
  void write_what_is_left();

  void answer_as(const std::string& job_id);
  void obey(const Order& order);
  void start(const Round& round);
  void say_who_is_missing();
  void say_pause(const StartLater& order);
  void end(const EndRanks& order);
  void finish(const EndJob& order);

  void conclude();
  void report_failure();
  void say_losses();
  void conclude_if_ended();
  void report(Outcome outcome, int exit_code);

  void on_signal(int signal);
  void on_stop_signal(int signal);
  bool over() const { return exit_code_ && (!ranks_ || ranks_->running() == 0); }

  std::string say_failure(const Failure& reported, const std::string& consequences);
  void log_failure_record(const Failure& failure);
  void say_why(const EndJob& order);
  void say_straggler();
  std::string say_why_ended();
  JobStatus status() const;

  const RunOptions& options_;
  const Clock::time_point start_ = Clock::now();
  const BindingPlan& binding_;
  Lifeline supervisor_;
  Output output_;
  LogQueue log_;
  Signals signals_;
  const std::unique_ptr<Rendezvous> rendezvous_;
  Reminder reminder_;
  std::optional<StatusService> status_service_;
  std::optional<MetricsService> metrics_service_;
  std::optional<LocalRanks> ranks_;
  Attempt attempt_ = Attempt::concluded;
  std::optional<EndRanks> ended_because_;
  std::optional<int> stopped_by_;
  // Whether only this host's part of the job ends.
  bool leaving_ = false;
  std::optional<int> exit_code_;
};

}  // namespace lockstep::launch
