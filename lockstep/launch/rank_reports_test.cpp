// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_reports.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/job_control_block.h"

namespace lockstep::launch::rank_reports_test {
namespace {

using std::chrono::milliseconds;

Failure late(int rank) {
  return {.rank = rank, .fault = Fault::timeout, .ranks = {rank}, .call = "init_process_group"};
}

TEST(RankPages, AttributeAnEndBetweenGroupsToTheMissingRanks) {
  Round round;
  round.world_size = 2;
  for (const bool is_between : {true, false}) {
    RankPages pages(2, round);
    const JobControlBlock own =
        JobControlBlock::attach(FileDescriptor(::dup(pages.own_descriptor())));
    JobControlBlock session = JobControlBlock::create(2, "job");
    pages.use_session_page(FileDescriptor(::dup(session.descriptor())));
    own.note_break(0, late(1));
    session.enter(0);
    session.leave(
        0, is_between ? JobControlBlock::Phase::finished : JobControlBlock::Phase::abandoned);
    pages.report_end(0, {.rank = 0, .exit_code = 1});
    EXPECT_EQ(pages.failure()->rank, is_between ? 1 : 0);
  }
}

// Ranks 0 and 1 have left their group in order; rank 1 has ended.
struct BetweenGroups {
  BetweenGroups() {
    pages.use_session_page(FileDescriptor(::dup(session.descriptor())));
    for (const int rank : {0, 1}) {
      session.enter(rank);
      session.leave(rank, JobControlBlock::Phase::finished);
    }
    pages.note_end(1, {.rank = 1, .exit_code = 0});
  }

  void wait() const {
    own.await_group(0);
    own.note_break(0, own.first_end().value());
  }

  RankPages pages{2, [] {
                    Round round;
                    round.world_size = 2;
                    return round;
                  }()};
  JobControlBlock own = JobControlBlock::attach(FileDescriptor(::dup(pages.own_descriptor())));
  JobControlBlock session = JobControlBlock::create(2, "job");
};

TEST(RankPages, AttributeAFailureToAnAwaitedRankThatEndedNormally) {
  const BetweenGroups job;
  job.wait();
  EXPECT_FALSE(job.pages.failure());
  job.pages.report_end(0, {.rank = 0, .exit_code = 1});
  EXPECT_EQ(job.pages.failure()->rank, 1);
  EXPECT_EQ(job.pages.failure()->exit_code, 0);
  EXPECT_EQ(job.own.failure()->rank, 1);
}

TEST(RankPages, AttributeALaterFailureToTheResumedRank) {
  for (const bool is_killed : {true, false}) {
    const BetweenGroups job;
    job.wait();
    job.own.activity(0).resumed = 1;
    job.own.await_group(0, false);
    Failure end{.rank = 0};
    if (is_killed)
      end.signal = SIGKILL;
    else
      end.exit_code = 3;
    job.pages.report_end(0, end);
    EXPECT_EQ(job.pages.failure()->rank, 0);
    EXPECT_EQ(job.pages.failure()->signal, end.signal);
    EXPECT_EQ(job.own.failure()->exit_code, end.exit_code);
  }
}

TEST(RankPages, ARankListensWhileItAwaitsAGroup) {
  const BetweenGroups job;
  EXPECT_FALSE(job.pages.listens(0));
  job.wait();
  EXPECT_TRUE(job.pages.listens(0));
  job.own.await_group(0, false);
  EXPECT_FALSE(job.pages.listens(0));
}

TEST(AttemptResult, WithoutFailuresItSucceeded) {
  AttemptResult result;
  EXPECT_EQ(result.outcome(), Outcome::succeeded);
  EXPECT_EQ(result.exit_code(), 0);
  result.preempt();
  EXPECT_EQ(result.outcome(), Outcome::preempted);
}

TEST(AttemptResult, AProgramThatCannotBeStartedStopsTheJob) {
  AttemptResult result;
  result.fail_to_start(exit_not_found);
  EXPECT_EQ(result.outcome(), Outcome::stopped);
  EXPECT_EQ(result.exit_code(), exit_not_found);
}

TEST(AttemptResult, TheFirstFailureDecidesOnTheExitCodeAndIsNotAmongTheOthers) {
  AttemptResult result;
  const Failure end{.rank = 2, .signal = SIGSEGV};
  result.fail(end);
  result.set_first(end, milliseconds(7));
  result.fail({.rank = 3, .exit_code = 5});
  result.fail({.rank = 1, .exit_code = 5});
  EXPECT_EQ(result.outcome(), Outcome::failed);
  EXPECT_EQ(result.exit_code(), 128 + SIGSEGV);
  EXPECT_EQ(result.noticed_after(), milliseconds(7));
  EXPECT_EQ(result.also_failed(), (std::vector<int>{1, 3}));
}

TEST(AttemptResult, RanksWithTheSameExceptionAreNotAmongTheOthers) {
  const auto ended = [](int rank, const char* what) {
    return Failure{.rank = rank, .exit_code = 1, .what = what};
  };
  AttemptResult result;
  result.fail(ended(2, "E: rank 1 differs"));
  result.set_first(ended(2, "E: rank 1 differs"), {});
  EXPECT_EQ(result.first_with_alike()->ranks, std::vector<int>{});
  result.fail(ended(0, "E: rank 1 differs"));
  result.fail(ended(1, "another"));
  result.fail(ended(3, ""));
  EXPECT_EQ(result.first_with_alike()->ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(result.also_failed(), (std::vector<int>{1, 3}));
}

TEST(AttemptResult, ARankOfAnotherHostMayHaveEndedWithTheSameException) {
  AttemptResult result;
  result.set_first({.rank = 0, .exit_code = 64, .what = "E: rank 1 differs"}, {});
  result.fail({.rank = 2, .exit_code = 64, .what = "E: rank 1 differs"});
  result.fail({.rank = 3, .exit_code = 1, .what = "another"});
  EXPECT_EQ(result.first_with_alike()->ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(result.also_failed(), std::vector<int>{3});
}

TEST(AttemptResult, RanksWithoutAnExceptionDidNotEndAlike) {
  AttemptResult result;
  result.fail({.rank = 0, .exit_code = 1});
  result.set_first({.rank = 0, .exit_code = 1}, {});
  result.fail({.rank = 1, .exit_code = 1});
  EXPECT_EQ(result.first_with_alike()->ranks, std::vector<int>{});
}

TEST(AttemptResult, TheEndOfItsRankCompletesTheFirstFailureButNotWhoDetectedIt) {
  AttemptResult result;
  result.set_first({.rank = 2, .detected_by = 4}, milliseconds(0));
  result.complete_first({.rank = 1, .exit_code = 3});
  EXPECT_EQ(result.exit_code(), 0);
  result.complete_first({.rank = 2, .exit_code = 9, .detected_by = 2});
  EXPECT_EQ(result.exit_code(), 9);
  EXPECT_EQ(result.first_failure()->detected_by, 4);
  result.complete_first({.rank = 2, .exit_code = 11});
  EXPECT_EQ(result.exit_code(), 9);
}

TEST(AttemptResult, ARankThatLeftAndThenEndedInOrderIsTheOneThatLeft) {
  AttemptResult result;
  result.set_first({.rank = 2, .left = true}, milliseconds(0));
  result.complete_first({.rank = 2, .exit_code = 0});
  EXPECT_EQ(result.first_failure()->exit_code, std::nullopt);
  EXPECT_TRUE(result.first_failure()->left);
  result.complete_first({.rank = 2, .exit_code = 3});
  EXPECT_EQ(result.first_failure()->exit_code, 3);
}

// Its peers were seen to fail first; its own end has no exit code for the job.
TEST(AttemptResult, AFirstFailureWithoutACodeHasThatOfTheFirstEnd) {
  AttemptResult result;
  result.fail({.rank = 0, .exit_code = 6});
  result.set_first({.rank = 5}, milliseconds(0));
  result.fail({.rank = 1, .exit_code = 8});
  EXPECT_EQ(result.exit_code(), 6);
}

TEST(RankPages, IgnoreWhatALostProcessLeftUntilANewOneEntersTheSlot) {
  Round round;
  round.world_size = 2;
  RankPages pages(2, round);
  JobControlBlock own = JobControlBlock::attach(FileDescriptor(::dup(pages.own_descriptor())));
  const pid_t lost = ::fork();
  if (lost == 0) {
    own.enter(1);
    own.expect_preemption(1);
    own.await_group(1);
    own.write_exit_report(1, "the old process");
    own.leave(1, JobControlBlock::Phase::abandoned);
    ::_exit(1);
  }
  ::waitpid(lost, nullptr, 0);
  EXPECT_EQ(pages.examine(1, lost).what, "the old process");
  EXPECT_TRUE(pages.listens(1));
  EXPECT_TRUE(pages.expects_preemption(1));

  pages.renew(1);
  EXPECT_TRUE(pages.is_stale(1));
  EXPECT_EQ(pages.examine(1, 42).what, "");
  EXPECT_EQ(pages.examine(1, 42).pid, 42);
  EXPECT_EQ(pages.examine(1, 42).rank, 1);
  EXPECT_FALSE(pages.listens(1));
  EXPECT_FALSE(pages.expects_preemption(1));
  EXPECT_EQ(pages.status(1, {41, 42}).state, "starting");
  EXPECT_FALSE(pages.is_stale(0));

  own.enter(1);
  own.write_exit_report(1, "the new process");
  EXPECT_FALSE(pages.is_stale(1));
  EXPECT_TRUE(pages.listens(1));
  EXPECT_EQ(pages.examine(1, ::getpid()).what, "the new process");
  own.leave(1, JobControlBlock::Phase::finished);
}

}  // namespace
}  // namespace lockstep::launch::rank_reports_test
