// How the ranks of a host are ended, step by step: time to end by themselves, then a signal and a
// grace period, then SIGKILL. It decides which step is due when, and knows no process.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "lockstep/base/time.h"

namespace lockstep {

// Time for the kernel to end a killed process; a process that is stuck in the kernel never ends.
constexpr std::chrono::milliseconds time_to_die{5000};

class Termination {
 public:
  enum class Step { none, terminate, kill, give_up };

  // The ranks may end by themselves for so long; then Step::terminate is due.
  void begin(std::chrono::milliseconds time);

  // The ranks get a signal; Step::kill is due after `grace`, which may be endless. Not after
  // kill().
  void begin_grace(std::chrono::milliseconds grace);

  // The ranks get SIGKILL; Step::give_up is due after time_to_die.
  void kill();

  bool begun() const { return next_ != Step::none; }
  bool killed() const { return next_ == Step::give_up; }

  // The latest begin_grace()'s, and whether it lasts; an endless one does not.
  std::chrono::milliseconds grace() const { return grace_; }
  bool in_grace(Clock::time_point now) const;

  // Time of the next step, and that step once its time has come.
  Deadline deadline() const { return deadline_; }
  Step due(Clock::time_point now) const { return now < deadline_ ? Step::none : next_; }

 private:
  Step next_ = Step::none;
  Deadline deadline_ = no_deadline;
  std::chrono::milliseconds grace_{0};
};

}  // namespace lockstep
