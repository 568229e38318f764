// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_decision.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"

namespace lockstep::comm::elastic_decision_test {
namespace {

using test::fault_of;

const Seat a{0, 0};
const Seat b{1, 0};
const Seat c{2, 0};
const Seat joiner{1, 1};

Vote vote(std::int64_t completed, std::int64_t prepared, bool leaves = false) {
  return {StepProgress{.completed = completed, .prepared = prepared, .leaves = leaves}};
}

Decision of(std::vector<Seat> members) { return {.generation = 4, .members = std::move(members)}; }

TEST(Decision, KeepsTheOrderOfVotersAndPutsThoseWhoJoinLast) {
  const Decision decision =
      decide(of({c, a, b}), {{a, vote(7, 7)}, {c, vote(7, 7)}, {joiner, {}}}, 1);
  EXPECT_EQ(decision.members, (std::vector{c, a, joiner}));
  EXPECT_EQ(decision.holders, 2);
  EXPECT_EQ(decision.completed, 7);
  EXPECT_EQ(decision.arrivals, 1);
  EXPECT_EQ(decision.generation, 5);
}

// It was admitted, and the group changes again before it has received the state.
TEST(Decision, AMemberWithoutTheStateJoinsAgain) {
  const Decision decision =
      decide(of({a, joiner, c}), {{a, vote(7, 7)}, {c, vote(7, 7)}, {joiner, {}}}, 1);
  EXPECT_EQ(decision.members, (std::vector{a, c, joiner}));
  EXPECT_EQ(decision.holders, 2);
}

TEST(Decision, AStepIsCompletedIfARankHasCompletedIt) {
  EXPECT_EQ(decide(of({a, b}), {{a, vote(8, 8)}, {b, vote(7, 8)}}, 0).completed, 8);
}

TEST(Decision, AStepIsCompletedIfAllHavePreparedIt) {
  EXPECT_EQ(decide(of({a, b}), {{a, vote(7, 8)}, {b, vote(7, 8)}}, 0).completed, 8);
}

TEST(Decision, AStepIsRepeatedIfARankHasNotPreparedIt) {
  EXPECT_EQ(decide(of({a, b, c}), {{a, vote(7, 8)}, {b, vote(7, 7)}}, 0).completed, 7);
}

TEST(Decision, ARankThatLeavesCountsButIsNoMember) {
  const Decision decision = decide(of({a, b}), {{a, vote(7, 8, true)}, {b, vote(7, 7)}}, 0);
  EXPECT_EQ(decision.members, std::vector{b});
  EXPECT_EQ(decision.completed, 7);
}

TEST(Decision, WithoutStateNobodyContinues) {
  EXPECT_TRUE(decide(of({a}), {{joiner, {}}}, 1).members.empty());
  EXPECT_TRUE(decide(of({a}), {{a, vote(3, 3, true)}, {joiner, {}}}, 1).members.empty());
}

TEST(Decision, IsReadAsItWasWritten) {
  const Decision decision{.generation = 6,
                          .members = {b, joiner},
                          .holders = 1,
                          .completed = 1'000'000'007,
                          .arrivals = 3};
  const Decision read = decode_decision(encode(decision));
  EXPECT_EQ(read.generation, 6);
  EXPECT_EQ(read.members, decision.members);
  EXPECT_EQ(read.holders, decision.holders);
  EXPECT_EQ(read.completed, decision.completed);
  EXPECT_EQ(read.arrivals, decision.arrivals);
  EXPECT_FALSE(decode_vote(encode(Vote{})).progress);
  const Vote again = decode_vote(encode(vote(4, 5, true)));
  EXPECT_EQ(again.progress->completed, 4);
  EXPECT_EQ(again.progress->prepared, 5);
  EXPECT_TRUE(again.progress->leaves);
}

TEST(Decision, DamagedTextIsAnError) {
  for (const char* text : {"", "{", "{\"members\":1}", "[]"})
    EXPECT_EQ(fault_of([&] { decode_decision(text); }), Fault::corrupt) << text;
  EXPECT_EQ(fault_of([] { decode_vote("{\"completed\":\"x\"}"); }), Fault::corrupt);
}

TEST(PauseBetweenLooks, GrowsWithTheGroupUpToASecond) {
  using std::chrono::milliseconds;
  EXPECT_EQ(pause_between_looks(2), milliseconds(20));
  EXPECT_EQ(pause_between_looks(100), milliseconds(20));
  EXPECT_EQ(pause_between_looks(1000), milliseconds(200));
  EXPECT_EQ(pause_between_looks(100'000), milliseconds(1000));
  EXPECT_EQ(pause_before_invitation(2), milliseconds(20));
  EXPECT_LT(pause_before_invitation(100'000), time_to_answer / 2);
}

}  // namespace
}  // namespace lockstep::comm::elastic_decision_test
