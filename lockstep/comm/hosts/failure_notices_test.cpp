// Tests failures with ranks that the job does not have, which another process may report.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/failure_notices.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "lockstep/comm/hosts/job_context.h"

namespace lockstep::comm::failure_notices_test {
namespace {

using namespace std::chrono_literals;

constexpr int no_rank = 2'000'000'000;

std::shared_ptr<HostSession> session_of_one() {
  return std::make_shared<HostSession>(
      HostMeeting{.identity = "a job of one", .opens = true, .is_alone = true}, in(10s));
}

TEST(GroupBreak, IsReportedForRanksOfTheJobOnly) {
  const auto session = session_of_one();
  JobContext(session).report_break(
      {.rank = no_rank, .detected_by = 0, .fault = Fault::timeout, .ranks = {0, no_rank}});
  const auto noted = session->page().latest_break(Fault::timeout);
  ASSERT_TRUE(noted);
  EXPECT_EQ(noted->ranks, std::vector<int>{0});
  EXPECT_EQ(noted->rank, 0);
  EXPECT_EQ(noted->pid, ::getpid());
  session->finish();
}

TEST(FailureNotices, AreNotSentForARankOutsideTheJob) {
  const auto session = session_of_one();
  Connections connections({.member = {.job_id = "job", .rank = 0, .world_size = 1}});
  session->page().report({.rank = no_rank, .detected_by = 0});
  const FailureNotices notices(session, connections, {true});
  std::this_thread::sleep_for(200ms);  // It checks every 20 ms.
  notices.tell_what_is_known();
  session->finish();
}

}  // namespace
}  // namespace lockstep::comm::failure_notices_test
