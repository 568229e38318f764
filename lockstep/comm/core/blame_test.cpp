// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/blame.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

const std::string context = "barrier #4 of group world on rank 2";
const Error waited(Fault::timeout, context + ": 3 of 9 ranks did not come in time", {1, 3, 4});

TEST(Blame, OfATimeoutIsThoseThatDidNotCome) {
  const Failure failure = blame_in(waited, 2, context, 1500ms);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.ranks, (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(failure.detected_by, 2);
  EXPECT_EQ(describe(failure),
            "ranks 1,3-4 did not come to barrier #4 of group world within 1.5 s; rank 2 waited");
}

TEST(Blame, IsTheSameForThoseWhoLearnOfIt) {
  const std::string reason = reason_for(waited, 2);
  EXPECT_EQ(reason.substr(0, 31), "rank 2 (waits for 1,3-4): barri");
  const std::string own = "send of 1 float32 to rank 0 in group world on rank 5";
  const Error learned(Fault::timeout, own + ": " + std::string(was_given_up) + reason);
  const Failure failure = blame_in(learned, 5, own, 60s);
  EXPECT_EQ(failure.ranks, (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(failure.detected_by, 2);
  EXPECT_EQ(failure.call, "send of 1 float32 to rank 0 in group world");
}

TEST(Blame, OfAMismatchIsTheSameForThoseWhoLearnOfIt) {
  const std::string calls = "rank 0 called barrier, rank 1 called split";
  const Error differ(Fault::mismatch, context + ": " + calls, {0, 1});
  const std::string own = "split #4 of group world on rank 1";
  const Error learned(Fault::mismatch,
                      own + ": " + std::string(was_given_up) + reason_for(differ, 2));
  for (const Failure& failure :
       {blame_in(differ, 2, context, 60s), blame_in(learned, 1, own, 60s)}) {
    EXPECT_EQ(failure.ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(failure.detected_by, 2);
    EXPECT_EQ(failure.what, calls);
  }
}

TEST(Blame, InWordsIsReadAsItWas) {
  for (const Fault fault : {Fault::timeout, Fault::mismatch}) {
    const Failure told{.rank = 1,
                       .what = "rank 0 called barrier, rank 1 called split",
                       .detected_by = 2,
                       .fault = fault,
                       .ranks = {1, 3, 4},
                       .call = "barrier #4 of group world"};
    Failure heard;
    ASSERT_TRUE(read_words(in_words(told), heard)) << in_words(told);
    EXPECT_EQ(heard.fault, fault);
    EXPECT_EQ(heard.ranks, told.ranks);
    EXPECT_EQ(heard.call, told.call);
    EXPECT_EQ(heard.what, told.what);
  }
  for (const char* other :
       {"the connection was closed", "timeout of x", "timeout of x, rank 3: y", ""}) {
    Failure heard;
    EXPECT_FALSE(read_words(other, heard)) << other;
    EXPECT_FALSE(heard.fault) << other;
  }
}

TEST(Blame, IsNobodysWhereNobodyIsNamed) {
  for (const char* reason : {"rank 2: no", "rank 2 (waits for ): no", "rank 2 (waits for 3-): no",
                             "rank 2 (waits for 1-9999999): no", "rank 2 (waits for 3,x): no",
                             "rank -2 (waits for 3): no", "rank 2 (waits for 3", ""}) {
    const Error learned(Fault::timeout, context + ": " + std::string(was_given_up) + reason);
    const Failure failure = blame_in(learned, 2, context, 1s);
    EXPECT_TRUE(failure.ranks.empty()) << reason;
    EXPECT_EQ(failure.rank, -1) << reason;
  }
}

}  // namespace
}  // namespace lockstep
