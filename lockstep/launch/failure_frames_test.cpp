// Tests frames about failures.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/text.h"
#include "lockstep/launch/agent_frames.h"
#include "tests/fault_of.h"

namespace lockstep::launch::failure_frames_test {
namespace {

using test::fault_of;

Failure decoded(std::string_view body) {
  return *std::get<ReportFrame>(decode_agent_frame(body)).failure;
}

TEST(FailureFrames, KeepTheLivingRanksThatCausedATimeout) {
  const Failure sent{.rank = 1,
                     .what = "within 30 s",
                     .fault = Fault::timeout,
                     .ranks = {1, 3},
                     .call = "barrier #4 of group world"};
  const std::string frame = encode(ReportFrame{.outcome = Outcome::failed, .failure = sent});
  const Failure got = decoded(*first_agent_frame(frame));
  EXPECT_EQ(got.fault, Fault::timeout);
  EXPECT_EQ(got.ranks, sent.ranks);
  EXPECT_EQ(got.call, sent.call);
  EXPECT_EQ(describe(got), describe(sent));
}

TEST(FailureFrames, NameSomeOfManyRanks) {
  Failure sent{.rank = 1, .fault = Fault::timeout, .ranks = std::vector<int>(1000, 7)};
  const std::string frame = encode(ReportFrame{.outcome = Outcome::failed, .failure = sent});
  EXPECT_EQ(decoded(*first_agent_frame(frame)).ranks.size(), most_blamed);
}

const std::string begin =
    R"({"type":"report","attempt":0,"outcome":"failed","exit_code":1,"failure":{"rank":1,)"
    R"("host":"a","pid":2,"exit_code":1,"signal":null,"oom":null,"operation":"","sequence":0,)"
    R"("group":"","what":"","detected_by":-1,"left":false)";

TEST(FailureFrames, AcceptAFailureWithoutFaultAndRanks) {
  const Failure got = decoded(begin + "}}");
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_FALSE(got.fault);
}

TEST(FailureFrames, TruncateALongListOfRanks) {
  std::string ranks = "0";
  for (int rank = 1; rank < 1000; ++rank) ranks.append(",").append(std::to_string(rank));
  const std::string end = R"(,"fault":"timeout","ranks":[)" + ranks + R"(],"call":""}})";
  EXPECT_EQ(decoded(begin + end).ranks.size(), most_blamed);
}

TEST(FailureFrames, RejectInvalidFaultsAndRanks) {
  for (const char* end :
       {R"(,"fault":"bug","ranks":[],"call":""}})", R"(,"fault":"timeout"}})",
        R"(,"fault":"timeout","ranks":[-1],"call":""}})",
        R"(,"fault":"timeout","ranks":[[1]],"call":""}})", R"(,"fault":7,"ranks":[],"call":""}})"})
    EXPECT_EQ(fault_of([&] { decode_agent_frame(begin + end); }), Fault::corrupt) << end;
}

}  // namespace
}  // namespace lockstep::launch::failure_frames_test
