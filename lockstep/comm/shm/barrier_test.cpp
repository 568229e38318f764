// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/barrier.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <functional>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shm/core_sharing.h"
#include "lockstep/comm/shm/group_segment.h"
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

// As the kernel may do it with ranks that nothing has bound.
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
  for (int i = 0; i < calls * 2000; ++i) __builtin_ia32_pause();
  return cpu_seconds() - begin;
}

void expect_to_sleep_at_once(const std::function<void()>& act) {
  move_to_the_first_core();
  act();
  const double begin = cpu_seconds();
  act();
  const double used = cpu_seconds() - begin;
  EXPECT_LT(used, seconds_of_spinning() / 2) << "it spins where its peer should run";
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

TEST(CoreSharing, ARankThatMeetsAPeerOftenMovesAndKeepsItsAffinity) {
  const cpu_set_t cores = allowed_cores();
  if (CPU_COUNT(&cores) < 2) GTEST_SKIP() << "this process may use one core only";
  const std::size_t bytes = GroupSegment::bytes_for(2);
  const GroupSegment segment({static_cast<std::byte*>(std::calloc(1, bytes)), std::free}, 2);
  CoreSharing shares_core(segment, 0, 2);
  bool has_moved = false;
  for (int call = 0; call < 10'000 && !has_moved; ++call) {
    segment.lane(1).core = shares_core.note();
    has_moved = !shares_core.with(1);
  }
  EXPECT_TRUE(has_moved);
  EXPECT_NE(segment.lane(0).core, segment.lane(1).core);
  const cpu_set_t now = allowed_cores();
  EXPECT_TRUE(CPU_EQUAL(&now, &cores));
}

TEST(Barrier, RanksOnOneCoreOfManyLeaveItToEachOther) {
  const cpu_set_t cores = allowed_cores();
  if (CPU_COUNT(&cores) < 2) GTEST_SKIP() << "this process may use one core only";
  EXPECT_TRUE(all_succeeded(calls_on_one_core.run(2)));
  EXPECT_TRUE(all_succeeded(messages_on_one_core.run(2)));
}

}  // namespace
}  // namespace lockstep::comm::barrier_test
