// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/resident_units.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"

namespace lockstep::parallel::resident_units_test {
namespace {

using Arrivals = std::vector<ResidentUnits::Arrival>;

// forward() and backward() of a model with an embedding and a head in unit 0.
const std::vector<std::size_t> pass{0, 1, 2, 3, 0, 3, 2, 1, 0};

std::size_t arrivals_in_a_pass(ResidentUnits& units) {
  units.begin_pass();
  std::size_t count = 0;
  for (const std::size_t unit : pass) count += units.need({unit}).size();
  return count;
}

TEST(ResidentUnits, ComeWhenTheyAreNeededUntilAnOrderIsKnown) {
  ResidentUnits units(4, 2);
  units.begin_pass();
  EXPECT_EQ(units.need({0}), (Arrivals{{0, 0, {}}}));
  EXPECT_EQ(units.need({0}), Arrivals{});
  EXPECT_EQ(units.need({1}), (Arrivals{{1, 1, {}}}));
  EXPECT_EQ(units.need({2}), (Arrivals{{2, 0, 0}}));
  EXPECT_EQ(units.need({1}), Arrivals{});
  EXPECT_EQ(units.need({3}), (Arrivals{{3, 0, 2}}));
  EXPECT_FALSE(units.slot_of(2));
  EXPECT_EQ(units.slot_of(1), 1U);
}

TEST(ResidentUnits, ComeEarlyInTheOrderOfTheLastPass) {
  ResidentUnits units(4, 2);
  arrivals_in_a_pass(units);
  units.forget();
  units.begin_pass();
  EXPECT_EQ(units.need({0}), (Arrivals{{0, 0, {}}, {1, 1, {}}}));
  EXPECT_EQ(units.need({1}), (Arrivals{{2, 0, 0}}));
  EXPECT_EQ(units.need({1}), Arrivals{});
  EXPECT_EQ(units.need({2}), (Arrivals{{3, 1, 1}}));
  // Another order: nothing is loaded early any more.
  EXPECT_EQ(units.need({1}), (Arrivals{{1, 0, 2}}));
  EXPECT_EQ(units.need({0}), (Arrivals{{0, 1, 3}}));
}

TEST(ResidentUnits, OneSlotIsEnoughAndNothingComesEarly) {
  ResidentUnits units(4, 1);
  const std::size_t first = arrivals_in_a_pass(units);
  EXPECT_EQ(first, pass.size());
  EXPECT_EQ(arrivals_in_a_pass(units), pass.size() - 1) << "unit 0 is still there";
}

TEST(ResidentUnits, WithASlotForEachUnitComeOnce) {
  ResidentUnits units(4, 4);
  EXPECT_EQ(arrivals_in_a_pass(units), 4U);
  EXPECT_EQ(arrivals_in_a_pass(units), 0U);
  EXPECT_EQ(units.forget().size(), 4U);
  EXPECT_EQ(arrivals_in_a_pass(units), 4U);
}

TEST(ResidentUnits, ThatOneOperatorNeedsAreThereTogether) {
  ResidentUnits units(4, 2);
  units.begin_pass();
  units.need({0});
  units.need({1, 2});
  EXPECT_TRUE(units.slot_of(1) && units.slot_of(2));
  std::string text;
  EXPECT_EQ(test::fault_of([&] { units.need({0, 1, 2}); }, &text), Fault::misuse);
  EXPECT_NE(text.find("resident_units"), text.npos) << text;
}

TEST(ResidentUnits, AreConsistentInAnyOrder) {
  std::mt19937 random(3);
  for (std::size_t slots = 1; slots <= 5; ++slots) {
    ResidentUnits units(5, slots);
    std::vector<int> holder(slots, -1);
    for (int step = 0; step < 2000; ++step) {
      if (random() % 20 == 0) units.begin_pass();
      if (random() % 50 == 0) {
        for (const std::size_t unit : units.forget()) std::erase(holder, static_cast<int>(unit));
        holder.assign(slots, -1);
      }
      const std::size_t needed = random() % 5;
      for (const auto& [unit, slot, leaves] : units.need({needed})) {
        ASSERT_LT(slot, slots);
        ASSERT_EQ(holder[slot], leaves ? static_cast<int>(*leaves) : -1);
        holder[slot] = static_cast<int>(unit);
      }
      ASSERT_TRUE(units.slot_of(needed));
      for (std::size_t unit = 0; unit < 5; ++unit) {
        const auto slot = units.slot_of(unit);
        ASSERT_TRUE(!slot || holder[*slot] == static_cast<int>(unit));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::parallel::resident_units_test
