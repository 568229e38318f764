// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/comm/process_group.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::comm::preemption_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using test::Rank;
using test::Ranks;

constexpr int told_at = 5;

// Returns the step in which a rank detects the preemption when rank 1 gets `signal` in step 5.
int step_of_preemption(const ProcessGroup& group, int signal) {
  for (int step = 0; step < 100; ++step) {
    if (step == told_at && group.rank() == 1) ::raise(signal);
    if (group.preempted()) return step;
  }
  return -1;
}

Ranks told_by(const char* name, int signal) {
  return Ranks(name, [signal](const Rank&) {
    ProcessGroup group = init_process_group();
    group.on_preemption();
    EXPECT_EQ(step_of_preemption(group, signal), told_at);
    EXPECT_TRUE(group.preempted());  // The result remains true.
    destroy_process_group(group);
  });
}

const Ranks told_by_usr1 = told_by("told by SIGUSR1", SIGUSR1);
const Ranks told_by_term = told_by("told by SIGTERM", SIGTERM);

TEST(Preemption, Sigusr1ToOneOfThreeRanksIsKnownToAllInTheSameStep) {
  EXPECT_TRUE(all_succeeded(told_by_usr1.run(3)));
}

TEST(Preemption, SigtermToOneOfThreeRanksIsKnownToAllInTheSameStep) {
  EXPECT_TRUE(all_succeeded(told_by_term.run(3)));
}

const Ranks not_prepared("not prepared for preemption", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  std::string text;
  EXPECT_EQ(fault_of([&] { group.preempted(); }, &text), Fault::misuse);
  EXPECT_NE(text.find("on_preemption()"), text.npos) << text;
  group.barrier();
  if (rank.rank == 1) ::raise(SIGTERM);
  EXPECT_EQ(fault_of([&] {
              while (true) group.barrier();
            }),
            Fault::peer_lost);
});

TEST(Preemption, WithoutOnPreemptionSigtermEndsTheProcess) {
  const auto exits = not_prepared.run(2);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].signal, SIGTERM) << exits[1].output;
}

const Ranks later_groups("preemption in later groups", [](const Rank& rank) {
  for (int i = 0; i < 2; ++i) {
    ProcessGroup world = init_process_group();
    if (i == 0) world.on_preemption();
    {
      const ProcessGroup pair = world.split(rank.rank / 2);
      EXPECT_FALSE(pair.preempted());
      EXPECT_FALSE(world.preempted({.label = "a label of the user's"}));
    }
    destroy_process_group(world);
  }
});

TEST(Preemption, IsAskedForOnceForAllGroupsOfAProcess) {
  EXPECT_TRUE(all_succeeded(later_groups.run(4)));
}

// Runs in a separate process, whose signal handlers may change.
const Ranks threads_as_ranks("preemption of threads", [](const Rank&) {
  std::atomic<int> agreed{0};
  run_in_process(3, [&](ProcessGroup& group) {
    group.on_preemption();
    EXPECT_EQ(step_of_preemption(group, SIGUSR1), told_at);
    ++agreed;
  });
  EXPECT_EQ(agreed, 3);
});

TEST(Preemption, IsKnownToThreadsThatAreRanks) {
  EXPECT_TRUE(all_succeeded(threads_as_ranks.run(1)));
}

const Ranks preempted_on_one("preempted on one rank only", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  group.on_preemption();
  std::uint8_t value = 0;
  std::string text;
  const Fault fault = fault_of(
      [&] {
        if (rank.rank == 0) group.preempted();
        group.all_reduce({.data = &value, .count = 1, .dtype = DType::uint8}, ReduceOp::max);
      },
      &text);
  EXPECT_EQ(fault, Fault::mismatch) << text;
});

TEST(Preemption, IsNotMistakenForTheUsersCollective) {
  for (const auto& exit : preempted_on_one.run(2)) EXPECT_EQ(exit.code, 0) << exit.output;
}

}  // namespace
}  // namespace lockstep::comm::preemption_test
