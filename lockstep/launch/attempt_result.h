// How one attempt ended on this host: its first failure, and the exit code that follows from it.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/launch/rendezvous.h"

namespace lockstep {

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

}  // namespace lockstep
