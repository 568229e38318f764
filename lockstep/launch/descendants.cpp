// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/descendants.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/time.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Returns true when no child is left.
bool reap_all() {
  pid_t pid = 0;
  do {
    pid = ::waitpid(-1, nullptr, WNOHANG | __WALL);
  } while (pid > 0);
  return pid < 0 && errno == ECHILD;
}

// Returns at the next SIGCHLD, at the deadline, or after a tenth of a second: the adoption of an
// orphan sends no signal.
void wait_for_child(Deadline deadline) {
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
  constexpr std::chrono::nanoseconds longest = 100ms;
  const timespec time{0, static_cast<long>(std::clamp(left, 0ns, longest).count())};
  ::sigtimedwait(&child, nullptr, &time);
}

}  // namespace

std::vector<pid_t> children(const std::filesystem::path& proc) {
  std::vector<pid_t> found;
  for (const pid_t pid : process_ids(proc))
    if (const auto process = process_stat(pid, proc); process && process->parent == ::getpid())
      found.push_back(pid);
  return found;
}

void adopt_orphans() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw_errno("PR_SET_CHILD_SUBREAPER");
}

bool end_descendants(std::chrono::milliseconds limit, const std::vector<pid_t>& spared) {
  const Deadline deadline = in(limit);
  while (!reap_all()) {
    std::vector<pid_t> doomed = children();
    std::erase_if(doomed, [&](pid_t child) {
      return std::find(spared.begin(), spared.end(), child) != spared.end();
    });
    if (doomed.empty()) return true;
    if (Clock::now() >= deadline) return false;
    for (const pid_t child : doomed) ::kill(child, SIGKILL);
    wait_for_child(deadline);
  }
  return true;
}

}  // namespace lockstep
