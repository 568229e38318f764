// The agent of one host: the process that the ranks are children of.
//
// It starts them, hands them the job page and each other's descriptors, puts their output in
// order, and when the first of them fails, or a signal says so, ends them all.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/error.h"
#include "lockstep/comm/host/file_descriptor.h"
#include "lockstep/comm/host/job_page.h"
#include "lockstep/comm/host/switchboard.h"
#include "lockstep/comm/time.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/process.h"
#include "lockstep/launch/reserved_port.h"
#include "lockstep/launch/run.h"

namespace lockstep {

class Agent {
 public:
  // `signals` are blocked already. Of `lifeline`, a pipe, the guardian has the other end.
  Agent(const RunOptions& options, const sigset_t& signals, int lifeline);

  // Starts the ranks and returns when nothing of them is left: what run() is to return.
  int run();

 private:
  struct Rank {
    pid_t pid = 0;
    bool ended = false;
    bool failed = false;
    bool told = false;  // To end, by a signal of ours.
  };

  // 0, or the exit code that says why the program could not be started.
  int start();
  Process start_rank(int rank, const RankBinding& binding, int open_files);

  // One turn of the loop: waits for something to happen, and acts on it.
  void turn();
  int milliseconds_to_next_deadline() const;
  void act_on_deadlines();
  void read_signals();

  // The ends of ranks, and what they lead to.
  void reap();
  void on_end(int rank, const siginfo_t& end);
  void on_failure(const Failure& failure);
  void on_stop_signal(int signal);
  bool attached(int rank) const;
  bool any_attached(const std::vector<int>& ranks) const;
  bool stopping() const { return first_ || stopped_by_; }
  void tell(Rank& rank, int signal);
  void kill_all();
  std::vector<int> running() const;

  void say_why();
  int exit_code() const;

  const RunOptions& options_;
  const std::string job_id_;
  FileDescriptor signals_;
  int lifeline_;
  ReservedPort port_;
  JobPage page_;
  Switchboard switchboard_;
  Output output_;
  std::vector<Rank> ranks_;
  int running_ = 0;
  bool orphaned_ = false;

  std::optional<Failure> first_;   // The failure that ends the job,
  std::optional<int> stopped_by_;  // or the signal that does.
  int code_of_first_end_ = 0;      // Of the first rank that was seen to fail.
  Deadline terminate_at_ = no_deadline;
  Deadline kill_at_ = no_deadline;
  Deadline give_up_at_ = no_deadline;
  Clock::time_point last_interrupt_ = {};
};

}  // namespace lockstep
