// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/choose_backend.h"

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/comm/hosts/rendezvous.h"
#include "lockstep/job/store/store.h"
#include "tests/fault_of.h"

namespace lockstep::comm::choose_backend_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using Engines = std::map<std::string, std::string>;

std::vector<RankInfo> ranks_on(const std::string& places, const std::string& backend,
                               const Engines& engines) {
  std::vector<RankInfo> all;
  for (const char place : places)
    all.push_back({.rank = static_cast<int>(all.size()),
                   .pid = 100 + static_cast<int>(all.size()),
                   .host = std::string("host-") + place,
                   .place = std::string(1, place),
                   .address = "127.0.0.1:1",
                   .backend = backend,
                   .engines = engines});
  return all;
}

const Engines both{{"gloo", ""}, {"oneccl", ""}};

TEST(ChooseBackend, TakesSharedMemoryOnOneHost) {
  const BackendChoice choice = choose_backend(ranks_on("aaa", "", both));
  EXPECT_EQ(choice.name, "shm");
  EXPECT_EQ(choice.engine, "");
  EXPECT_EQ(choice.why, "3 ranks on 1 host");
}

TEST(ChooseBackend, PutsAnEngineBetweenHosts) {
  const BackendChoice choice = choose_backend(ranks_on("aabb", "auto", both));
  EXPECT_EQ(choice.name, "shm+gloo");
  EXPECT_TRUE(choice.shares_memory);
  EXPECT_EQ(choice.places, (std::vector<int>{0, 0, 2, 2}));
}

TEST(ChooseBackend, NeedsNoSharedMemoryWithOneRankAHost) {
  const BackendChoice choice = choose_backend(ranks_on("ab", "", both));
  EXPECT_EQ(choice.name, "gloo");
  EXPECT_FALSE(choice.shares_memory);
}

TEST(ChooseBackend, PrefersMpiUnderMpi) {
  EXPECT_EQ(choose_backend(ranks_on("aabb", "", {{"mpi", ""}, {"gloo", ""}})).name, "shm+mpi");
}

TEST(ChooseBackend, SkipsAnEngineThatARankLacksAndReportsWhy) {
  auto all = ranks_on("aabb", "", both);
  all[2].engines["gloo"] = "libgloo.so is missing";
  const BackendChoice choice = choose_backend(all);
  EXPECT_EQ(choice.name, "shm+oneccl");
  EXPECT_NE(choice.why.find("gloo: rank 2 on host-b: libgloo.so is missing"), std::string::npos)
      << choice.why;
}

TEST(ChooseBackend, TakesTorchsGlooWhereNoEngineIsInstalled) {
  const Engines none{{"gloo", "absent"}, {"oneccl", "absent"}, {"torch", ""}};
  EXPECT_EQ(choose_backend(ranks_on("aabb", "", none)).name, "shm+torch");
  Engines installed = none;
  installed["oneccl"] = "";
  EXPECT_EQ(choose_backend(ranks_on("aabb", "", installed)).name, "shm+oneccl");
}

TEST(ChooseBackend, RefusesWhatNotAllRanksHave) {
  auto all = ranks_on("aab", "shm+gloo", {{"gloo", ""}});
  all[1].engines["gloo"] = "no such plugin";
  std::string text;
  EXPECT_EQ(fault_of([&] { choose_backend(all); }, &text), Fault::unsupported);
  EXPECT_NE(text.find("rank 1 on host-a: no such plugin"), std::string::npos) << text;
}

TEST(ChooseBackend, ObeysWhatIsAskedFor) {
  EXPECT_EQ(choose_backend(ranks_on("aa", "gloo", {{"gloo", ""}})).name, "gloo");
  EXPECT_FALSE(choose_backend(ranks_on("aabb", "gloo", {{"gloo", ""}})).shares_memory);
  EXPECT_TRUE(choose_backend(ranks_on("ab", "shm+gloo", {{"gloo", ""}})).shares_memory);
  EXPECT_EQ(choose_backend(ranks_on("aa", "shm", {})).name, "shm");
}

TEST(ChooseBackend, RefusesSharedMemoryAloneForSeveralHosts) {
  std::string text;
  EXPECT_EQ(fault_of([] { choose_backend(ranks_on("ab", "shm", {})); }, &text), Fault::unsupported);
  EXPECT_NE(text.find("2 ranks on 2 hosts"), std::string::npos) << text;
}

TEST(ChooseBackend, NamesRanksThatAskForDifferentOnes) {
  auto all = ranks_on("ab", "gloo", {{"gloo", ""}});
  all[1].backend = "mpi";
  std::string text;
  EXPECT_EQ(fault_of([&] { choose_backend(all); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("rank 0 asks for backend 'gloo', rank 1 for 'mpi'"), std::string::npos)
      << text;
}

TEST(ChooseBackend, NamesARankWhoseSettingsContradictItsLauncher) {
  auto all = ranks_on("ab", "auto", both);
  all[1].contradiction = "expects 3 ranks, the launcher has started 2 (WORLD_SIZE)";
  std::string text;
  EXPECT_EQ(fault_of([&] { choose_backend(all); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("rank 1 expects 3 ranks, the launcher has started 2"), text.npos) << text;
}

TEST(ChooseBackend, ListsTheBackendsWhenAskedForNone) {
  std::string text;
  EXPECT_EQ(fault_of([] { engines_for("nccl", false); }, &text), Fault::misuse);
  EXPECT_NE(text.find("there is no backend 'nccl': use auto, shm"), std::string::npos) << text;
}

// exchange_rank_info() of a rank with a long warn_after.
RankTable exchanged(Store& store, const RankInfo& mine, int world_size, Deadline deadline) {
  LateRanks late(mine.rank, 30s);
  return exchange_rank_info(store, "job", mine, world_size, deadline, late);
}

TEST(RankTable, GivesEveryRankAllCardsAndOneSecret) {
  InProcessStore store;
  std::vector<RankTable> tables(3);
  std::vector<std::jthread> ranks;
  const auto all = ranks_on("abb", "auto", both);
  for (std::size_t rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] { tables[rank] = exchanged(store, all[rank], 3, in(30s)); });
  ranks.clear();
  for (const RankTable& table : tables) {
    EXPECT_EQ(table.secret, tables[0].secret);
    EXPECT_GE(table.secret.size(), 22U);
    ASSERT_EQ(table.ranks.size(), 3U);
    EXPECT_EQ(table.ranks[2].pid, 102);
    EXPECT_EQ(table.ranks[2].place, "b");
    EXPECT_EQ(table.ranks[2].engines, both);
  }
}

TEST(RankTable, NoTextOfACardCanMoveTheCursor) {
  InProcessStore store;
  auto mine = ranks_on("a", "auto", {{"gloo", "no\n\x1b[2J library"}});
  mine[0].host = mine[0].backend = "a\x1b\xC2\x9B";
  const RankTable table = exchanged(store, mine[0], 1, in(30s));
  EXPECT_EQ(table.ranks[0].host, "a \xC2\xBF");
  EXPECT_EQ(table.ranks[0].backend, "a \xC2\xBF");
  EXPECT_EQ(table.ranks[0].engines.at("gloo"), "no  [2J library");
}

TEST(RankTable, RefusesASecondProcessOfARank) {
  InProcessStore store;
  const auto all = ranks_on("ab", "", {});
  std::jthread first([&] { exchanged(store, all[0], 2, in(30s)); });
  while (!store.find("jobrank/0")) std::this_thread::sleep_for(1ms);
  std::string text;
  RankInfo twin = all[0];
  twin.pid = 4711;
  EXPECT_EQ(fault_of([&] { exchanged(store, twin, 2, in(30s)); }, &text), Fault::misuse);
  EXPECT_NE(text.find("rank 0 already exists, as process 100 on "), text.npos) << text;
  exchanged(store, all[1], 2, in(30s));
}

TEST(RankTable, NamesAllWhoAreMissing) {
  InProcessStore store;
  const auto all = ranks_on("abcd", "", {});
  std::vector<std::string> texts(2);
  std::vector<std::jthread> ranks;
  for (const std::size_t rank : {0, 1})
    ranks.emplace_back([&, rank] {
      while (rank == 0 && !store.find("jobrank/1")) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(fault_of([&] { exchanged(store, all[rank], 4, in(200ms)); }, &texts[rank]),
                Fault::timeout);
    });
  ranks.clear();
  for (const std::string& text : texts)
    EXPECT_NE(text.find("of 4 ranks, these did not come: 2, 3"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::comm::choose_backend_test
