// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_entries.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/generation_store.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/logged_store.h"

namespace lockstep::comm::elastic_entries_test {
namespace {

using namespace std::chrono_literals;

const Seat a{0, 0};
const Seat b{1, 0};
const Seat again{1, 1};

Decision decision(int generation, std::vector<Seat> members, std::int64_t arrivals = 0) {
  return {.generation = generation,
          .members = std::move(members),
          .holders = 1,
          .completed = 3,
          .arrivals = arrivals};
}

const Decision none = decision(-1, {a, b});

class Entries : public testing::Test {
 protected:
  void write_keys(int generation, const Seat& seat) {
    GenerationStore of_generation(entries, generation, seat, in(20s), [] {});
    for (const char* what : {"here", "accepted"})
      of_generation.set("world~" + std::to_string(generation) + "/" + what + "/" + text_of(seat),
                        "1");
  }

  test::ScratchDirectory scratch;
  std::shared_ptr<test::LoggedStore> store = std::make_shared<test::LoggedStore>(
      std::make_shared<InProcessStore>(), scratch.path() / "keys");
  std::shared_ptr<ElasticEntries> entries = std::make_shared<ElasticEntries>(store, 0);
};

TEST_F(Entries, TheFirstProposalOfAGenerationCounts) {
  EXPECT_FALSE(entries->newest());
  entries->propose(none, decision(0, {a, b}));
  entries->propose(none, decision(0, {b}));
  EXPECT_EQ(entries->find_decision(0, 0ms)->members, (std::vector{a, b}));
  entries->propose(decision(0, {a, b}), decision(1, {a}));
  EXPECT_EQ(entries->newest()->generation, 1);
}

// Otherwise it would continue as a group of its own.
TEST_F(Entries, ALateProposalDoesNotCountEvenIfTheDecisionWasErased) {
  entries->propose(none, decision(0, {a, b}));
  entries->propose(decision(0, {a, b}), decision(1, {a}));
  entries->propose(decision(1, {a}), decision(2, {a, again}, 1));
  entries->erase_before(decision(2, {a, again}, 1), [] { return false; });
  entries->propose(decision(0, {a, b}), decision(1, {b}));
  EXPECT_EQ(entries->newest()->generation, 2);
  EXPECT_EQ(entries->find_decision(1, 0ms)->generation, 2) << "a late rank finds a later decision";
}

TEST_F(Entries, ADecisionIsFoundThatWasNotAnnounced) {
  store->set("lockstep/elastic/0/newest", encode(decision(0, {a, b})));
  EXPECT_FALSE(entries->find_decision(1, 0ms));
  EXPECT_EQ(entries->find_decision(0, 0ms)->generation, 0);
}

TEST_F(Entries, AProcessHasEndedAfterEndOrWithASuccessor) {
  EXPECT_FALSE(entries->has_ended(b));
  entries->enter(b);
  EXPECT_FALSE(entries->has_ended(b));
  EXPECT_TRUE(entries->waits(b));
  entries->end(b);
  EXPECT_TRUE(entries->has_ended(b));
  EXPECT_FALSE(entries->waits(b));
  entries->enter(again);
  entries->enter(b);  // A late request of the killed process.
  entries->end(b);
  EXPECT_TRUE(entries->has_ended(b));
  EXPECT_FALSE(entries->has_ended(again));
  EXPECT_EQ(entries->incarnation(1), 1);
}

TEST_F(Entries, ArrivalsAreNumberedFromTheNewestDecision) {
  EXPECT_EQ(entries->arrive(again), 1);
  EXPECT_EQ(entries->arrive(a), 2);
  EXPECT_EQ(entries->arrival(1), again);
  entries->propose(none, decision(0, {a, b}, 2));
  EXPECT_EQ(entries->arrive(again), 3);
  EXPECT_FALSE(entries->arrival(4));
}

TEST_F(Entries, NothingIsLeftOfEarlierGenerations) {
  Decision last = none;
  std::set<std::string> kept;
  for (int generation = 0; generation < 50; ++generation) {
    const Seat joiner{1, generation};
    Decision next = decision(generation, {a, joiner}, generation);
    entries->enter(joiner);
    if (generation > 0) {
      EXPECT_EQ(entries->arrive(joiner), generation);
      entries->invite(joiner, generation);
    }
    for (const Seat& voter : {a, joiner, Seat{1, generation - 1}})
      if (voter.incarnation >= 0) entries->vote(generation, voter, {});
    entries->propose(last, next);
    for (const Seat& member : next.members) write_keys(generation, member);
    // Now and then, an interruption.
    int left = generation % 3 == 1 ? 4 : 1000;
    entries->erase_before(next, [&] { return --left < 0; });
    if (generation == 2) kept = store->keys();
    last = std::move(next);
  }
  entries->erase_before(last, [] { return false; });
  EXPECT_EQ(store->keys().size(), kept.size());
  for (const std::string& key : store->keys())
    EXPECT_TRUE(key.find("/49/") != key.npos || key.find("~49/") != key.npos ||
                key.ends_with("decision/49") || key.ends_with("newest") ||
                key.find("/seat/") != key.npos)
        << key;
}

TEST_F(Entries, AProcessThatIsNoMemberErasesWhatItHasWritten) {
  write_keys(3, b);
  entries->vote(4, b, {});
  entries->withdraw(4, b);
  EXPECT_TRUE(store->keys().empty());
}

TEST_F(Entries, AGenerationStoreLooksAndHasALimitUntilTheGroupExists) {
  int looks = 0;
  GenerationStore looking(entries, 0, a, in(20s), [&] {
    if (++looks == 3) throw Error(Fault::aborted, "it has looked three times");
  });
  EXPECT_EQ(test::fault_of([&] { looking.wait("nothing", in(20s)); }), Fault::aborted);
  GenerationStore limited(entries, 0, a, in(30ms), [&] { ++looks; });
  EXPECT_EQ(test::fault_of([&] { limited.wait("nothing", in(20s)); }), Fault::timeout);
  EXPECT_EQ(test::fault_of([&] { limited.find("nothing"); }), Fault::timeout);
  limited.release();
  looks = 0;
  EXPECT_FALSE(limited.find("nothing"));
  EXPECT_EQ(looks, 0);
}

}  // namespace
}  // namespace lockstep::comm::elastic_entries_test
