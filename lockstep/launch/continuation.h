// A host's lost ranks under OnFailure::continue_without: which start again, and when. Does no I/O
// and reads no clock. Ranks are local ones.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/run.h"

namespace lockstep::launch {

class Continuation {
 public:
  using Time = Clock::time_point;

  static constexpr int default_replacements = 10;  // Times the host's ranks, which share them.

  // After a rank's success, others that stay stopped (SIGSTOP) for this time are stuck.
  static constexpr std::chrono::seconds stopped_limit{5};

  // After a failed start, for the system to free resources.
  static constexpr std::chrono::milliseconds least_pause{100};

  Continuation(const RunOptions& options, Time now);

  // The rank failed. `others`: count of running ranks. `name`: such as "rank 3". take_losses()
  // returns the failure with its consequence.
  void lose(int rank, const Failure& failure, const std::string& name, int others, Time now);

  // A rank exited with 0; leave(): with exit_preempted.
  void succeed(Time now);
  void leave() { any_left_ = true; }

  // The start of take_due()'s rank has failed. Unless stop() was called or all replacements are
  // used up, the rank is due again after a pause. Returns one line for the log.
  std::string retry(int rank, const std::string& name, Time now);

  // No rank starts again. Only the first `why` counts.
  void stop(const std::string& why = "the job is ending");

  int waiting() const { return static_cast<int>(waiting_.size()); }

  std::optional<int> take_due(Time now);

  int incarnation(int rank) const { return at(rank).incarnation; }

  // Whether the caller should look for stopped ranks now, for is_stuck().
  bool looks_for_stopped(Time now);
  bool is_stuck(int rank, bool stopped, Time now);

  // Call take_due() and looks_for_stopped() by this time.
  Deadline deadline() const;

  struct Loss {
    Failure failure;
    std::string consequence;
  };
  std::vector<Loss> take_losses() { return std::exchange(losses_, {}); }

  bool succeeded() const { return succeeded_at_.has_value(); }
  bool any_left() const { return any_left_; }
  const std::optional<Failure>& first_failure() const { return first_; }
  int failures() const { return failures_; }
  int replacements() const { return replacements_; }  // Started processes.

 private:
  struct Rank {
    RestartBackoff backoff;
    Time started;
    int incarnation = 0;
    std::optional<Time> stopped_since = {};
  };
  struct Start {
    int rank = 0;
    Time at;
  };

  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  std::string schedule(int rank, const std::string& name, std::chrono::milliseconds least,
                       Time now);

  const int most_;
  std::vector<Rank> ranks_;
  std::vector<Start> waiting_;
  std::string why_none_;  // Empty if ranks start again.
  int promised_ = 0;      // Includes pending replacements.
  int replacements_ = 0;
  int failures_ = 0;
  std::optional<Failure> first_;
  std::vector<Loss> losses_;
  std::optional<Time> succeeded_at_;
  Time look_at_ = {};
  bool any_left_ = false;
};

}  // namespace lockstep::launch
