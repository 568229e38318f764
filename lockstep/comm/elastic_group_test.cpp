// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/elastic_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/elastic_entries.h"
#include "lockstep/comm/elastic_runtime.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/host_session.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/elastic_options.h"
#include "tests/rigs/logged_store.h"
#include "tests/soon.h"

namespace lockstep::comm::elastic_group_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::elastic_options;
using test::fault_of;
using test::Rank;
using test::Ranks;

ElasticOptions with_patience(std::chrono::milliseconds patience, const Rank& rank) {
  ElasticOptions options = elastic_options(rank);
  options.patience = patience;
  return options;
}

float count_ranks(const ProcessGroup& group) {
  float one = 1;
  group.all_reduce({.data = &one, .count = 1});
  return one;
}

void expect_whole(const ProcessGroup& group, int size) {
  EXPECT_EQ(group.size(), size);
  EXPECT_EQ(count_ranks(group), static_cast<float>(size));
}

ElasticGroup::Change start(ElasticGroup& elastic) {
  auto change = elastic.agree({});
  elastic.form();
  return change;
}

Fault wait_for_loss(const ProcessGroup& group) {
  return fault_of([&] {
    while (true) count_ranks(group);
  });
}

ElasticGroup::Change continue_without(ElasticGroup& elastic, const StepProgress& progress) {
  while (true) {
    auto change = elastic.agree(progress);
    try {
      elastic.form();
      return change;
    } catch (const Error& error) {
      if (!can_continue_after(error)) throw;
    }
  }
}

// --- Deaths --------------------------------------------------------------------------------------

const Ranks one_dies("one of three ranks dies", [](const Rank& rank) {
  ElasticGroup elastic(elastic_options(rank));
  EXPECT_EQ(start(elastic).former_ranks, (std::vector{0, 1, 2}));
  EXPECT_EQ(elastic.generation(), 0);
  expect_whole(elastic.group(), 3);
  if (rank.rank == 0) ::raise(SIGKILL);
  EXPECT_EQ(wait_for_loss(elastic.group()), Fault::peer_lost);
  const auto change = continue_without(elastic, {.completed = 5, .prepared = 5});
  EXPECT_EQ(change.former_ranks, (std::vector{1, 2}));
  EXPECT_EQ(change.completed, 5);
  EXPECT_EQ(elastic.group().rank(), rank.rank - 1);
  expect_whole(elastic.group(), 2);
});

TEST(ElasticGroup, TheOthersContinueWhenRankZeroDies) {
  const auto exits = one_dies.run(3);
  EXPECT_EQ(exits[0].signal, SIGKILL);
  for (int rank : {1, 2})
    EXPECT_EQ(exits[static_cast<std::size_t>(rank)].code, 0) << exits[rank].output;
}

const Ranks several_die("ranks die one after another", [](const Rank& rank) {
  ElasticGroup elastic(elastic_options(rank));
  start(elastic);
  for (int left = 5; left > 1; --left) {
    expect_whole(elastic.group(), left);
    if (rank.rank == left - 1) ::raise(SIGKILL);
    EXPECT_EQ(wait_for_loss(elastic.group()), Fault::peer_lost);
    continue_without(elastic, {});
    EXPECT_EQ(elastic.generation(), 6 - left);
  }
  expect_whole(elastic.group(), 1);
});

TEST(ElasticGroup, ShrinksToOneRank) {
  const auto exits = several_die.run(5);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
}

const Ranks die_meanwhile("ranks die while the others agree", [](const Rank& rank) {
  ElasticGroup elastic(elastic_options(rank));
  start(elastic);
  expect_whole(elastic.group(), 5);
  if (rank.rank == 1 || rank.rank == 2) ::raise(SIGKILL);
  EXPECT_EQ(wait_for_loss(elastic.group()), Fault::peer_lost);
  if (rank.rank == 3) {
    elastic.agree({});
    ::raise(SIGKILL);
  }
  continue_without(elastic, {});
  expect_whole(elastic.group(), 2);
});

TEST(ElasticGroup, SurvivesDeathsDuringTheAgreement) {
  const auto exits = die_meanwhile.run(5);
  for (std::size_t rank : {0, 4}) EXPECT_EQ(exits[rank].code, 0) << exits[rank].output;
}

const Ranks too_few("too few ranks are left", [](const Rank& rank) {
  ElasticOptions options = elastic_options(rank);
  options.least = 2;
  ElasticGroup elastic(options);
  start(elastic);
  if (rank.rank == 1) ::raise(SIGKILL);
  EXPECT_EQ(wait_for_loss(elastic.group()), Fault::peer_lost);
  std::string text;
  EXPECT_EQ(fault_of([&] { elastic.agree({}); }, &text), Fault::peer_lost);
  EXPECT_NE(text.find("1 of 2 ranks"), text.npos) << text;
});

TEST(ElasticGroup, EndsWithTooFewRanks) { EXPECT_EQ(too_few.run(2)[0].code, 0); }

const Ranks left_out("a stopped rank is left out", [](const Rank& rank) {
  ElasticGroup elastic(with_patience(2s, rank));
  start(elastic);
  expect_whole(elastic.group(), 3);
  const auto continued = rank.scratch / "continued";
  if (rank.rank == 1) {
    await_file(continued);
    std::string text;
    EXPECT_EQ(fault_of([&] { elastic.agree({}); }, &text), Fault::aborted);
    EXPECT_NE(text.find("continue without rank 1"), text.npos) << text;
    return;
  }
  EXPECT_EQ(fault_of([&] { elastic.group().barrier({.timeout = 1s}); }), Fault::timeout);
  EXPECT_EQ(continue_without(elastic, {}).former_ranks, (std::vector{0, 2}));
  expect_whole(elastic.group(), 2);
  std::ofstream(continued).put('1');
});

TEST(ElasticGroup, ContinuesWithoutARankThatDoesNotCome) {
  EXPECT_TRUE(all_succeeded(left_out.run(3)));
}

const Ranks one_is_done("a rank dies when another has finished", [](const Rank& rank) {
  const ElasticOptions options = elastic_options(rank);
  ElasticGroup elastic(options);
  start(elastic);
  expect_whole(elastic.group(), 3);
  if (rank.rank == 0) return elastic.finish();
  if (rank.rank == 2) {
    std::this_thread::sleep_for(300ms);
    ::raise(SIGKILL);
  }
  EXPECT_EQ(wait_for_loss(elastic.group()), Fault::peer_lost);
  const auto begun = Clock::now();
  EXPECT_EQ(continue_without(elastic, {.completed = 4, .prepared = 5}).former_ranks,
            std::vector{1});
  EXPECT_LT(Clock::now() - begun, options.patience / 2);
  expect_whole(elastic.group(), 1);
});

TEST(ElasticGroup, DoesNotWaitForARankThatHasFinished) {
  const auto exits = one_is_done.run(3);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].code, 0) << exits[1].output;
}

// --- Processes that join, and ranks that leave ---------------------------------------------------

// Rank 2 comes late, as a second process in its place.
const Ranks joins_later("a process joins", [](const Rank& rank) {
  const bool joins = rank.rank == 2;
  Rank first = rank;
  first.world_size = 2;
  if (joins) {
    first.rank = 1;
    await_file(rank.scratch / "started");
  }
  ElasticGroup elastic(elastic_options(first, joins ? 1 : 0));
  if (joins) {
    const auto change = start(elastic);
    EXPECT_EQ(change.completed, 8);
    EXPECT_TRUE(change.joins);
    EXPECT_EQ(change.former_ranks, (std::vector{0, -1}));
    EXPECT_EQ(elastic.group().rank(), 1);
    expect_whole(elastic.group(), 2);
    return;
  }
  start(elastic);
  expect_whole(elastic.group(), 2);
  if (rank.rank == 1) ::raise(SIGKILL);
  EXPECT_EQ(wait_for_loss(elastic.group()), Fault::peer_lost);
  EXPECT_EQ(continue_without(elastic, {.completed = 7, .prepared = 7}).former_ranks,
            std::vector{0});
  std::ofstream(rank.scratch / "started");
  ElasticGroup::Change change;
  do {  // A process that is slow to answer is left out, and arrives again.
    while (!elastic.has_arrivals()) expect_whole(elastic.group(), 1);
    change = continue_without(elastic, {.completed = 8, .prepared = 8});
  } while (elastic.group().size() == 1);
  EXPECT_EQ(change.former_ranks, (std::vector{0, -1}));
  EXPECT_FALSE(elastic.has_arrivals());
  expect_whole(elastic.group(), 2);
});

TEST(ElasticGroup, AdmitsAProcessInPlaceOfALostOne) {
  const auto exits = joins_later.run(3);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[2].code, 0) << exits[2].output;
}

const Ranks leaves("a rank leaves", [](const Rank& rank) {
  ElasticGroup elastic(elastic_options(rank));
  start(elastic);
  expect_whole(elastic.group(), 3);
  const auto change = elastic.agree({.completed = 3, .prepared = 3, .leaves = rank.rank == 1});
  EXPECT_EQ(change.has_left, rank.rank == 1);
  if (change.has_left) return;
  EXPECT_EQ(change.former_ranks, (std::vector{0, 2}));
  elastic.form();
  expect_whole(elastic.group(), 2);
});

TEST(ElasticGroup, ContinuesWithoutARankThatLeaves) { EXPECT_TRUE(all_succeeded(leaves.run(3))); }

const Ranks too_late("a process comes after the end", [](const Rank& rank) {
  Rank first = rank;
  first.world_size = 1;
  first.rank = 0;
  if (rank.rank == 0) {
    ElasticGroup elastic(elastic_options(first));
    start(elastic);
    std::ofstream(rank.scratch / "started");
    std::this_thread::sleep_for(200ms);
    elastic.finish();
    return;
  }
  await_file(rank.scratch / "started");
  ElasticGroup elastic(elastic_options(first, 1));
  EXPECT_EQ(fault_of([&] { elastic.agree({}); }), Fault::aborted);
});

TEST(ElasticGroup, AProcessDoesNotWaitForAGroupThatHasEnded) {
  EXPECT_TRUE(all_succeeded(too_late.run(2)));
}

// Rank 2 has the state, and comes after `patience`.
const Ranks waits_for_state("a rank without the state waits", [](const Rank& rank) {
  ElasticGroup elastic(with_patience(200ms, rank));
  start(elastic);
  expect_whole(elastic.group(), 3);
  if (rank.rank == 0) ::raise(SIGKILL);
  EXPECT_EQ(wait_for_loss(elastic.group()), Fault::peer_lost);
  if (rank.rank == 2) std::this_thread::sleep_for(1s);
  const auto change = elastic.agree({.completed = 5, .prepared = 5, .has_state = rank.rank == 2});
  EXPECT_EQ(change.former_ranks, (std::vector{2, -1}));
  EXPECT_EQ(change.completed, 5);
  EXPECT_EQ(change.joins, rank.rank == 1);
});

TEST(ElasticGroup, ARankWithoutTheStateDoesNotEndTheTrainingOfOthers) {
  const auto exits = waits_for_state.run(3);
  for (std::size_t rank : {1, 2}) EXPECT_EQ(exits[rank].code, 0) << exits[rank].output;
}

// Rank 1 has no state: its vote is that of a process that joins.
const Ranks leave_first("ranks leave before another one comes", [](const Rank& rank) {
  ElasticGroup elastic(with_patience(200ms, rank));
  start(elastic);
  const auto left_by = [&](int which) { return rank.scratch / ("left." + std::to_string(which)); };
  if (rank.rank < 2) {
    const StepProgress progress{
        .completed = 3, .prepared = 3, .leaves = true, .has_state = rank.rank == 0};
    EXPECT_TRUE(elastic.agree(progress).has_left);
    std::ofstream(left_by(rank.rank)).put('1');
    return;
  }
  for (int which : {0, 1}) await_file(left_by(which));
  const auto change = elastic.agree({.completed = 3, .prepared = 3});
  EXPECT_EQ(change.former_ranks, std::vector{2});
  elastic.form();
  expect_whole(elastic.group(), 1);
});

TEST(ElasticGroup, ARankThatLeavesDoesNotEndTheTrainingOfOthers) {
  EXPECT_TRUE(all_succeeded(leave_first.run(3)));
}

// Only sleep_for() takes time.
class SleptTime final : public ElasticRuntime {
 public:
  Clock::time_point now() override { return now_; }
  void sleep_for(std::chrono::milliseconds time) override { now_ += time; }
  std::function<void()> start(std::function<void()> /*body*/) override {
    return [] {};
  }
  ProcessGroup make_group(const InitOptions& /*options*/,
                          std::chrono::milliseconds /*call_timeout*/) override {
    throw Error(Fault::bug, "");
  }
  void keep_preemption_signals() override {}
  bool preemption_signalled() override { return false; }

 private:
  Clock::time_point now_ = Clock::now();
};

TEST(ElasticGroup, AProcessWaitsToJoinForLongerThanACallOfTheGroup) {
  SleptTime runtime;
  ElasticOptions options;
  options.init.environment = LaunchEnvironment{.launcher = "a test",
                                               .rank = 1,
                                               .world_size = 2,
                                               .local_world_size = 0,
                                               .job_id = {},
                                               .agent_fd = {}};
  options.init.store = std::make_shared<InProcessStore>();
  options.incarnation = 1;
  const Decision first{.generation = 0, .members = {{0, 0}, {1, 0}}, .holders = 2};
  ElasticEntries(options.init.store, 0, runtime).propose({}, first);
  const auto begin = runtime.now();
  ElasticGroup elastic(options, runtime);
  EXPECT_EQ(fault_of([&] { elastic.agree({}); }), Fault::peer_lost);
  EXPECT_GT(runtime.now() - begin, options.init.timeout + options.patience);
}

const Ranks told_to_leave("a process that waits to join gets SIGTERM", [](const Rank& rank) {
  Rank first = rank;
  first.world_size = 1;
  first.rank = 0;
  if (rank.rank == 0) {
    ElasticGroup elastic(elastic_options(first));
    start(elastic);
    std::ofstream(rank.scratch / "started");
    await_file(rank.scratch / "left");
    while (elastic.has_arrivals()) std::this_thread::sleep_for(5ms);
    expect_whole(elastic.group(), 1);
    return;
  }
  await_file(rank.scratch / "started");
  ElasticGroup elastic(elastic_options(first, 1));
  std::thread([] {
    while (!keeps_preemption_signals()) std::this_thread::sleep_for(5ms);
    std::this_thread::sleep_for(100ms);
    ::kill(::getpid(), SIGTERM);
  }).detach();
  EXPECT_TRUE(elastic.agree({}).has_left);
  std::ofstream(rank.scratch / "left");
});

TEST(ElasticGroup, AProcessThatWaitsToJoinLeavesOnSigterm) {
  EXPECT_TRUE(all_succeeded(told_to_leave.run(2)));
}

// --- Entries in the store ------------------------------------------------------------------------

ElasticOptions logged_options(const Rank& rank, int incarnation = 0) {
  ElasticOptions options = elastic_options(rank, incarnation);
  options.init.store =
      std::make_shared<test::LoggedStore>(options.init.store, rank.scratch / "keys");
  return options;
}

// Polls until the number of keys stays below `most`; returns it.
std::size_t keys_left(const ElasticOptions& options, std::size_t most) {
  auto& store = dynamic_cast<test::LoggedStore&>(*options.init.store);
  const Deadline deadline = in(10s);
  std::size_t left = store.keys().size();
  for (; left > most && Clock::now() < deadline; left = store.keys().size())
    std::this_thread::sleep_for(20ms);
  return left;
}

// Rank 1 is another process each time.
const Ranks come_and_go("a rank joins and leaves many times", [](const Rank& rank) {
  constexpr int rounds = 25;
  const ElasticOptions options = logged_options(rank);
  if (rank.rank == 1) {
    for (int round = 0; round < rounds; ++round) {
      ElasticGroup elastic(logged_options(rank, round));
      start(elastic);
      expect_whole(elastic.group(), 2);
      EXPECT_TRUE(elastic.agree({.leaves = true}).has_left);
    }
    return;
  }
  ElasticGroup elastic(options);
  start(elastic);
  std::size_t after_three = 0;
  int missed = 0;  // Invitations that rank 1 has answered too late.
  for (int round = 0; round < rounds; ++round) {
    expect_whole(elastic.group(), 2);
    continue_without(elastic, {});
    expect_whole(elastic.group(), 1);
    if (round == 2) after_three = keys_left(options, 12);
    if (round == rounds - 1) break;
    for (bool again = false; elastic.group().size() == 1; again = true) {
      if (again) ++missed;
      while (!elastic.has_arrivals()) std::this_thread::sleep_for(5ms);
      continue_without(elastic, {});
    }
  }
  EXPECT_EQ(elastic.generation(), 2 * rounds - 1 + missed);
  EXPECT_LE(after_three, 12U);
  EXPECT_LE(keys_left(options, after_three), after_three);
});

TEST(ElasticGroup, TheStoreDoesNotGrowWithTheNumberOfChanges) {
  EXPECT_TRUE(all_succeeded(come_and_go.run(2)));
}

const Ranks die_and_leave_keys("ranks die and leave keys", [](const Rank& rank) {
  const ElasticOptions options = logged_options(rank);
  ElasticGroup elastic(options);
  start(elastic);
  for (int left = 5; left > 1; --left) {
    expect_whole(elastic.group(), left);
    if (rank.rank == 5 - left) ::raise(SIGKILL);
    EXPECT_EQ(wait_for_loss(elastic.group()), Fault::peer_lost);
    continue_without(elastic, {});
  }
  keys_left(options, 16);
  for (const std::string& key : dynamic_cast<test::LoggedStore&>(*options.init.store).keys())
    EXPECT_TRUE(key.find("world~4") != key.npos || key.find("keys/4/") != key.npos ||
                key.ends_with("decision/4") || key.ends_with("newest") ||
                key.ends_with("heartbeat") || key.find("seat/") != key.npos)
        << key;
});

TEST(ElasticGroup, KeysOfRanksThatDiedAreErased) {
  const auto exits = die_and_leave_keys.run(5);
  EXPECT_EQ(exits[4].code, 0) << exits[4].output;
}

// --- Wrong use -----------------------------------------------------------------------------------

TEST(ElasticGroup, WrongOptionsAreMisuse) {
  ElasticOptions options;
  options.init.name = "mine";
  EXPECT_EQ(fault_of([&] { ElasticGroup elastic(options); }), Fault::misuse);
  options = {};
  options.least = 0;
  EXPECT_EQ(fault_of([&] { ElasticGroup elastic(options); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::comm::elastic_group_test
