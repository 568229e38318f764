// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/ranges.h"

#include <gtest/gtest.h>

namespace lockstep::ranges_test {
namespace {

TEST(Ranges, NeighboursAreWrittenAsOne) {
  EXPECT_EQ(as_ranges({}), "");
  EXPECT_EQ(as_ranges({5}), "5");
  EXPECT_EQ(as_ranges({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(as_ranges({2147483647, 0}), "2147483647,0");
}

}  // namespace
}  // namespace lockstep::ranges_test
