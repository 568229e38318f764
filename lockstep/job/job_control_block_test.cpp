// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/job_control_block.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <string>
#include <thread>

#include "lockstep/base/time.h"
#include "tests/soon.h"

namespace lockstep::job::job_control_block_test {
namespace {

using test::soon;

// This process has one thread, so fork() is safe.
template <class End>
pid_t start_rank(JobControlBlock& page, int slot, End end) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  page.enter(slot);
  end();
  ::_exit(0);
}

TEST(JobControlBlock, AProcessThatIsKilledIsLostAndItsSignalIsKnownBeforeItIsReaped) {
  JobControlBlock page = JobControlBlock::create(2, "job");
  const pid_t pid = start_rank(page, 1, [] { ::pause(); });
  ASSERT_TRUE(soon([&] { return page.phase(1) == JobControlBlock::Phase::alive; }));
  EXPECT_FALSE(page.lost(1));
  ::kill(pid, SIGKILL);
  ASSERT_TRUE(soon([&] { return page.lost(1); }));
  const Failure failure = page.examine(1);
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.pid, pid);
  EXPECT_EQ(failure.signal, SIGKILL);
  EXPECT_FALSE(failure.exit_code);
}

// Two processes ask alternately: glibc reports the death of a mutex's owner only once.
TEST(JobControlBlock, AProcessThatIsLostStaysLostForAllOthers) {
  JobControlBlock page = JobControlBlock::create(2, "job");
  const pid_t lost = start_rank(page, 1, [] { ::_exit(0); });
  ASSERT_TRUE(soon([&] { return page.lost(1); }));
  const pid_t other = start_rank(page, 0, [&] {
    for (int i = 0; i < 10; ++i)
      if (!page.lost(1)) ::_exit(1);
  });
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(page.lost(1)) << i;
  int status = -1;
  ::waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
  ::waitpid(lost, nullptr, 0);
  EXPECT_TRUE(page.lost(1));
}

TEST(JobControlBlock, AProcessThatExitsWithoutLeavingIsLostWithItsCode) {
  JobControlBlock page = JobControlBlock::create(2, "job");
  const pid_t pid = start_rank(page, 1, [] { ::_exit(7); });
  ASSERT_TRUE(soon([&] { return page.lost(1); }));
  const Failure failure = page.examine(1);
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(failure.exit_code, 7);
}

TEST(JobControlBlock, AProcessThatLeavesInOrderIsNotLostAndMayComeBack) {
  JobControlBlock page = JobControlBlock::create(1, "job");
  for (int i = 0; i < 3; ++i) {
    page.enter(0);
    page.leave(0, JobControlBlock::Phase::finished);
    EXPECT_FALSE(page.lost(0));
  }
}

TEST(JobControlBlock, AProcessThatAbandonsTheJobIsLostThoughItLives) {
  JobControlBlock page = JobControlBlock::create(1, "job");
  page.enter(0);
  page.leave(0, JobControlBlock::Phase::abandoned);
  EXPECT_TRUE(page.lost(0));
  EXPECT_FALSE(page.examine(0).signal);
  EXPECT_FALSE(page.examine(0).exit_code);
}

TEST(JobControlBlock, OnlyTheProcessThatAskedForItExpectsPreemption) {
  JobControlBlock page = JobControlBlock::create(1, "job");
  EXPECT_FALSE(page.expects_preemption(0));
  const pid_t pid = start_rank(page, 0, [&] {
    page.expect_preemption(0);
    page.leave(0, JobControlBlock::Phase::finished);
  });
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(page.expects_preemption(0));
  page.enter(0);
  EXPECT_FALSE(page.expects_preemption(0));
  page.expect_preemption(0);
  EXPECT_TRUE(page.expects_preemption(0));
  page.leave(0, JobControlBlock::Phase::finished);

  EXPECT_FALSE(page.preemption_agreed());
  page.agree_on_preemption();
  EXPECT_TRUE(page.preemption_agreed());
}

TEST(JobControlBlock, ASlotIsForOneProcess) {
  JobControlBlock page = JobControlBlock::create(1, "job");
  page.enter(0);
  Fault fault{};
  std::thread([&] {
    try {
      page.enter(0);
    } catch (const Error& error) {
      fault = error.fault();
    }
  }).join();
  EXPECT_EQ(fault, Fault::misuse);
  page.leave(0, JobControlBlock::Phase::finished);
}

// --- Broken groups ------------------------------------------------------------------------------

const Failure rank_one_did_not_come{.rank = 1,
                                    .host = "a",
                                    .pid = 5,
                                    .operation = "barrier",
                                    .sequence = 3,
                                    .group = "world",
                                    .what = "within 30 s",
                                    .detected_by = 0,
                                    .fault = Fault::timeout,
                                    .ranks = {1, 2},
                                    .call = "barrier #4 of group world"};

const Failure exited{.rank = 0, .exit_code = 69};
const Failure crashed{.rank = 0, .signal = SIGSEGV};
const Failure threw{.rank = 0, .signal = SIGABRT};

bool is_that_break(const Failure& failure) {
  return failure.fault == Fault::timeout && failure.ranks == std::vector<int>{1, 2} &&
         failure.call == rank_one_did_not_come.call && failure.what == rank_one_did_not_come.what;
}

TEST(JobControlBlock, AnExitAfterATimeoutIsAttributedToTheAbsentRank) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  EXPECT_EQ(page.cause_of(0, exited).exit_code, 69);
  page.note_break(0, rank_one_did_not_come);
  EXPECT_TRUE(is_that_break(page.cause_of(0, exited)));
  EXPECT_TRUE(is_that_break(page.cause_of(0, threw)));
  EXPECT_EQ(page.cause_of(1, exited).exit_code, 69);
}

TEST(JobControlBlock, ACrashIsItsOwnCauseAndSoIsAnotherException) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  page.note_break(0, rank_one_did_not_come);
  EXPECT_EQ(page.cause_of(0, crashed).signal, SIGSEGV);
  page.write_exit_report(0, "std::bad_alloc: std::bad_alloc");
  EXPECT_EQ(page.cause_of(0, threw).signal, SIGABRT);
}

TEST(JobControlBlock, ATimeoutExceptionIsAttributedToTheAbsentRank) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  page.note_break(0, rank_one_did_not_come);
  page.write_exit_report(0, "lockstep::Error: timeout: barrier #4", Fault::timeout);
  EXPECT_TRUE(is_that_break(page.cause_of(0, threw)));
}

TEST(JobControlBlock, AnEndFollowsFromTheRankThatHadLeft) {
  JobControlBlock page = JobControlBlock::create(3, "job");
  page.note_break(0, {.rank = 1, .left = true, .ranks = {1}});
  EXPECT_EQ(page.cause_of(0, exited).rank, 1);
  EXPECT_TRUE(page.cause_of(0, exited).left);
  page.write_exit_report(0, "lockstep::Error: peer_lost: rank 1 has left", Fault::peer_lost);
  EXPECT_EQ(page.cause_of(0, threw).rank, 1);
  page.enter(2);
  page.note_break(2, {.rank = 1, .left = true, .ranks = {1}});
  page.write_exit_report(2, "std::bad_alloc: std::bad_alloc");
  EXPECT_EQ(page.cause_of(2, threw).signal, SIGABRT) << "an exception of its own";
  page.leave(2, JobControlBlock::Phase::finished);
}

TEST(JobControlBlock, TheEndOfARankThatWentOnAfterTheBreakIsItsOwnCause) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  page.activity(0).resumed = 1;  // After an earlier break.
  page.note_break(0, rank_one_did_not_come);
  EXPECT_TRUE(is_that_break(page.cause_of(0, exited)));
  page.activity(0).resumed = 2;
  EXPECT_EQ(page.cause_of(0, exited).exit_code, 69);
}

TEST(JobControlBlock, AThreadThatKnowsNothingOfTheBreakDoesNotHideIt) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  page.note_break(0, rank_one_did_not_come);
  page.activity(0).collective.enter(pack_group_name("checkpoint"), Operation::barrier, 1,
                                    ticks_now());
  page.activity(0).collective.leave(ticks_now());
  EXPECT_TRUE(is_that_break(page.cause_of(0, exited)));
}

TEST(JobControlBlock, ATimeoutExceptionTakesPrecedenceOverLaterCalls) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  page.note_break(0, rank_one_did_not_come);
  page.activity(0).resumed = 1;  // For example, a call by a destructor.
  page.write_exit_report(0, "lockstep::Error: timeout: barrier #4", Fault::timeout);
  EXPECT_TRUE(is_that_break(page.cause_of(0, exited)));
}

TEST(JobControlBlock, TheLatestBreakIsThatOfAProcessThatKnowsWhoseFaultItWas) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  EXPECT_FALSE(page.latest_break(Fault::timeout));
  page.note_break(0, rank_one_did_not_come);
  page.note_break(2, {.fault = Fault::timeout, .call = "barrier #4 of group world"});
  ASSERT_TRUE(page.latest_break(Fault::timeout));
  EXPECT_TRUE(is_that_break(*page.latest_break(Fault::timeout)));
  EXPECT_FALSE(page.latest_break(Fault::mismatch));
}

TEST(JobControlBlock, ABreakIsReadWholeWhileAnotherIsNoted) {
  const JobControlBlock page = JobControlBlock::create(1, "job");
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 20000; ++i) {
      const std::string text(i % 2 == 0 ? 20 : 200, i % 2 == 0 ? 'a' : 'b');
      page.note_break(0, {.what = text, .fault = Fault::timeout, .ranks = {0}, .call = text});
    }
    done = true;
  });
  int mixed = 0;
  while (!done) {
    const auto seen = page.latest_break(Fault::timeout);
    if (seen && seen->what != seen->call) ++mixed;
  }
  writer.join();
  EXPECT_EQ(mixed, 0);
}

TEST(JobControlBlock, ARankThatHasJoinedAnotherGroupEndsForItsOwnCause) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  page.note_break(0, rank_one_did_not_come);
  page.await_group(0, false);
  page.write_exit_report(0, "lockstep::Error: timeout: barrier #9", Fault::timeout);
  EXPECT_EQ(page.cause_of(0, threw).signal, SIGABRT);
  EXPECT_FALSE(page.latest_break(Fault::timeout));
  page.note_break(0, rank_one_did_not_come);
  EXPECT_TRUE(is_that_break(page.cause_of(0, threw))) << "a later break counts again";
}

// --- Waiting for a group ------------------------------------------------------------------------

TEST(JobControlBlock, ARankAwaitsAGroupUntilItJoinsOne) {
  const JobControlBlock page = JobControlBlock::create(2, "job");
  EXPECT_FALSE(page.awaits_group(1));
  page.await_group(1);
  page.await_group(1);
  EXPECT_TRUE(page.awaits_group(1));
  EXPECT_FALSE(page.awaits_group(0));
  page.await_group(1, false);
  EXPECT_FALSE(page.awaits_group(1));
  page.await_group(1);
  EXPECT_TRUE(page.awaits_group(1)) << "the next one";
}

TEST(JobControlBlock, AnEndInOrderIsKnownToThoseThatWaitAndIsNoFailure) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  EXPECT_FALSE(page.first_end());
  page.note_end(1, {.rank = 4, .host = "a", .pid = 5, .exit_code = 0});
  ASSERT_TRUE(page.first_end());
  EXPECT_EQ(page.first_end()->rank, 4);
  EXPECT_EQ(page.first_end()->host, "a");
  EXPECT_EQ(page.first_end()->pid, 5);
  EXPECT_EQ(page.first_end()->exit_code, 0);
  EXPECT_FALSE(page.failure());
  EXPECT_EQ(page.since_failure().count(), 0);
}

TEST(JobControlBlock, ReportsTheFirstOrderlyEndToAllRanks) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  page.note_end(2, {.rank = 2, .exit_code = 0});
  page.note_end(0, {.rank = 0, .exit_code = 0});
  page.note_end(2, {.rank = 2, .exit_code = 3});
  EXPECT_EQ(page.first_end()->rank, 2);
  EXPECT_EQ(page.first_end()->exit_code, 0);
}

TEST(JobControlBlock, TheEndOfARankThatWaitedForOneThatHadEndedFollowsFromThat) {
  const JobControlBlock page = JobControlBlock::create(3, "job");
  page.note_end(1, {.rank = 1, .exit_code = 0});
  page.note_break(0, *page.first_end());
  EXPECT_EQ(page.cause_of(0, exited).rank, 1);
  EXPECT_EQ(page.cause_of(0, exited).exit_code, 0);
  page.activity(0).resumed = 1;  // It has caught the Error and continued.
  EXPECT_EQ(page.cause_of(0, exited).rank, 0);
  EXPECT_EQ(page.cause_of(0, crashed).signal, SIGSEGV);
}

TEST(JobControlBlock, AnnouncedSettingsAreVisibleToOtherRanksForOneMeetingOnly) {
  const JobControlBlock page = JobControlBlock::create(2, "job", 8);
  EXPECT_EQ(page.world_size(), 8);
  EXPECT_FALSE(page.announced(1, 1));
  EXPECT_FALSE(page.announced(1, 0));
  page.announce(1, {1, 4, "gloo"});
  ASSERT_TRUE(page.announced(1, 1));
  EXPECT_EQ(page.announced(1, 1)->world_size, 4);
  EXPECT_EQ(page.announced(1, 1)->backend, "gloo");
  EXPECT_FALSE(page.announced(1, 2));
}

TEST(JobControlBlock, OnlyTheFirstFailureIsKept) {
  JobControlBlock page = JobControlBlock::create(2, "job");
  EXPECT_FALSE(page.failure());
  page.report({.rank = 1,
               .host = "a",
               .pid = 5,
               .signal = 9,
               .oom = true,
               .operation = "send",
               .sequence = 12,
               .peer = 2,
               .group = "world",
               .what = "std::bad_alloc: std::bad_alloc",
               .detected_by = 3});
  page.report({.rank = 0, .host = "b", .pid = 6, .exit_code = 3});
  const Failure failure = page.failure().value();
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.host, "a");
  EXPECT_EQ(failure.signal, 9);
  EXPECT_EQ(failure.oom, true);
  EXPECT_EQ(failure.operation, "send");
  EXPECT_EQ(failure.sequence, 12U);
  EXPECT_EQ(failure.peer, 2);
  EXPECT_EQ(failure.group, "world");
  EXPECT_EQ(failure.what, "std::bad_alloc: std::bad_alloc");
  EXPECT_EQ(failure.detected_by, 3);
  EXPECT_FALSE(failure.left);
}

TEST(JobControlBlock, ReportsTheTimeSinceTheFirstFailure) {
  JobControlBlock page = JobControlBlock::create(1, "job");
  EXPECT_EQ(page.since_failure().count(), 0);
  const auto before = Clock::now();
  page.report({.rank = 0});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  page.report({.rank = 0});
  const auto since = page.since_failure();
  EXPECT_GE(since.count(), 30);
  EXPECT_LE(since, Clock::now() - before);
}

TEST(JobControlBlock, TheFirstWordsOfAProcessAreItsLast) {
  JobControlBlock page = JobControlBlock::create(2, "job");
  page.enter(1);
  EXPECT_EQ(page.exit_report(1), "");
  page.write_exit_report(1, std::string(5000, 'x'));
  page.write_exit_report(1, "more");
  EXPECT_EQ(page.exit_report(1), std::string(1024, 'x'));
  EXPECT_EQ(page.exit_report(0), "");
  page.leave(1, JobControlBlock::Phase::abandoned);
  EXPECT_EQ(page.examine(1).what, std::string(1024, 'x'));
}

TEST(JobControlBlock, WordsAreNotCutWithinACharacter) {
  JobControlBlock page = JobControlBlock::create(1, "job");
  page.write_exit_report(0, std::string(1023, 'x') + "\xc3\xa9");
  EXPECT_EQ(page.exit_report(0), std::string(1023, 'x'));
}

TEST(JobControlBlock, WordsAreForgottenWhenAProcessComesBack) {
  JobControlBlock page = JobControlBlock::create(1, "job");
  page.enter(0);
  page.write_exit_report(0, "std::bad_alloc");
  page.leave(0, JobControlBlock::Phase::finished);
  page.enter(0);
  EXPECT_EQ(page.exit_report(0), "");
  page.leave(0, JobControlBlock::Phase::finished);
}

TEST(JobControlBlock, WordsThatComeAfterTheReportBelongToIt) {
  JobControlBlock page = JobControlBlock::create(2, "job");
  page.enter(1);
  page.leave(1, JobControlBlock::Phase::abandoned);
  page.report(page.examine(1));
  EXPECT_EQ(page.failure().value().what, "");
  EXPECT_TRUE(page.failure().value().left);
  page.write_exit_report(1, "std::bad_alloc: std::bad_alloc");
  EXPECT_EQ(page.failure().value().what, "std::bad_alloc: std::bad_alloc");
}

TEST(JobControlBlock, AProcessThatEndsAfterItsExitReportIsExaminedWithIt) {
  JobControlBlock page = JobControlBlock::create(2, "job");
  const pid_t pid = start_rank(page, 1, [&] {
    page.write_exit_report(1, "std::bad_alloc: std::bad_alloc");
    ::raise(SIGABRT);
  });
  ASSERT_TRUE(soon([&] { return page.lost(1); }));
  const Failure failure = page.examine(1);
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(failure.what, "std::bad_alloc: std::bad_alloc");
  EXPECT_EQ(failure.signal, SIGABRT);
  EXPECT_FALSE(failure.oom);
}

TEST(JobControlBlock, AnotherProcessSeesTheSamePage) {
  JobControlBlock page = JobControlBlock::create(3, "the job");
  JobControlBlock other = JobControlBlock::attach(duplicate(page.descriptor()));
  EXPECT_EQ(other.slots(), 3);
  EXPECT_EQ(other.job_id(), "the job");
  page.activity(2).collective.enter({}, Operation::barrier, 5, ticks_now());
  EXPECT_EQ(other.activity(2).collective.sequence(), 5U);
}

TEST(JobControlBlock, TheIdOfAJobUnderTorchrunIsKeptWhole) {
  const std::string id = "environment MASTER_ADDR=" + std::string(253, 'a') +
                         " MASTER_PORT=65535 TORCHELASTIC_RUN_ID=" + std::string(36, 'b') +
                         " TORCHELASTIC_RESTART_COUNT=0";
  EXPECT_EQ(JobControlBlock::create(1, id).job_id(), id);
}

TEST(JobControlBlock, AnIdIsNotCutWithinACharacter) {
  std::string id;
  for (int i = 0; i < 300; ++i) id += "\xc3\xa9";
  const JobControlBlock page = JobControlBlock::create(1, id);
  EXPECT_EQ(page.job_id().size() % 2, 0U);
  EXPECT_TRUE(id.starts_with(page.job_id()));
}

TEST(JobControlBlock, MemoryOfAnotherKindIsRefused) {
  SharedMapping other = SharedMapping::create("something else", 4096);
  EXPECT_THROW(JobControlBlock::attach(duplicate(other.descriptor())), Error);
}

}  // namespace
}  // namespace lockstep::job::job_control_block_test
