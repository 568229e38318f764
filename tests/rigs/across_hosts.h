// Test rig: ranks of this machine that act as ranks of several hosts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/store/store.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/soon.h"

namespace lockstep::test {

// Settings that a test passes to its ranks by inherited variables.
struct HostLayout {
  std::string hosts;  // A letter for each rank: "aab" is two ranks on one host and one on another.
  std::string backend;  // InitOptions::backend.

  void set() const {
    ::setenv("LOCKSTEP_TEST_HOSTS", hosts.c_str(), 1);
    ::setenv("LOCKSTEP_BACKEND", backend.c_str(), 1);
  }
  static void unset() {
    ::unsetenv("LOCKSTEP_TEST_HOSTS");
    ::unsetenv("LOCKSTEP_BACKEND");
  }
  int ranks() const { return static_cast<int>(hosts.size()); }
};

inline std::string host_of_rank(int rank) { return {std::getenv("LOCKSTEP_TEST_HOSTS")[rank]}; }

// Joins the group that HostLayout::set() describes. Under an MPI launcher the ranks rendezvous by
// MPI, otherwise through a file.
inline ProcessGroup join_across_hosts(const Rank& rank,
                                      std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  InitOptions options{.timeout = timeout};
  if (rank.scratch.empty()) {  // Started by a launcher, whose variables have the rank.
    ::setenv("LOCKSTEP_HOST_ID", host_of_rank(read_environment().rank).c_str(), 1);
    return init_process_group(options);
  }
  ::setenv("LOCKSTEP_HOST_ID", host_of_rank(rank.rank).c_str(), 1);
  options.store = std::make_shared<FileStore>(FileStoreOptions{.path = rank.scratch / "store"});
  return init_process_group(options);
}

// Reports this rank as done to other ranks, and waits for `ranks`.
inline void wait_until_done(const Rank& rank, const std::vector<int>& ranks) {
  const auto mark_of = [&](int of) { return rank.scratch / ("done" + std::to_string(of)); };
  std::ofstream(mark_of(rank.rank)).flush();
  for (const int other : ranks) await_file(mark_of(other));
}

// Rank 0 of three is killed. Rank 1 detects it in `wait`, and leaves. Rank 2 waits only then, and
// must not report rank 1 as the cause.
inline void expect_the_lost_one_named(const Rank& rank, ProcessGroup group,
                                      const std::function<void(const ProcessGroup&)>& wait) {
  group.barrier();
  if (rank.rank == 0) ::raise(SIGKILL);
  if (rank.rank == 2) wait_until_done(rank, {1});
  std::string text;
  EXPECT_EQ(fault_of([&] { wait(group); }, &text), Fault::peer_lost) << text;
  EXPECT_NE(text.find("killed by signal 9"), text.npos) << text;
  leave_process_group(group);
  if (rank.rank == 1) wait_until_done(rank, {});
}

// True if its plugin is in the folder that ctest names.
inline bool was_built(const std::string& engine) {
  const char* const folder = std::getenv("LOCKSTEP_ENGINE_PATH");
  return folder != nullptr && std::filesystem::exists(std::filesystem::path(folder) /
                                                      ("liblockstep-engine-" + engine + ".so"));
}

// Skips the current test, with the reason, if that engine was not built. Built engines have to run.
#define LOCKSTEP_NEEDS_ENGINE(name)                                 \
  do {                                                              \
    const std::string reason = ::lockstep::why_no_engine(name);     \
    if (!::lockstep::test::was_built(name)) GTEST_SKIP() << reason; \
    ASSERT_EQ(reason, "");                                          \
  } while (false)

}  // namespace lockstep::test
