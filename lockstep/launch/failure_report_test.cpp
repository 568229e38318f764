// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/failure_report.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::launch::failure_report_test {
namespace {

Failure failure_of_rank_1() {
  return {.rank = 1, .host = "node3", .pid = 42, .operation = "all_reduce", .sequence = 8};
}

TEST(FailureReport, HasWhatHappenedWhoCausedItAndWhatToDo) {
  Failure failure = failure_of_rank_1();
  failure.signal = SIGSEGV;
  const MessageParts parts = report_of(failure, true);
  EXPECT_EQ(parts.what, "rank 1 was killed by signal 11 (SIGSEGV)");
  EXPECT_EQ(parts.who, "rank 1 (pid 42 on node3), last seen in all_reduce #8");
  EXPECT_EQ(parts.to_do, "run rank 1 in a debugger, or read its core dump (ulimit -c unlimited)");
}

TEST(FailureReport, HasTheRemedyOfTheException) {
  Failure failure = failure_of_rank_1();
  failure.exit_code = exit_usage;
  failure.what = "lockstep::Error: misuse: no; caused by \x1b[2J\nme; to do: yes [a.cpp:1]";
  const MessageParts parts = report_of(failure, true);
  EXPECT_EQ(parts.what, "rank 1 ended with an exception: lockstep::Error: misuse: no [a.cpp:1]");
  EXPECT_EQ(parts.who, " [2J me") << "without control characters";
  EXPECT_EQ(parts.to_do, "yes");
}

TEST(FailureReport, HasARemedyForEachKindOfFailure) {
  std::vector<Failure> failures(10, failure_of_rank_1());
  failures[0].exit_code = 3;
  failures[1].signal = SIGKILL;
  failures[2].signal = SIGKILL;
  failures[2].oom = true;
  failures[3].left = true;
  failures[4].what = "std::runtime_error: no";
  failures[5].what = "lockstep::Error: bug: no";
  failures[6].fault = Fault::mismatch;
  failures[7].what = "lockstep::Error: system: runs/a: No such file or directory";
  failures[8].what = "lockstep::Error: system: runs/a/model: No space left on device";
  failures[9].what = "lockstep::Error: system: runs/a is not a folder";
  std::vector<std::string> remedies;
  for (const Failure& failure : failures) {
    const MessageParts parts = report_of(failure, true);
    EXPECT_FALSE(parts.what.empty() || parts.who.empty() || parts.to_do.empty());
    EXPECT_EQ(std::ranges::count(remedies, parts.to_do), 0) << parts.to_do;
    remedies.push_back(parts.to_do);
  }
}

TEST(FailureReport, NamesWhereLateRanksWereSeenAsWhoCausedIt) {
  const Failure late{.rank = 2,
                     .what = "within 1 s; rank 0 waited; last seen: rank 2 (pid 7 on a), asleep",
                     .fault = Fault::timeout,
                     .ranks = {2},
                     .call = "barrier #3 of group world"};
  const MessageParts parts = report_of(late, true);
  EXPECT_EQ(parts.what,
            "rank 2 did not come to barrier #3 of group world within 1 s; rank 0 waited");
  EXPECT_EQ(parts.who, "rank 2 (pid 7 on a), asleep");
}

TEST(FailureReport, NamesAllRanksThatEndedAlike) {
  Failure first{.rank = 2, .exit_code = 64, .what = "E: a layer differs"};
  add_alike(first, {.rank = 0, .exit_code = 64, .what = "E: a layer differs", .ranks = {0, 1}});
  add_alike(first, {.rank = 3, .exit_code = 64, .what = "E: another"});
  add_alike(first, {.rank = 4, .what = "E: a layer differs", .left = true});
  EXPECT_TRUE(is_common(first));
  const MessageParts parts = report_of(first, true);
  EXPECT_EQ(parts.what, "ranks 0-2 ended with the same exception: E: a layer differs");
  EXPECT_EQ(parts.who, "ranks 0-2");
}

}  // namespace
}  // namespace lockstep::launch::failure_report_test
