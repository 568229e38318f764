// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/detail/passed_value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

namespace lockstep::pipeline::passed_value_test {
namespace {

template <class To, class From>
To passed(From value) {
  return unpack<To>(pack(value));
}

template <class T>
void expect_all_pass(const std::vector<T>& numbers) {
  for (const T number : numbers) EXPECT_EQ(passed<T>(number), number);
  EXPECT_EQ(passed<std::vector<T>>(numbers), numbers);
}

TEST(PassedValue, NumbersAreTheSameAfterwards) {
  expect_all_pass<std::int64_t>({0, -1, (std::int64_t{1} << 53) + 1,
                                 std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::max()});
  expect_all_pass<std::uint64_t>({0, std::numeric_limits<std::uint64_t>::max()});
  expect_all_pass<double>({0.1, -2.5e300, 3, 0x1p70, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::denorm_min()});
  expect_all_pass<int>({-7, 7});
  EXPECT_TRUE(std::isnan(passed<double>(std::nan(""))));
  EXPECT_EQ((passed<std::tuple<bool, char>>(std::tuple(true, 'x'))), std::tuple(true, 'x'));
}

TEST(PassedValue, NumbersOfOtherTypesAreConverted) {
  EXPECT_EQ(passed<double>(3), 3.0);
  EXPECT_EQ(passed<int>(3.0), 3);
  EXPECT_EQ(passed<int>(2.5), 2);
  EXPECT_EQ(passed<float>(-4L), -4.0F);
}

}  // namespace
}  // namespace lockstep::pipeline::passed_value_test
