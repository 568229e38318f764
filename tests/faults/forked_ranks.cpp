// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/forked_ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/rank_setup.h"

namespace lockstep::test {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void become(const Rank& rank, const Body& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int file = ::open(output_of(rank).c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  set_environment(rank);
  const int code = exit_code_of(body, rank);
  std::fflush(nullptr);
  ::_exit(code);
}

std::string contents_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Leaves the process as a zombie, so that its peers can still see how it ended.
void wait_for(pid_t pid, Clock::time_point deadline) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
         info.si_pid == 0) {
    if (Clock::now() >= deadline) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::vector<Exit> fork_ranks(int world_size, const Body& body, std::chrono::milliseconds limit) {
  const ScratchDirectory scratch;
  const auto deadline = Clock::now() + limit;
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t pid = ::fork();
    const pid_t leader = pids.empty() ? pid : pids.front();
    ::setpgid(pid, leader);
    if (pid == 0) become({rank, world_size, scratch.path()}, body);
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) wait_for(pid, deadline);
  std::vector<Exit> exits;
  for (int rank = 0; rank < world_size; ++rank) {
    int status = 0;
    ::waitpid(pids[static_cast<std::size_t>(rank)], &status, 0);
    exits.push_back({rank, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                     WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                     contents_of(output_of({rank, world_size, scratch.path()}))});
  }
  return exits;
}

void fork_once(const std::function<void()>& body) {
  const auto exits = fork_ranks(1, [&](const Rank&) { body(); });
  EXPECT_TRUE(all_succeeded(exits));
}

}  // namespace lockstep::test
