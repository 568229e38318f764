// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/barrier.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "lockstep/base/spin_pause.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shm/core_sharing.h"
#include "lockstep/comm/shm/group_segment.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "tests/optimized_code.h"
#include "tests/ranks.h"

namespace lockstep::comm::barrier_test {
namespace {

using test::Rank;
using test::Ranks;

cpu_set_t allowed_cores() {
  cpu_set_t cores;
  ::sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

// The kernel may do the same with unbound ranks.
void move_to_the_first_core() {
  const cpu_set_t all = allowed_cores();
  int core = 0;
  while (!CPU_ISSET(core, &all)) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
}

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

constexpr int calls = 400;

// The time of as many waits in which a rank spins before it sleeps.
double seconds_of_spinning() {
  const double begin = cpu_seconds();
  for (int i = 0; i < calls * 2000; ++i) spin_pause();
  return cpu_seconds() - begin;
}

// The best of five rounds counts: other programs may have delayed the others.
void expect_to_sleep_at_once(const std::function<void()>& act) {
  move_to_the_first_core();
  act();
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 5; ++round) {
    const double begin = cpu_seconds();
    act();
    least = std::min(least, cpu_seconds() - begin);
  }
  EXPECT_LT(least, seconds_of_spinning() / 2) << "it spins where its peer should run";
}

const Ranks calls_on_one_core("calls on one core", [](const Rank&) {
  ProcessGroup world = init_process_group();
  expect_to_sleep_at_once([&] {
    for (int i = 0; i < calls; ++i) world.barrier();
  });
  destroy_process_group(world);
});

const Ranks messages_on_one_core("messages on one core", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  std::array<int, 1> value{};
  expect_to_sleep_at_once([&] {
    for (int i = 0; i < 2 * calls; ++i) {
      if (i % 2 == rank.rank)
        world.send(buffer_of(value), 1 - rank.rank);
      else
        world.recv(buffer_of(value), 1 - rank.rank);
    }
  });
  destroy_process_group(world);
});

// Rank 0 of two, whose peer is on the core that the test sets.
class CoreSharingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CPU_COUNT(&cores_) < 2) GTEST_SKIP() << "this process may use one core only";
  }

  // Makes calls beside the peer until this rank has moved, or for a minute.
  bool moves_away() {
    for (const auto deadline = in(std::chrono::minutes(1)); Clock::now() < deadline;) {
      segment_.block(1).core = shares_core_.note();
      if (!shares_core_.with(1)) return true;
    }
    return false;
  }

  const cpu_set_t cores_ = allowed_cores();
  const GroupSegment segment_{
      {static_cast<std::byte*>(std::calloc(1, GroupSegment::bytes_for(2))), std::free}, 2};
  CoreSharing shares_core_{segment_, &RankBlock::core, 0, 2};
};

TEST_F(CoreSharingTest, ARankThatOftenSharesACoreMovesAndKeepsItsAffinity) {
  EXPECT_TRUE(moves_away());
  EXPECT_NE(segment_.block(0).core, segment_.block(1).core);
  const cpu_set_t now = allowed_cores();
  EXPECT_TRUE(CPU_EQUAL(&now, &cores_));
}

TEST_F(CoreSharingTest, APeerThatHasNotReportedItsCoreSharesNone) {
  if (CPU_ISSET(0, &cores_) == 0) GTEST_SKIP() << "this process may not use core 0";
  const CoreSharing silent{segment_, &RankBlock::core, 1, 2};
  cpu_set_t first;
  CPU_ZERO(&first);
  CPU_SET(0, &first);
  ASSERT_EQ(::sched_setaffinity(0, sizeof first, &first), 0);
  EXPECT_FALSE(shares_core_.with_any());
  ::sched_setaffinity(0, sizeof cores_, &cores_);
}

TEST_F(CoreSharingTest, AMoveThatHelpedForLongDoesNotDelayTheNextOne) {
  const auto begin = Clock::now();
  constexpr int moves = 9;
  for (int move = 0; move < moves; ++move) {
    EXPECT_TRUE(moves_away());
    segment_.block(1).core = -1;
    for (int call = 0; call < 1000; ++call) EXPECT_FALSE(shares_core_.with(1));
  }
  // Doubled pauses would take 13 s together; constant ones take less than half a second.
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(Barrier, AThreadThatWaitsForMessagesIsNotTakenForThatOfTheCollectives) {
  constexpr int elsewhere = 77;
  const std::size_t bytes = GroupSegment::bytes_for(2);
  const GroupSegment segment({static_cast<std::byte*>(std::calloc(1, bytes)), std::free}, 2);
  const auto team = std::make_shared<ThreadTeam>(2);
  const auto meet = [&](int rank) {
    return std::make_unique<Barrier>(std::make_shared<ThreadPeers>(team, rank), segment, "pair",
                                     std::chrono::minutes(1), [] {});
  };
  std::jthread peer([&] { meet(1); });
  const auto barrier = meet(0);
  segment.block(0).core = elsewhere;
  barrier->await_doorbell(barrier->doorbell(), std::chrono::milliseconds(1));
  EXPECT_EQ(segment.block(0).core, elsewhere);
}

TEST(Barrier, RanksOnOneCoreOfManyLeaveItToEachOther) {
  const cpu_set_t cores = allowed_cores();
  if (CPU_COUNT(&cores) < 2) GTEST_SKIP() << "this process may use one core only";
  if (!test::is_optimized_code) GTEST_SKIP() << "the time of optimized code is measured";
  EXPECT_TRUE(all_succeeded(calls_on_one_core.run(2)));
  EXPECT_TRUE(all_succeeded(messages_on_one_core.run(2)));
}

}  // namespace
}  // namespace lockstep::comm::barrier_test
