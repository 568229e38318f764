// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/continuation.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::launch::continuation_test {
namespace {

using namespace std::chrono_literals;

RunOptions options(int ranks, std::optional<int> most = {}) {
  RunOptions options;
  options.nproc_per_node = ranks;
  options.on_failure = OnFailure::continue_without;
  options.max_replacements = most;
  options.max_restart_delay = 300ms;
  return options;
}

class Ranks {
 public:
  explicit Ranks(const RunOptions& options) : continuation(options, now) {}

  // Returns the consequence.
  std::string lose(int rank, int others = 1) {
    continuation.lose(rank, {.rank = rank, .exit_code = 7 + rank}, "rank " + std::to_string(rank),
                      others, now);
    const auto losses = continuation.take_losses();
    return losses.size() == 1 ? losses[0].consequence : "";
  }

  std::chrono::milliseconds pause(int rank) {
    const auto lost = now;
    for (now = std::min(continuation.deadline(), lost + 1h); continuation.waiting() > 0;)
      if (continuation.take_due(now) == rank) break;
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - lost);
  }

  Clock::time_point now = Clock::now();
  Continuation continuation;
};

TEST(Continuation, StartsALostRankAtOnceThenAfterGrowingPauses) {
  Ranks ranks(options(2));
  EXPECT_EQ(ranks.lose(1), "1 rank continues; starting rank 1 again (replacement 1 of 20)");
  EXPECT_EQ(ranks.pause(1), 0ms);
  EXPECT_EQ(ranks.continuation.incarnation(1), 1);
  EXPECT_EQ(ranks.lose(1),
            "1 rank continues; starting rank 1 again in 0.1 s (replacement 2 of 20)");
  EXPECT_EQ(ranks.pause(1), 100ms);
  ranks.lose(1);
  EXPECT_EQ(ranks.pause(1), 200ms);
  ranks.lose(1);
  EXPECT_EQ(ranks.pause(1), 300ms);
  EXPECT_EQ(ranks.continuation.incarnation(1), 4);
  EXPECT_EQ(ranks.continuation.incarnation(0), 0);
  EXPECT_EQ(ranks.continuation.replacements(), 4);
  EXPECT_EQ(ranks.continuation.failures(), 4);
}

TEST(Continuation, PausesOfRanksAreIndependentAndEndAfterALongLife) {
  Ranks ranks(options(2));
  ranks.lose(0);
  ranks.pause(0);
  ranks.lose(0);
  EXPECT_EQ(ranks.pause(0), 100ms);
  ranks.lose(1);
  EXPECT_EQ(ranks.pause(1), 0ms);
  ranks.now += 300ms;
  ranks.lose(0);
  EXPECT_EQ(ranks.pause(0), 0ms) << "it lived as long as the longest pause";
}

TEST(Continuation, StartsNoRankBeforeItsPauseHasPassed) {
  Ranks ranks(options(1));
  ranks.lose(0);
  EXPECT_EQ(ranks.continuation.take_due(ranks.now), 0);
  ranks.lose(0);
  EXPECT_EQ(ranks.continuation.waiting(), 1);
  EXPECT_EQ(ranks.continuation.take_due(ranks.now + 99ms), std::nullopt);
  EXPECT_EQ(ranks.continuation.take_due(ranks.now + 100ms), 0);
  EXPECT_EQ(ranks.continuation.waiting(), 0);
}

TEST(Continuation, LimitsTheReplacementsOfTheHost) {
  Ranks ranks(options(8, 2));
  ranks.lose(0);
  EXPECT_EQ(ranks.lose(1, 6), "6 ranks continue; starting rank 1 again (replacement 2 of 2)");
  EXPECT_EQ(ranks.lose(2, 0),
            "no other rank of this host is running; rank 2 is not started again: all 2 "
            "replacements on this host are used up");
  EXPECT_EQ(ranks.continuation.waiting(), 2);
  Ranks none(options(8, 0));
  none.lose(0);
  EXPECT_EQ(none.continuation.waiting(), 0);
}

TEST(Continuation, StartsNoRankAfterASuccessOrAtTheEndOfTheJob) {
  Ranks ranks(options(3));
  ranks.lose(0);
  ranks.continuation.succeed(ranks.now);
  EXPECT_EQ(ranks.continuation.waiting(), 0) << "it was about to start";
  EXPECT_EQ(ranks.lose(1),
            "1 rank continues; rank 1 is not started again: a rank of this host has "
            "ended with code 0");
  Ranks stopped(options(3));
  stopped.continuation.stop();
  EXPECT_EQ(stopped.lose(1), "1 rank continues; rank 1 is not started again: the job is ending");
  EXPECT_EQ(stopped.continuation.waiting(), 0);
}

TEST(Continuation, TriesAFailedStartAgainAfterAPauseAndWithinTheLimit) {
  RunOptions without_pause = options(2, 3);
  without_pause.max_restart_delay = 0ms;
  Ranks ranks(without_pause);
  ranks.lose(1);
  EXPECT_EQ(ranks.pause(1), 0ms);
  EXPECT_EQ(ranks.continuation.retry(1, "rank 1", ranks.now),
            "starting rank 1 again in 0.1 s (replacement 2 of 3)");
  EXPECT_EQ(ranks.continuation.replacements(), 0);
  EXPECT_EQ(ranks.continuation.waiting(), 1);
  EXPECT_EQ(ranks.pause(1), 100ms);
  EXPECT_EQ(ranks.lose(0), "1 rank continues; starting rank 0 again (replacement 3 of 3)")
      << "other ranks start again";
  EXPECT_EQ(ranks.continuation.retry(1, "rank 1", ranks.now),
            "rank 1 is not started again: all 3 replacements on this host are used up");
}

TEST(Continuation, NamesWhyNoRankStartsAgain) {
  Ranks ranks(options(2));
  ranks.continuation.stop("its program cannot be executed any more");
  ranks.continuation.stop();
  EXPECT_EQ(ranks.lose(1),
            "1 rank continues; rank 1 is not started again: its program cannot be executed any "
            "more");
}

TEST(Continuation, KeepsTheFirstFailure) {
  Ranks ranks(options(3));
  ranks.lose(2);
  ranks.lose(1);
  EXPECT_EQ(ranks.continuation.first_failure()->exit_code, 9);
  EXPECT_FALSE(ranks.continuation.succeeded());
}

TEST(Continuation, ARankIsStuckThatIsStoppedForFiveSecondsAfterASuccess) {
  Ranks ranks(options(2));
  EXPECT_FALSE(ranks.continuation.looks_for_stopped(ranks.now + 1h)) << "no rank has succeeded";
  EXPECT_EQ(ranks.continuation.deadline(), no_deadline);
  ranks.continuation.succeed(ranks.now);
  EXPECT_EQ(ranks.continuation.deadline(), ranks.now);
  EXPECT_TRUE(ranks.continuation.looks_for_stopped(ranks.now));
  EXPECT_FALSE(ranks.continuation.looks_for_stopped(ranks.now + 499ms));
  EXPECT_TRUE(ranks.continuation.looks_for_stopped(ranks.now + 500ms));
  EXPECT_FALSE(ranks.continuation.is_stuck(0, true, ranks.now));
  EXPECT_FALSE(ranks.continuation.is_stuck(0, true, ranks.now + 4999ms));
  EXPECT_TRUE(ranks.continuation.is_stuck(0, true, ranks.now + 5s));
  EXPECT_FALSE(ranks.continuation.is_stuck(0, false, ranks.now + 6s)) << "it was continued";
  EXPECT_FALSE(ranks.continuation.is_stuck(0, true, ranks.now + 7s));
}

}  // namespace
}  // namespace lockstep::launch::continuation_test
