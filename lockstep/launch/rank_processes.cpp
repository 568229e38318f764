// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_processes.h"

#include <sys/wait.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/launch/process.h"

namespace lockstep::launch {

void RankProcesses::add(pid_t pid) {
  processes_.push_back({.pid = pid});
  ++running_;
}

void RankProcesses::replace(int rank, pid_t pid) {
  Process& process = processes_[static_cast<std::size_t>(rank)];
  check(process.ended, "the rank's earlier process runs");
  process = {.pid = pid};
  ++running_;
}

std::vector<int> RankProcesses::left() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank)
    if (!processes_[rank].ended) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

void RankProcesses::reap(const std::function<void(int rank, const siginfo_t& end)>& act) {
  siginfo_t end{};
  while (::waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid != 0) {
    const auto found = std::find_if(
        processes_.begin(), processes_.end(),
        [&](const Process& process) { return process.pid == end.si_pid && !process.ended; });
    if (found != processes_.end()) {
      found->ended = true;
      --running_;
      act(static_cast<int>(found - processes_.begin()), end);
    }
    ::waitpid(end.si_pid, nullptr, 0);
    end = {};
  }
}

void RankProcesses::tell(int rank, int signal) {
  Process& process = processes_[static_cast<std::size_t>(rank)];
  if (process.ended || (process.told && signal != SIGKILL)) return;
  if (::kill(-process.pid, signal) != 0) ::kill(process.pid, signal);
  ::kill(-process.pid, SIGCONT);  // A stopped process would not handle the signal.
  process.told = true;
}

void RankProcesses::tell_all(int signal) {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) tell(static_cast<int>(rank), signal);
}

void RankProcesses::kill_group(int rank) const { ::kill(-at(rank).pid, SIGKILL); }

bool RankProcesses::have_left_some() const {
  return std::any_of(processes_.begin(), processes_.end(), [](const Process& process) {
    return process.told && ::kill(-process.pid, 0) == 0;
  });
}

void RankProcesses::leave_behind() {
  for (Process& process : processes_) process.ended = true;
  running_ = 0;
}

void Termination::begin(std::chrono::milliseconds time) {
  check(!begun(), "the ranks are being ended already");
  next_ = Step::terminate;
  deadline_ = in(time);
}

void Termination::begin_grace(std::chrono::milliseconds grace) {
  check(!killed(), "the ranks have been killed already");
  next_ = Step::kill;
  deadline_ = in(grace);
  grace_ = grace;
}

void Termination::kill() {
  next_ = Step::abandon;
  deadline_ = in(time_to_die);
}

bool Termination::in_grace(Clock::time_point now) const {
  return next_ == Step::kill && deadline_ != no_deadline && now < deadline_;
}

}  // namespace lockstep::launch
