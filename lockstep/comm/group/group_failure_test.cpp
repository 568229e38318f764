// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/group_failure.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/fault_of.h"

namespace lockstep::comm::group_failure_test {
namespace {

using namespace std::chrono_literals;

// Rank 1 of a group of three, and what it reports of its failure.
struct Rank {
  const GroupIdentity identity{.name = "part", .rank = 1, .size = 3, .members = {4, 7, 9}};
  std::optional<Failure> told = {};
  std::optional<AbortReason> aborted = {};
  std::vector<std::string> records = {};
  GroupFailure failure{
      identity,
      {.report_break = [this](const Failure& one) { told = one; },
       .abort = [this](const AbortReason& why) { aborted = why; },
       .save_record = [this](const std::string& error) { records.push_back(error); }}};

  void break_with(const std::exception_ptr& error) {
    failure.break_with(error, "barrier #5 of group part on rank 1", 2s);
  }
  template <class Thrown>
  void fail(const Thrown& error) {
    break_with(std::make_exception_ptr(error));
  }
};

TEST(GroupFailure, TheFirstErrorIsThrownAgainAndLaterOnesAreForgotten) {
  Rank rank;
  EXPECT_NO_THROW(rank.failure.throw_if_broken());
  rank.fail(Error(Fault::system, "no memory"));
  rank.fail(Error(Fault::timeout, "late", {0}));
  EXPECT_TRUE(rank.failure.is_broken());
  std::string text;
  EXPECT_EQ(test::fault_of([&] { rank.failure.throw_if_broken(); }, &text), Fault::system);
  EXPECT_NE(text.find("no memory"), text.npos) << text;
  EXPECT_EQ(rank.records.size(), 1U);
  EXPECT_FALSE(rank.told);
}

TEST(GroupFailure, ResponsibleLivingRanksAreReportedByTheirNumbersInTheJob) {
  Rank rank;
  rank.fail(Error(Fault::timeout, "barrier #5 of group part on rank 1: late", {0, 2}));
  ASSERT_TRUE(rank.told);
  EXPECT_EQ(rank.told->ranks, (std::vector<int>{4, 9}));
  EXPECT_EQ(rank.told->rank, 4);
  EXPECT_EQ(rank.told->detected_by, 7);
  EXPECT_EQ(rank.told->call, "barrier #5 of group part");
}

TEST(GroupFailure, RanksThatTheGroupDoesNotHaveAreLeftOut) {
  Rank rank;
  rank.fail(Error(Fault::mismatch, "differ", {2, 2'000'000'000}));
  ASSERT_TRUE(rank.told);
  EXPECT_EQ(rank.told->ranks, std::vector<int>{9});
}

TEST(GroupFailure, AFailureIsReportedToOtherRanksByGroupRankNumbers) {
  Rank rank;
  rank.fail(Error(Fault::timeout, "barrier #5 of group part on rank 1: late", {2}));
  ASSERT_TRUE(rank.aborted);
  EXPECT_EQ(rank.aborted->rank, 1);
  EXPECT_EQ(rank.aborted->ranks, std::vector<int>{2});
  EXPECT_EQ(rank.aborted->reason, "late");
}

TEST(GroupFailure, ADeathThatAllRanksDetectIsNotReportedAgain) {
  Rank rank;
  rank.fail(Error("rank 2 was lost", Failure{.rank = 2}));
  EXPECT_FALSE(rank.aborted);
  EXPECT_FALSE(rank.told);
  EXPECT_EQ(rank.records.size(), 1U);
}

TEST(GroupFailure, ARankThatAbortedItsGroupCausesNoFurtherAbort) {
  Rank rank;
  rank.fail(Error("barrier", Failure{.rank = 2, .what = "loss is nan", .left = true}));
  EXPECT_FALSE(rank.aborted) << "the others see it, and would hear of this rank instead";
}

TEST(GroupFailure, TheRankThatCausedALeaveIsReportedToTheOtherRanks) {
  Rank rank;
  const Failure first{.rank = 4, .left = true, .ranks = {4}};
  rank.fail(Error("barrier #5 of group part on rank 1", first));
  ASSERT_TRUE(rank.aborted);
  EXPECT_EQ(rank.aborted->fault, Fault::peer_lost);
  EXPECT_EQ(rank.aborted->rank, 1);
}

TEST(GroupFailure, ARankThatHasLeftIsReportedToTheOtherRanks) {
  Rank rank;
  rank.fail(Error(Fault::peer_lost, "barrier #5 of group part on rank 1: rank 2 has left", {2}));
  ASSERT_TRUE(rank.aborted);
  EXPECT_EQ(rank.aborted->fault, Fault::peer_lost);
  EXPECT_EQ(rank.aborted->ranks, std::vector<int>{2});
  ASSERT_TRUE(rank.told);
  EXPECT_EQ(rank.told->rank, 9);
  EXPECT_TRUE(rank.told->left);
  EXPECT_FALSE(rank.told->fault) << "nobody alive is to blame";
}

TEST(GroupFailure, ARankThatHasLeftIsNotedWhereTheGroupGoesOn) {
  Rank rank;
  const Error left(Fault::peer_lost, "recv on rank 1: rank 2 has left group part", {2});
  rank.failure.note(std::make_exception_ptr(left), "recv on rank 1");
  ASSERT_TRUE(rank.told);
  EXPECT_EQ(rank.told->rank, 9);
  EXPECT_EQ(rank.told->call, "recv");
  EXPECT_FALSE(rank.failure.is_broken());
  EXPECT_FALSE(rank.aborted);
}

TEST(GroupFailure, ARankThatLeftForAnotherPassesOnWhoThatWas) {
  Rank rank;
  const Failure first{.rank = 4, .left = true, .ranks = {4}};
  rank.failure.note(std::make_exception_ptr(Error("recv on rank 1", first)), "recv on rank 1");
  ASSERT_TRUE(rank.told);
  EXPECT_EQ(rank.told->rank, 4) << "the job's number, as it was told";
}

TEST(GroupFailure, ALostConnectionOfAnUnknownRankIsReported) {
  Rank rank;
  rank.fail(Error(Fault::peer_lost, "a connection ended"));
  EXPECT_TRUE(rank.aborted);
}

TEST(GroupFailure, AnyExceptionBreaksTheGroup) {
  Rank rank;
  rank.fail(std::runtime_error("no more input"));
  EXPECT_THROW(rank.failure.throw_if_broken(), std::runtime_error);
  ASSERT_TRUE(rank.aborted);
  EXPECT_EQ(rank.aborted->reason, "no more input");
  EXPECT_EQ(rank.records, std::vector<std::string>{"no more input"});
}

}  // namespace
}  // namespace lockstep::comm::group_failure_test
