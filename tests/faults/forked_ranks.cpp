// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/forked_ranks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "tests/rank_setup.h"

namespace lockstep::test {
namespace {

[[noreturn]] void become(const Rank& rank, const Body& body) {
  set_up(rank);
  const int code = exit_code_of(body, rank);
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

std::vector<Exit> fork_ranks(int world_size, const Body& body, std::chrono::milliseconds limit) {
  const ScratchDirectory scratch;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t pid = ::fork();
    const pid_t leader = pids.empty() ? pid : pids.front();
    ::setpgid(pid, leader);
    if (pid == 0) become({rank, world_size, scratch.path()}, body);
    pids.push_back(pid);
  }
  return wait_for_all(pids, scratch.path(), deadline);
}

void fork_once(const std::function<void()>& body) {
  const auto exits = fork_ranks(1, [&](const Rank&) { body(); });
  EXPECT_TRUE(all_succeeded(exits));
}

}  // namespace lockstep::test
