// The processes of a host's ranks: which of them run, and the signals they get from their agent.
// Each one leads a process group of its own, which also holds its children.
//
// Thread safety: none. Blocking: never.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <vector>

namespace lockstep {

// Ranks are local ones, in the order of add().
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

}  // namespace lockstep
