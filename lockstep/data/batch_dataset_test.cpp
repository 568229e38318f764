// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/batch_dataset.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"

namespace lockstep::data::batch_dataset_test {
namespace {

double unit_of(std::uint64_t high, std::uint64_t low) {
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

// philox4x32-10 in kat_vectors of Random123, by the authors of Philox.
TEST(SampleRandom, DrawsFromPhiloxAsItsAuthorsPublishedIt) {
  struct Known {
    std::uint64_t seed, subsequence, offset;
    std::array<std::uint32_t, 4> words;
  };
  const std::uint64_t ones = ~std::uint64_t{0};
  const Known known[]{{0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                      {ones, ones, ones, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                      {0x299f31d0a4093822,
                       0x0370734413198a2e,
                       0x85a308d3243f6a88,
                       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Known& vector : known) {
    at::Philox4_32 engine(vector.seed, vector.subsequence, vector.offset);
    for (const std::uint32_t word : vector.words) EXPECT_EQ(engine(), word);
  }
  SampleRandom random(0, 0, 0);
  EXPECT_EQ(random.uniform(), unit_of(0x6627e8d5, 0xe169c58d));
  EXPECT_EQ(random.uniform(), unit_of(0xbc57ac4c, 0x9b00dbd8));
}

TEST(SampleRandom, CountsInTheEpochsPartOfTheSamplesSequence) {
  at::Philox4_32 engine(7, 1000, std::uint64_t{3} << 32);
  SampleRandom random(7, 3, 1000);
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t high = engine();
    EXPECT_EQ(random.uniform(), unit_of(high, engine()));
  }
}

TEST(SampleRandom, DependsOnSeedEpochAndSample) {
  const double drawn = SampleRandom(1, 2, 3).uniform();
  EXPECT_EQ(SampleRandom(1, 2, 3).uniform(), drawn);
  EXPECT_NE(SampleRandom(2, 2, 3).uniform(), drawn);
  EXPECT_NE(SampleRandom(1, 3, 3).uniform(), drawn);
  EXPECT_NE(SampleRandom(1, 2, 4).uniform(), drawn);
}

TEST(SampleRandom, IsUniformInTheGivenInterval) {
  SampleRandom random(5, 0, 0);
  double sum = 0;
  for (int i = 0; i < 10'000; ++i) {
    const double value = random.uniform(-2, 4);
    ASSERT_GE(value, -2);
    ASSERT_LT(value, 4);
    sum += value;
  }
  EXPECT_NEAR(sum / 10'000, 1, 0.1);  // Six standard deviations.
}

TEST(SampleRandom, GivesEachOfAFewNumbersEquallyOften) {
  SampleRandom random(5, 0, 1);
  std::array<int, 3> counts{};
  for (int i = 0; i < 30'000; ++i) ++counts.at(static_cast<std::size_t>(random.below(3)));
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(random.below(1), 0);
}

// Three quarters of 64 random bits modulo 3 * 2^61 would be below 2^62, instead of two thirds.
TEST(SampleRandom, IsUnbiasedForARangeThatIsNotAPowerOfTwo) {
  SampleRandom random(5, 0, 2);
  int low = 0;
  for (int i = 0; i < 30'000; ++i)
    low += random.below(std::int64_t{3} << 61) < std::int64_t{1} << 62 ? 1 : 0;
  EXPECT_NEAR(low, 20'000, 500);
}

TEST(SampleRandom, RefusesARangeWithoutNumbers) {
  SampleRandom random(5, 0, 0);
  EXPECT_EQ(test::fault_of([&] { random.below(0); }), Fault::misuse);
  EXPECT_EQ(test::fault_of([&] { random.below(-1); }), Fault::misuse);
}

}  // namespace
}  // namespace lockstep::data::batch_dataset_test
