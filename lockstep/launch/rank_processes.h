// The processes of a host's ranks, and the steps that end them.
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

// Each process leads its own process group. Ranks are local ones, in the order of add().
class RankProcesses {
 public:
  void add(pid_t pid);

  // The rank, which has ended, has a new process.
  void replace(int rank, pid_t pid);

  int size() const { return static_cast<int>(processes_.size()); }
  int running() const { return running_; }
  std::vector<int> left() const;
  pid_t pid(int rank) const { return at(rank).pid; }
  bool has_ended(int rank) const { return at(rank).ended; }

  bool was_told(int rank) const { return at(rank).told; }

  // Reaps all ended children of this process. Calls `act` for ranks, before their pid can be
  // reused.
  void reap(const std::function<void(int rank, const siginfo_t& end)>& act);

  // Signal the process group of one rank, or of all running ranks, to end. A rank gets one such
  // signal, and then only SIGKILL.
  void tell(int rank, int signal);
  void tell_all(int signal);

  // Sends SIGKILL to the rank's process group. If the rank has ended, call it only within `act`.
  void kill_group(int rank) const;

  // Whether a process group that got a signal still has a process.
  bool have_left_some() const;

  // Treats all ranks as ended.
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

// Times the end of ranks: time to end by themselves, then a signal and a grace period, then
// SIGKILL.
class Termination {
 public:
  enum class Step { none, terminate, kill, abandon };

  // Step::terminate is due after `time`.
  void begin(std::chrono::milliseconds time);

  // Call it when the ranks get a signal, not after kill(). Step::kill is due after `grace`, perhaps
  // infinite.
  void begin_grace(std::chrono::milliseconds grace);

  // Call it when the ranks get SIGKILL; Step::abandon is due after time_to_die (process.h).
  void kill();

  bool begun() const { return next_ != Step::none; }
  bool killed() const { return next_ == Step::abandon; }

  // in_grace() is false in an infinite grace period.
  std::chrono::milliseconds grace() const { return grace_; }
  bool in_grace(Clock::time_point now) const;

  Deadline deadline() const { return deadline_; }
  Step due(Clock::time_point now) const { return now < deadline_ ? Step::none : next_; }

 private:
  Step next_ = Step::none;
  Deadline deadline_ = no_deadline;
  std::chrono::milliseconds grace_{0};
};

}  // namespace lockstep::launch
