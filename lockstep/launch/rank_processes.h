// The processes of a host's ranks, and the steps in which their agent ends them.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <vector>

#include "lockstep/base/time.h"

namespace lockstep::launch {

// Which processes run, and the signals they get. Each one leads a process group of its own, which
// also holds its children. Ranks are local ones, in the order of add().
class RankProcesses {
 public:
  void add(pid_t pid);

  int size() const { return static_cast<int>(processes_.size()); }
  int running() const { return running_; }
  std::vector<int> left() const;  // Ranks that run.
  pid_t pid(int rank) const { return at(rank).pid; }
  bool has_ended(int rank) const { return at(rank).ended; }

  // True if a signal of tell() was meant to end the rank.
  bool was_told(int rank) const { return at(rank).told; }

  // Reaps all children of this process that have ended. Calls `act` for those that are ranks, while
  // their pid is still their own.
  void reap(const std::function<void(int rank, const siginfo_t& end)>& act);

  // Sends the process group of one rank, or of all ranks that run, a signal to end. A rank gets one
  // such signal, and then only SIGKILL.
  void tell(int rank, int signal);
  void tell_all(int signal);

  // True if a process is left in the group of a rank that was told to end.
  bool have_left_some() const;

  // Takes all ranks for ended.
  void leave_behind();

 private:
  struct Process {
    pid_t pid = 0;
    bool ended = false;
    bool told = false;
  };

  const Process& at(int rank) const { return processes_[static_cast<std::size_t>(rank)]; }

  std::vector<Process> processes_;
  int running_ = 0;
};

// The steps: time to end by themselves, then a signal and a grace period, then SIGKILL. It decides
// which step is due when, and knows no process.
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

}  // namespace lockstep::launch
