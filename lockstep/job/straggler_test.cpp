// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/straggler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/job/step_times.h"

namespace lockstep::job::straggler_test {
namespace {

using namespace std::chrono_literals;

constexpr int steps = 100;

// A rank's times: those of one step, multiplied by `steps`.
class Rank {
 public:
  explicit Rank(int number) : rank_{.rank = number, .times = {.steps = steps}} {
    spend(StepPhase::forward, 30ms);
    spend(StepPhase::backward, 60ms);
    spend(StepPhase::reduce, 2ms);
  }

  Rank& spend(StepPhase phase, std::chrono::nanoseconds time) {
    rank_.times.spent[static_cast<std::size_t>(phase)] += steps * time;
    return *this;
  }
  Rank& wait_for(int other, std::chrono::nanoseconds time) {
    rank_.times.waited_for[other] += steps * time;
    return spend(StepPhase::wait, time);
  }
  Rank& stand_still(std::chrono::nanoseconds time) {
    rank_.stood_still += steps * time;
    return *this;
  }
  operator RankTimes() const { return rank_; }

 private:
  RankTimes rank_;
};

std::string verdict(const std::vector<RankTimes>& ranks) {
  const auto found = find_straggler(ranks);
  return found ? describe(*found) : "";
}

TEST(Straggler, IsNamedWithThePhaseInWhichItIsLate) {
  for (const StepPhase phase : {StepPhase::data, StepPhase::forward, StepPhase::backward,
                                StepPhase::optimizer, StepPhase::checkpoint, StepPhase::other}) {
    const auto found = find_straggler(
        std::vector<RankTimes>{Rank(0).wait_for(3, 41ms), Rank(1).wait_for(3, 41ms),
                               Rank(2).wait_for(3, 41ms), Rank(3).spend(phase, 41ms)});
    ASSERT_TRUE(found) << name(phase);
    EXPECT_EQ(found->rank, 3);
    EXPECT_NEAR(found->waited_ms, 41, 1e-9);
    EXPECT_NEAR(found->share, 41.0 / 133, 1e-9);
    ASSERT_EQ(found->late_in.size(), 1U);
    EXPECT_EQ(found->late_in.front().first, phase);
    EXPECT_NEAR(found->late_in.front().second, 41, 1e-9);
  }
}

// As after SIGSTOP within an all_reduce: the other rank had arrived long before SIGCONT.
TEST(Straggler, IsNotTheRankThatAStoppedOneWaitedForDuringItsStop) {
  EXPECT_EQ(verdict({Rank(0), Rank(1).wait_for(0, 50ms).stand_still(50ms)}), "");
  EXPECT_EQ(
      verdict({Rank(0).spend(StepPhase::data, 41ms), Rank(1).wait_for(0, 91ms).stand_still(50ms)}),
      "others waited 41 ms a step (31 %) for rank 0, of which 41 in data");
}

TEST(Straggler, KeepsTheWaitsOfARankForWhichOthersWaitedDuringItsStop) {
  EXPECT_EQ(verdict({Rank(0).spend(StepPhase::data, 80ms).wait_for(1, 50ms),
                     Rank(1).spend(StepPhase::forward, 50ms).wait_for(0, 80ms).stand_still(50ms)}),
            "others waited 80 ms a step (36 %) for rank 0, of which 80 in data");
}

TEST(Straggler, IsDescribedInOneLine) {
  EXPECT_EQ(verdict({Rank(0).wait_for(1, 41ms),
                     Rank(1).spend(StepPhase::data, 38ms).spend(StepPhase::other, 3ms)}),
            "others waited 41 ms a step (31 %) for rank 1, of which 38 in data");
  EXPECT_EQ(verdict({Rank(0).wait_for(1, 41ms),
                     Rank(1).spend(StepPhase::data, 25ms).spend(StepPhase::other, 16ms)}),
            "others waited 41 ms a step (31 %) for rank 1, of which 25 in data and 16 in other");
  EXPECT_EQ(
      verdict({Rank(0).spend(StepPhase::forward, 5ms).stand_still(4ms), Rank(1).wait_for(0, 5ms)}),
      "others waited 5.0 ms a step (5 %) for rank 0, of which 5.0 in forward (its process "
      "stood still for 4.0 of them)");
}

// The times of backward() alone would indicate rank 0, which waits there.
TEST(Straggler, IsNotTheRankThatWaits) {
  EXPECT_EQ(verdict({Rank(0).wait_for(1, 20ms), Rank(1).spend(StepPhase::backward, 20ms)}),
            "others waited 20 ms a step (18 %) for rank 1, of which 20 in backward");
}

TEST(Straggler, IsNamedWithoutAPhaseOnAnotherHost) {
  EXPECT_EQ(verdict({Rank(0).wait_for(9, 20ms), Rank(1).wait_for(9, 20ms)}),
            "others waited 20 ms a step (18 %) for rank 9");
}

TEST(Straggler, IsTheOneThatCostsMost) {
  EXPECT_EQ(
      find_straggler(std::vector<RankTimes>{Rank(0).wait_for(1, 10ms).wait_for(2, 30ms),
                                            Rank(1).spend(StepPhase::data, 10ms).wait_for(2, 30ms),
                                            Rank(2).spend(StepPhase::data, 40ms)})
          ->rank,
      2);
}

TEST(Straggler, IsNotNamedWhenRanksAreLateAlternately) {
  EXPECT_EQ(verdict({Rank(0).wait_for(1, 20ms).spend(StepPhase::data, 18ms),
                     Rank(1).wait_for(0, 18ms).spend(StepPhase::data, 20ms)}),
            "");
  EXPECT_EQ(verdict({Rank(0).wait_for(1, 30ms), Rank(1).wait_for(0, 16ms)}), "");
  EXPECT_NE(verdict({Rank(0).wait_for(1, 30ms), Rank(1).wait_for(0, 14ms)}), "");
  EXPECT_NE(
      verdict({Rank(0).wait_for(1, 30ms), Rank(1).wait_for(0, 16ms).spend(StepPhase::data, 20ms)}),
      "");
}

TEST(Straggler, IsNobodyWhereLittleIsLost) {
  EXPECT_EQ(verdict({}), "");
  EXPECT_EQ(verdict({Rank(0), Rank(1)}), "");
  EXPECT_EQ(verdict({Rank(0).wait_for(1, 2ms), Rank(1).spend(StepPhase::data, 2ms)}), "")
      << "2 % of a step";
  EXPECT_EQ(verdict({Rank(0).wait_for(0, 40ms)}), "") << "nobody else has waited";
  const std::vector<RankTimes> ranks{Rank(0).wait_for(1, 40ms),
                                     Rank(1).spend(StepPhase::data, 40ms)};
  EXPECT_TRUE(find_straggler(ranks));
  EXPECT_FALSE(find_straggler(ranks, {.steps = steps + 1}));
  EXPECT_FALSE(find_straggler(ranks, {.lost = steps * 41ms}));
}

}  // namespace
}  // namespace lockstep::job::straggler_test
