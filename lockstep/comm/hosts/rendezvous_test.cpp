// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/hosts/rendezvous.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "lockstep/job/store/store.h"
#include "tests/fault_of.h"

namespace lockstep::comm::rendezvous_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;

// agree_on_start() of a patient rank.
std::string start_of(Store& store, int rank, int world_size, Deadline deadline) {
  LateRanks late(rank, 30s);
  return agree_on_start(store, "job/", rank, world_size, deadline, late);
}

// Returns the start that each rank gets; the ranks come one after the other in this order.
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
    for (const int rank : {0, 1})
      ranks.emplace_back([&, rank] {
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

}  // namespace
}  // namespace lockstep::comm::rendezvous_test
