// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/descendants.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/comm/error.h"
#include "lockstep/comm/time.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// The fourth field of the stat file; the second is a name that may hold anything.
pid_t parent_of(const std::filesystem::path& process) {
  std::ifstream in(process / "stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto end_of_name = text.rfind(')');
  pid_t parent = 0;
  if (end_of_name != text.npos) std::sscanf(text.c_str() + end_of_name, ") %*c %d", &parent);
  return parent;
}

// True when no child is left at all.
bool reap_all() {
  pid_t pid = 0;
  do {
    pid = ::waitpid(-1, nullptr, WNOHANG | __WALL);
  } while (pid > 0);
  return pid < 0 && errno == ECHILD;
}

// Returns at the next SIGCHLD, at the deadline, or after a tenth of a second: orphans are
// adopted without a signal.
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

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", unreadable)) {
    const std::string name = entry.path().filename();
    if (std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); }) &&
        parent_of(entry.path()) == ::getpid())
      found.push_back(std::stoi(name));
  }
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
