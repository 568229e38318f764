// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/rendezvous.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/job/store/store.h"
#include "tests/fault_of.h"

namespace lockstep::comm::rendezvous_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;

// agree_on_start() of a rank with a long warn_after.
std::string start_of(Store& store, int rank, int world_size, Deadline deadline) {
  LateRanks late(rank, 30s);
  return agree_on_start(store, "job/", rank, world_size, deadline, late);
}

// The ranks come one by one in this order.
std::set<std::string> starts_of(Store& store, const std::vector<int>& order) {
  std::vector<std::string> starts(order.size());
  {
    std::vector<std::jthread> ranks;
    for (const int rank : order) {
      ranks.emplace_back([&, rank] {
        starts[static_cast<std::size_t>(rank)] =
            start_of(store, rank, static_cast<int>(order.size()), in(30s));
      });
      std::this_thread::sleep_for(20ms);
    }
  }
  return {starts.begin(), starts.end()};
}

TEST(AgreeOnStart, GivesAllRanksANameThatNoEarlierStartHad) {
  InProcessStore store;
  std::set<std::string> all;
  // Includes different numbers of ranks, as when hosts come and go.
  const std::vector<std::vector<int>> orders{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 0}, {0, 3, 2, 1}};
  for (const std::vector<int>& order : orders) {
    const std::set<std::string> names = starts_of(store, order);
    ASSERT_EQ(names.size(), 1U);
    EXPECT_TRUE(all.insert(*names.begin()).second);
  }
}

TEST(AgreeOnStart, NamesAllWhoAreMissingToAllWhoCame) {
  for (const bool is_first_start : {true, false}) {
    InProcessStore store;
    if (!is_first_start) starts_of(store, {0, 1, 2, 3});
    std::vector<std::string> texts(2);
    std::vector<std::jthread> ranks;
    const auto earlier = store.find("job/here/1");
    for (const int rank : {0, 1})
      ranks.emplace_back([&, rank] {
        while (rank == 0 && store.find("job/here/1") == earlier) std::this_thread::sleep_for(1ms);
        EXPECT_EQ(fault_of([&] { start_of(store, rank, 4, in(300ms)); },
                           &texts[static_cast<std::size_t>(rank)]),
                  Fault::timeout);
      });
    ranks.clear();
    for (const std::string& text : texts)
      EXPECT_TRUE(text.find("of 4 ranks, these did not come within") != text.npos &&
                  text.find(" s: 2, 3") != text.npos)
          << text;
  }
}

TEST(AgreeOnStart, WithoutRank0IsATimeout) {
  InProcessStore store;
  starts_of(store, {0, 1});
  EXPECT_EQ(fault_of([&] { start_of(store, 1, 2, in(100ms)); }), Fault::timeout);
}

struct Comer {
  int rank = 0;
  int size = 0;
  Deadline deadline = in(30s);
  std::string text = {};
  Fault fault = Fault::bug;
  std::vector<int> ranks = {};
};

void come(Store& store, std::vector<Comer>& all) {
  std::vector<std::jthread> threads;
  for (Comer& one : all)
    threads.emplace_back([&] {
      try {
        start_of(store, one.rank, one.size, one.deadline);
      } catch (const Error& error) {
        one.text = error.what();
        one.fault = error.fault();
        one.ranks = error.ranks();
      }
    });
}

TEST(AgreeOnStart, AllWhoCameKnowTheMissingByTheirNumbers) {
  InProcessStore store;
  std::vector<Comer> all{{0, 4, in(1s)}, {2, 4, in(1s)}, {3, 4, in(30s)}};
  come(store, all);
  for (const Comer& one : all) {
    EXPECT_EQ(one.fault, Fault::timeout) << one.text;
    EXPECT_EQ(one.ranks, std::vector<int>{1}) << one.text;
  }
}

TEST(AgreeOnStart, OneWhoseTimeIsUpBeforeThatOfRank0NamesWhoIsMissing) {
  InProcessStore store;
  std::vector<Comer> all{{0, 3, in(4s)}, {2, 3, in(100ms)}};
  come(store, all);
  for (const Comer& one : all) EXPECT_EQ(one.ranks, std::vector<int>{1}) << one.text;
}

// Tests override the calls that they observe.
class StoreOfAnother : public Store {
 public:
  explicit StoreOfAnother(Store& store) : store_(store) {}
  void set(std::string_view key, std::string_view value) override { store_.set(key, value); }
  std::optional<std::string> find(std::string_view key) override { return store_.find(key); }
  std::string wait(std::string_view key, Deadline deadline) override {
    return store_.wait(key, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return store_.add(key, amount);
  }
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override {
    return store_.compare_set(key, expected, desired);
  }
  bool erase(std::string_view key) override { return store_.erase(key); }

 private:
  Store& store_;
};

// The store may end with rank 0.
TEST(AgreeOnStart, Rank0ThrowsOnlyWhenTheOthersKnowWhoIsMissing) {
  class SlowReader final : public StoreOfAnother {
   public:
    using StoreOfAnother::StoreOfAnother;
    std::optional<std::string> find(std::string_view key) override {
      std::this_thread::sleep_for(20ms);
      EXPECT_FALSE(rank_0_has_ended);
      return StoreOfAnother::find(key);
    }

    std::atomic<bool> rank_0_has_ended{false};
  };
  InProcessStore store;
  SlowReader slow(store);
  {
    std::jthread rank_1(
        [&] { EXPECT_EQ(fault_of([&] { start_of(slow, 1, 3, in(30s)); }), Fault::timeout); });
    while (!store.find("job/here/1")) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(fault_of([&] { start_of(store, 0, 3, in(100ms)); }), Fault::timeout);
    slow.rank_0_has_ended = true;
  }
}

TEST(AgreeOnStart, DifferentNumbersOfRanksAreAMismatchOnBothSides) {
  for (const bool rank_0_has_more : {false, true}) {
    InProcessStore store;
    starts_of(store, {0, 1, 2});
    std::vector<Comer> all{{0, rank_0_has_more ? 3 : 2, in(1s)},
                           {1, rank_0_has_more ? 2 : 3, in(1s)}};
    come(store, all);
    for (const Comer& one : all) {
      EXPECT_EQ(one.fault, Fault::mismatch) << one.text;
      EXPECT_NE(one.text.find(rank_0_has_more ? "rank 1 expects 2 ranks, rank 0 expects 3"
                                              : "rank 1 expects 3 ranks, rank 0 expects 2"),
                std::string::npos)
          << one.text;
    }
  }
}

TEST(AgreeOnStart, AMismatchedWorldSizeIsAlsoReportedByRanksThatAgree) {
  InProcessStore store;
  std::vector<Comer> all{{0, 4, in(1s)}, {1, 4}, {2, 3}};  // Rank 3 does not come.
  come(store, all);
  for (const Comer& one : all) {
    EXPECT_EQ(one.fault, Fault::mismatch) << one.text;
    EXPECT_EQ(one.ranks, std::vector<int>{2}) << one.text;
    EXPECT_NE(one.text.find("rank 2 expects 3 ranks, rank 0 expects 4"), std::string::npos)
        << one.text;
  }
}

class AnsweringStore final : public StoreOfAnother {
 public:
  AnsweringStore(Store& store,
                 std::function<void(std::string_view key, std::string_view value)> answer)
      : StoreOfAnother(store), answer_(std::move(answer)) {}
  void set(std::string_view key, std::string_view value) override {
    StoreOfAnother::set(key, value);
    answer_(key, value);
  }

 private:
  std::function<void(std::string_view key, std::string_view value)> answer_;
};

TEST(AgreeOnStart, NumbersThatNoRankHasAreNotBlamed) {
  InProcessStore plain;
  AnsweringStore store(plain, [&](std::string_view key, std::string_view value) {
    if (key != "job/here/1") return;
    plain.set("job/proposed", R"({"start":"s","here":["x",")" + std::string(value) +
                                  R"("],"why_not":"why","fault":"timeout",)"
                                  R"("ranks":[7,0,-3,2000000000,0]})");
  });
  std::vector<Comer> all{{1, 2}};
  come(store, all);
  EXPECT_EQ(all[0].fault, Fault::timeout) << all[0].text;
  EXPECT_EQ(all[0].ranks, std::vector<int>{0});
}

TEST(ExchangeRankInfo, NumbersThatNoRankHasAreNotMissing) {
  InProcessStore store;
  store.set("job/all", R"({"missing":[0,5,-1,2000000000]})");
  LateRanks late(1, 30s);
  try {
    RankInfo mine;
    mine.rank = 1;
    exchange_rank_info(store, "job/", mine, 2, in(5s), late);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::timeout) << error.what();
    EXPECT_EQ(error.ranks(), std::vector<int>{0}) << error.what();
    EXPECT_NE(std::string(error.what()).find("these did not come: 0 ["), std::string::npos)
        << error.what();
  }
}

TEST(AgreeOnStart, TwoProcessesOfOneNumberAreAMismatchForBoth) {
  InProcessStore store;
  std::vector<Comer> all{{0, 3, in(1s)}, {1, 3}, {1, 3}};
  come(store, all);
  EXPECT_EQ(all[0].ranks, std::vector<int>{2}) << all[0].text;
  for (const std::size_t one : {1, 2}) {
    EXPECT_EQ(all[one].fault, Fault::mismatch);
    EXPECT_NE(all[one].text.find("two processes are rank 1"), std::string::npos) << all[one].text;
  }
}

}  // namespace
}  // namespace lockstep::comm::rendezvous_test
