// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/group/group_context.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/shm/thread_peers.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::comm::group_context_test {
namespace {

using namespace std::chrono_literals;

const GroupIdentity identity{.name = "part", .rank = 1, .size = 3, .members = {4, 7, 9}};

template <class Thrown>
FailureReports reports_for(const Thrown& error,
                           const std::string& call = "barrier #5 of group part on rank 1") {
  return reports_of(std::make_exception_ptr(error), identity, call, 2s);
}

// --- What a rank reports -------------------------------------------------------------------------

TEST(FailureReports, ResponsibleLivingRanksAreReportedByTheirNumbersInTheJob) {
  const auto reports =
      reports_for(Error(Fault::timeout, "barrier #5 of group part on rank 1: late", {0, 2}));
  ASSERT_TRUE(reports.failure);
  EXPECT_EQ(reports.failure->ranks, (std::vector<int>{4, 9}));
  EXPECT_EQ(reports.failure->rank, 4);
  EXPECT_EQ(reports.failure->detected_by, 7);
  EXPECT_EQ(reports.failure->call, "barrier #5 of group part");
}

TEST(FailureReports, RanksThatTheGroupDoesNotHaveAreLeftOut) {
  const auto reports = reports_for(Error(Fault::mismatch, "differ", {2, 2'000'000'000}));
  ASSERT_TRUE(reports.failure);
  EXPECT_EQ(reports.failure->ranks, std::vector<int>{9});
}

TEST(FailureReports, AFailureIsReportedToOtherRanksByGroupRankNumbers) {
  const auto reports =
      reports_for(Error(Fault::timeout, "barrier #5 of group part on rank 1: late", {2}));
  ASSERT_TRUE(reports.to_group);
  EXPECT_EQ(reports.to_group->rank, 1);
  EXPECT_EQ(reports.to_group->ranks, std::vector<int>{2});
  EXPECT_EQ(reports.to_group->reason, "late");
}

TEST(FailureReports, ADeathThatAllRanksDetectIsNotReportedAgain) {
  const auto reports = reports_for(Error("rank 2 was lost", Failure{.rank = 2}));
  EXPECT_FALSE(reports.to_group);
  EXPECT_FALSE(reports.failure);
}

TEST(FailureReports, ARankThatAbortedItsGroupCausesNoFurtherAbort) {
  const auto reports =
      reports_for(Error("barrier", Failure{.rank = 2, .what = "loss is nan", .left = true}));
  EXPECT_FALSE(reports.to_group) << "the others detect it, and would get this rank instead";
}

TEST(FailureReports, TheRankThatCausedALeaveIsReportedToTheOtherRanks) {
  const Failure first{.rank = 4, .left = true, .ranks = {4}};
  const auto reports = reports_for(Error("barrier #5 of group part on rank 1", first));
  ASSERT_TRUE(reports.to_group);
  EXPECT_EQ(reports.to_group->fault, Fault::peer_lost);
  EXPECT_EQ(reports.to_group->rank, 1);
}

TEST(FailureReports, ARankThatHasLeftIsReportedToTheOtherRanks) {
  const auto reports = reports_for(
      Error(Fault::peer_lost, "barrier #5 of group part on rank 1: rank 2 has left", {2}));
  ASSERT_TRUE(reports.to_group);
  EXPECT_EQ(reports.to_group->fault, Fault::peer_lost);
  EXPECT_EQ(reports.to_group->ranks, std::vector<int>{2});
  ASSERT_TRUE(reports.failure);
  EXPECT_EQ(reports.failure->rank, 9);
  EXPECT_TRUE(reports.failure->left);
  EXPECT_FALSE(reports.failure->fault) << "no living rank caused it";
}

TEST(FailureReports, ARankThatLeftForAnotherPassesOnWhoThatWas) {
  const Failure first{.rank = 4, .left = true, .ranks = {4}};
  const auto reports = reports_for(Error("recv on rank 1", first), "recv on rank 1");
  ASSERT_TRUE(reports.failure);
  EXPECT_EQ(reports.failure->rank, 4) << "already a rank of the job";
}

TEST(FailureReports, ALostConnectionOfAnUnknownRankIsReported) {
  EXPECT_TRUE(reports_for(Error(Fault::peer_lost, "a connection ended")).to_group);
}

TEST(FailureReports, AnyExceptionIsReportedToTheOtherRanks) {
  const auto reports = reports_for(std::runtime_error("no more input"));
  ASSERT_TRUE(reports.to_group);
  EXPECT_EQ(reports.to_group->reason, "no more input");
  EXPECT_EQ(reports.text, "no more input");
}

// --- What it does --------------------------------------------------------------------------------

class Reporter final : public RankContext {
 public:
  using RankContext::RankContext;
  void report_break(Failure failure) override { reported = std::move(failure); }

  std::optional<Failure> reported;
};

// The same rank, which shares memory with no other, and what it reports.
class BrokenGroup : public testing::Test {
 protected:
  BrokenGroup() { ::setenv("LOCKSTEP_FLIGHT_RECORD", folder_.path().c_str(), 1); }
  ~BrokenGroup() override { ::unsetenv("LOCKSTEP_FLIGHT_RECORD"); }

  template <class Thrown>
  void fail(const Thrown& error) {
    group_.break_with(std::make_exception_ptr(error), "barrier #5 of group part on rank 1", 2s);
  }

  std::string recorded_error() const {
    for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
      std::ifstream in(file.path());
      return nlohmann::json::parse(in).at("error");
    }
    return {};
  }

  test::ScratchDirectory folder_;
  std::shared_ptr<ThreadPeers> peers_ =
      std::make_shared<ThreadPeers>(std::make_shared<ThreadTeam>(1), 0);
  std::shared_ptr<Reporter> rank_ =
      std::make_shared<Reporter>(std::shared_ptr<Activity>(peers_, &peers_->activity(0)));
  std::shared_ptr<ShmBackend> backend_ = std::make_shared<ShmBackend>(peers_, "part", 1min);
  GroupContext group_{identity, {rank_, backend_}};
};

TEST_F(BrokenGroup, ThrowsItsFirstErrorAgainAndForgetsLaterOnes) {
  EXPECT_NO_THROW(group_.throw_if_broken());
  fail(Error(Fault::system, "no memory"));
  fail(Error(Fault::timeout, "late", {0}));
  EXPECT_TRUE(group_.is_broken());
  std::string text;
  EXPECT_EQ(test::fault_of([&] { group_.throw_if_broken(); }, &text), Fault::system);
  EXPECT_NE(text.find("no memory"), text.npos) << text;
  EXPECT_NE(recorded_error().find("no memory"), text.npos);
  EXPECT_FALSE(rank_->reported);
}

TEST_F(BrokenGroup, IsReportedAndAborted) {
  fail(Error(Fault::timeout, "late", {2}));
  ASSERT_TRUE(rank_->reported);
  EXPECT_EQ(rank_->reported->rank, 9);
  EXPECT_TRUE(backend_->pipes().is_aborted());
}

TEST_F(BrokenGroup, IsNotAbortedForADeathThatAllRanksDetect) {
  fail(Error("rank 2 was lost", Failure{.rank = 2}));
  EXPECT_FALSE(backend_->pipes().is_aborted());
  EXPECT_NE(recorded_error(), "");
}

TEST_F(BrokenGroup, MayBeBrokenByAnyException) {
  fail(std::runtime_error("no more input"));
  EXPECT_THROW(group_.throw_if_broken(), std::runtime_error);
  EXPECT_TRUE(backend_->pipes().is_aborted());
  EXPECT_EQ(recorded_error(), "no more input");
}

TEST_F(BrokenGroup, ReportsARankThatHasLeftAGroupWhichContinues) {
  const Error left(Fault::peer_lost, "recv on rank 1: rank 2 has left group part", {2});
  group_.report(std::make_exception_ptr(left), "recv on rank 1");
  ASSERT_TRUE(rank_->reported);
  EXPECT_EQ(rank_->reported->rank, 9);
  EXPECT_EQ(rank_->reported->call, "recv");
  EXPECT_FALSE(group_.is_broken());
  EXPECT_FALSE(backend_->pipes().is_aborted());
}

TEST_F(BrokenGroup, ReportsNothingAfterItsEnd) {
  group_.begin_end();
  group_.end();
  fail(Error(Fault::timeout, "late", {2}));
  EXPECT_FALSE(rank_->reported);
  EXPECT_FALSE(backend_->pipes().is_aborted());
  EXPECT_EQ(test::fault_of([&] { group_.resources(); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::comm::group_context_test
