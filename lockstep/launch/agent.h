// The agent of one host: the process that the ranks are children of.
//
// It does what the rendezvous of the hosts orders: starts the ranks, ends them, starts them anew;
// and tells it how they ended. It puts their output in order, passes signals on, and answers
// `lockstep status`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/local_ranks.h"
#include "lockstep/launch/log_queue.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"
#include "lockstep/launch/status.h"

namespace lockstep {

class Agent {
 public:
  // `options` and `binding` outlive it; `signals` are blocked already. Of `lifeline`, a pipe, the
  // guardian has the other end.
  Agent(const RunOptions& options, const BindingPlan& binding, const sigset_t& signals,
        int lifeline);

  // Returns when the job is over and nothing of the ranks is left: what run() is to return.
  int run();

 private:
  // One turn of the loop: waits for something to happen, and acts on it.
  void turn();
  void write_what_is_left();
  Deadline next_deadline() const;
  void read_signals();

  void answer_as(const std::string& job_id);
  void obey(const Order& order);
  void start(const Round& round);
  void say_pause(const StartLater& order);
  void end(const EndRanks& order);
  void finish(const EndJob& order);

  // The last rank of an attempt has gone.
  void conclude();
  void report_failure();
  void report(Outcome outcome, int exit_code);

  void on_signal(int signal);
  void on_stop_signal(int signal);
  bool over() const { return exit_code_ && (!ranks_ || ranks_->running() == 0); }

  Failure better_known(const Failure& failure) const;
  void say_failure(const Failure& failure);
  void say_why(const EndJob& order);
  std::string say_why_ended();
  JobStatus status() const;

  const RunOptions& options_;
  const Clock::time_point start_ = Clock::now();
  FileDescriptor signals_;
  int lifeline_;
  const BindingPlan& binding_;
  Output output_;
  LogQueue log_;
  Rendezvous rendezvous_;
  std::optional<StatusService> status_service_;
  std::optional<LocalRanks> ranks_;        // Of the latest attempt.
  bool concluded_ = true;                  // Whether the rendezvous knows that they are gone,
  bool reported_ = false;                  // and that one of them failed.
  std::optional<EndRanks> ended_because_;  // Why the latest attempt was ended.
  bool preempting_ = false;        // A stop signal was passed on as the news of a preemption.
  std::optional<int> stopped_by_;  // The signal that ends the job,
  bool leaving_ = false;           // or this host's part in it.
  std::optional<int> exit_code_;   // Once it is decided.
  bool orphaned_ = false;
  int last_signal_ = 0;
  Clock::time_point last_signal_at_ = {};
};

}  // namespace lockstep
