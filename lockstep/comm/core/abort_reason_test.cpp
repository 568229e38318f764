// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/abort_reason.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace lockstep::comm::abort_reason_test {
namespace {

using namespace std::chrono_literals;

const std::string context = "barrier #4 of group world on rank 2";
const Error waited(Fault::timeout, context + ": 3 of 9 ranks did not come in time", {1, 3, 4});

TEST(Blame, NamesTheAbsentRanksAfterATimeout) {
  const Failure failure = blame_in(waited, 2, context, 1500ms);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.ranks, (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(failure.detected_by, 2);
  EXPECT_EQ(describe(failure),
            "ranks 1,3-4 did not come to barrier #4 of group world within 1.5 s; rank 2 waited");
}

TEST(Blame, IsTheSameOnRanksThatReceiveIt) {
  const AbortReason why = abort_reason_for(waited, 2, context);
  EXPECT_EQ(describe(why),
            "rank 2 waited for ranks 1,3-4: " + context + ": 3 of 9 ranks did not come in time");
  const std::string own = "send of 1 float32 to rank 0 in group world on rank 5";
  const GroupAborted learned(own, why);
  EXPECT_EQ(learned.fault(), Fault::timeout);
  EXPECT_EQ(learned.ranks(), (std::vector<int>{1, 3, 4}));
  const Failure failure = blame_in(learned, 5, own, 60s);
  EXPECT_EQ(failure.ranks, (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(failure.detected_by, 2);
  EXPECT_EQ(failure.call, "send of 1 float32 to rank 0 in group world");
}

TEST(Blame, IsTheSameForAMismatchOnRanksThatReceiveIt) {
  const std::string calls = "rank 0 called barrier, rank 1 called split";
  const Error differ(Fault::mismatch, context + ": " + calls, {0, 1});
  const std::string own = "split #4 of group world on rank 1";
  const GroupAborted learned(own, abort_reason_for(differ, 2, context));
  for (const Failure& failure :
       {blame_in(differ, 2, context, 60s), blame_in(learned, 1, own, 60s)}) {
    EXPECT_EQ(failure.ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(failure.detected_by, 2);
    EXPECT_EQ(failure.what, calls);
  }
}

TEST(Blame, IsDescribedInOneSentenceForAMismatch) {
  const auto text_of = [](const std::vector<int>& ranks) {
    return describe(abort_reason_for(Error(Fault::mismatch, context + ": x", ranks), 2, context));
  };
  EXPECT_EQ(text_of({1}), "rank 2 found that rank 1 differs: " + context + ": x");
  EXPECT_EQ(text_of({0, 1}), "rank 2 found that ranks 0-1 differ: " + context + ": x");
  EXPECT_EQ(text_of({}), "rank 2: " + context + ": x");
}

TEST(Blame, IsTheSameOnRanksThatReceiveItIndirectly) {
  const std::string own = "split #4 of group world on rank 1";
  const GroupAborted learned(own, abort_reason_for(waited, 2, context));
  const AbortReason passed_on = abort_reason_for(learned, 1, own);
  EXPECT_EQ(passed_on.rank, 2);
  EXPECT_EQ(passed_on.ranks, (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(passed_on.call, context);
}

TEST(Blame, SurvivesAnotherText) {
  try {
    throw_again(GroupAborted(context, abort_reason_for(waited, 2, context)), "another text");
  } catch (const GroupAborted& error) {
    EXPECT_NE(std::string(error.what()).find("another text"), std::string::npos);
    EXPECT_EQ(error.why().rank, 2);
    EXPECT_EQ(error.ranks(), (std::vector<int>{1, 3, 4}));
  }
}

TEST(Blame, IsNobodysInAText) {
  const Error aborted(Fault::timeout,
                      context + ": the group was aborted: rank 2 waited for ranks 1-3: x");
  const Failure failure = blame_in(aborted, 2, context, 1s);
  EXPECT_TRUE(failure.ranks.empty());
  EXPECT_EQ(failure.rank, -1);
  EXPECT_EQ(failure.detected_by, 2);
}

TEST(Blame, NamesSomeOfManyRanksAndCountsTheRest) {
  std::vector<int> ranks(100);
  std::iota(ranks.begin(), ranks.end(), 0);
  const AbortReason why = abort_reason_for(Error(Fault::timeout, "x", ranks), 100, context);
  EXPECT_EQ(why.ranks.size(), most_blamed);
  EXPECT_EQ(why.more, 36);
  EXPECT_NE(describe(why).find("rank 100 waited for ranks 0-63 and 36 more: "), std::string::npos);
}

TEST(Blame, FallsOnRanksThatAGroupHas) {
  EXPECT_EQ(ranks_within({7, 2, -1, 2, 8, 0, 1'000'000}, 8), (std::vector<int>{0, 2, 7}));
}

}  // namespace
}  // namespace lockstep::comm::abort_reason_test
