// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/core/signature.h"

#include <gtest/gtest.h>

namespace lockstep::comm::signature_test {
namespace {

const Signature barrier{.operation = Operation::barrier};
const Signature sum{.count = 8, .operation = Operation::all_reduce};
const Signature longer{.count = 9, .operation = Operation::all_reduce};

TEST(Disagreement, TheFewRanksThatCallSomethingElseAreNamedWithTheirCalls) {
  const auto found = disagreement_of({sum, sum, barrier, sum, longer, sum, barrier});
  EXPECT_EQ(found.differing, (std::vector<int>{2, 4, 6}));
  EXPECT_EQ(found.text,
            "rank 0 called all_reduce(sum) of 8 float32, rank 2 called barrier, rank 4 called "
            "all_reduce(sum) of 9 float32; ranks 1,3,5 called what rank 0 did; rank 6 called what "
            "rank 2 did");
}

TEST(Disagreement, RankZeroAloneMayBeTheOneThatDiffers) {
  EXPECT_EQ(disagreement_of({barrier, sum, sum}).differing, std::vector<int>{0});
}

TEST(Disagreement, WhereNoCallIsThatOfMostRanksAllDiffer) {
  EXPECT_EQ(disagreement_of({barrier, sum}).differing, (std::vector<int>{0, 1}));
  EXPECT_EQ(disagreement_of({barrier, sum, longer}).differing, (std::vector<int>{0, 1, 2}));
}

TEST(Disagreement, ShowsNoHashOfALabelWhoseTextIsUnknown) {
  Signature labelled = barrier;
  labelled.label = 0x1234;
  EXPECT_EQ(disagreement_of({barrier, labelled}).text,
            "rank 0 called barrier, rank 1 called barrier, with a label");
  EXPECT_EQ(disagreement_of({sum, labelled}, {"", "after"}).text,
            "rank 0 called all_reduce(sum) of 8 float32, rank 1 called barrier, label 'after'");
}

}  // namespace
}  // namespace lockstep::comm::signature_test
