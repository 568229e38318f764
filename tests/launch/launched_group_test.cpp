// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep {
namespace {

using test::Finished;
using test::Rank;
using test::Ranks;

Finished launch(const Ranks& ranks, int world_size) {
  std::vector<std::string> arguments{LOCKSTEP_RUN, "-n", std::to_string(world_size)};
  for (const std::string& word : ranks.command()) arguments.push_back(word);
  return test::run_command(arguments);
}

// The same under a limit: `limit` is arguments of a shell's ulimit.
Finished launch_under(const std::string& limit, const Ranks& ranks, int world_size) {
  std::vector<std::string> arguments{"/bin/sh",
                                     "-c",
                                     "ulimit " + limit + " && exec \"$@\"",
                                     "sh",
                                     LOCKSTEP_RUN,
                                     "-n",
                                     std::to_string(world_size)};
  for (const std::string& word : ranks.command()) arguments.push_back(word);
  return test::run_command(arguments);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

const Ranks works("works", [](const Rank& rank) {
  for (int i = 0; i < 3; ++i) {  // A job may form its group again.
    ProcessGroup group = init_process_group();
    EXPECT_EQ(group.rank(), rank.rank);
    EXPECT_EQ(group.size(), rank.world_size);
    const RegisteredMemory memory = group.allocate(4000);
    auto* values = static_cast<float*>(memory.data());
    for (int k = 0; k < 1000; ++k) values[k] = static_cast<float>(k * (rank.rank + 1));
    group.all_reduce({.data = values, .count = 1000});
    const int ranks = rank.world_size * (rank.world_size + 1) / 2;
    for (int k = 0; k < 1000; ++k) ASSERT_EQ(values[k], static_cast<float>(k * ranks));
    destroy_process_group(group);
  }
});

TEST(LaunchedGroup, FormsThroughTheAgentAndReduces) {
  for (const int world_size : {1, 2, 4}) {
    const Finished done = launch(works, world_size);
    EXPECT_EQ(done.code, 0) << done.out << done.err;
  }
}

// Works on the caller's thread, on the progress thread and on the message thread.
const Ranks works_on_every_thread("works on every thread", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  std::vector<float> values(10'000, 1);
  group.all_reduce({.data = values.data(), .count = values.size()});
  group.all_reduce_async({.data = values.data(), .count = values.size()}).wait();
  EXPECT_EQ(values.back(), static_cast<float>(rank.world_size * rank.world_size));
  const int next = (rank.rank + 1) % rank.world_size;
  const int last = (rank.rank + rank.world_size - 1) % rank.world_size;
  std::vector<float> received(values.size());
  Work sent = group.send_async({.data = values.data(), .count = values.size()}, next);
  group.recv({.data = received.data(), .count = received.size()}, last);
  sent.wait();
  EXPECT_EQ(received, values);
  destroy_process_group(group);
});

TEST(LaunchedGroup, WorksUnderASmallLimitOfStacks) {
  const Finished done = launch_under("-s 64", works_on_every_thread, 2);
  EXPECT_EQ(done.code, 0) << done.out << done.err;
}

TEST(LaunchedGroup, ALimitOfFileSizesThatIsTooLowForItsMemoryIsAnErrorThatNamesIt) {
  const Finished done = launch_under("-f 100", works_on_every_thread, 2);
  EXPECT_EQ(done.code, 10 + static_cast<int>(Fault::system)) << done.out << done.err;
  EXPECT_TRUE(contains(done.err, "raise `ulimit -f`")) << done.err;
}

TEST(LaunchedGroup, WorksUnderALimitOfFileSizesThatSuffices) {
  const Finished done = launch_under("-f 100000", works_on_every_thread, 2);
  EXPECT_EQ(done.code, 0) << done.out << done.err;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int many = 32;  // Each costs a multiple there.
#else
constexpr int many = 256;
#endif

const Ranks one_of_many("one of many", [](const Rank& rank) {
  const std::size_t before = ::mallinfo2().uordblks;
  ProcessGroup group = init_process_group();
  const std::size_t kept = ::mallinfo2().uordblks - before;
  EXPECT_LT(kept, (64U << 10) + 512U * static_cast<unsigned>(rank.world_size));
  std::int32_t value = rank.rank;
  group.all_reduce({.data = &value, .count = 1, .dtype = DType::int32});
  EXPECT_EQ(value, rank.world_size * (rank.world_size - 1) / 2);
  destroy_process_group(group);
});

// The memory of all ranks grows with the square of a rank's memory per peer.
TEST(LaunchedGroup, HoldsHundredsOfRanksOfWhichEachKeepsLittleForItsPeers) {
  const Finished done = launch(one_of_many, many);
  EXPECT_EQ(done.code, 0) << done.out << done.err;
}

const Ranks one_is_killed("one is killed", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  for (int i = 0; i < 3; ++i) group.barrier();
  if (rank.rank == 1) ::raise(SIGKILL);
  group.barrier();
});

TEST(LaunchedGroup, AKilledRankIsNamedByEverySurvivorAndByTheLauncher) {
  const Finished done = launch(one_is_killed, 3);
  EXPECT_EQ(done.code, 128 + SIGKILL) << done.err;
  for (const char* survivor : {"[0] ", "[2] "})
    EXPECT_TRUE(contains(done.err, std::string(survivor) + "[rank ")) << done.err;
  EXPECT_TRUE(contains(done.err, "peer_lost")) << done.err;
  EXPECT_TRUE(contains(done.err, "signal 9 (SIGKILL), last seen in barrier #3")) << done.err;
}

const Ranks one_returns_early("one returns early", [](const Rank& rank) {
  if (rank.rank == 1) return;  // With code 0, and before any rank has formed a group.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ProcessGroup group = init_process_group();
});

TEST(LaunchedGroup, ARankThatReturnsBeforeItJoinsIsNamedToThoseWhoWaitForIt) {
  const Finished done = launch(one_returns_early, 2);
  EXPECT_NE(done.code, 0) << done.err;
  EXPECT_TRUE(contains(done.err, "peer_lost")) << done.err;
  EXPECT_TRUE(contains(done.err, "rank 1")) << done.err;
}

const Ranks one_throws("one throws", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  if (rank.rank == 1) throw std::runtime_error("out of ideas");
  group.barrier();
});

TEST(LaunchedGroup, ARankThatThrowsDecidesTheExitCode) {
  const Finished done = launch(one_throws, 2);
  EXPECT_EQ(done.code, 1) << done.err;
  EXPECT_TRUE(contains(done.err, "out of ideas")) << done.err;
  EXPECT_TRUE(contains(done.err, "rank 1")) << done.err;
}

}  // namespace
}  // namespace lockstep
