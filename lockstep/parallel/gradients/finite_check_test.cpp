// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/finite_check.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

namespace lockstep::parallel::finite_check_test {
namespace {

torch::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return torch::arange(count, torch::kDouble).sin().view(sizes).to(dtype);
}

TEST(ScaledCopy, EqualsAMultiplicationForEveryTypeAndCount) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16})
    for (const std::int64_t count : {0, 1, 15, 16, 17, 1000})
      for (const double scale : {1.0 / 3, 0.5, 1.0}) {
        const auto from = numbers({count}, dtype);
        auto to = torch::empty_like(from);
        EXPECT_TRUE(scaled_copy(to, from, scale));
        EXPECT_TRUE(torch::equal(to, from * scale)) << dtype << ' ' << count << ' ' << scale;
        EXPECT_TRUE(scaled_copy(from, from, scale));
        EXPECT_TRUE(torch::equal(to, from));
      }
}

TEST(ScaledCopy, StridesMayBeAnything) {
  const auto images = numbers({2, 3, 5, 4}, torch::kFloat);
  const auto last = images.to(at::MemoryFormat::ChannelsLast);
  for (const auto& from : {images, last, images.transpose(0, 3).contiguous().transpose(0, 3)})
    for (const auto& like : {images, last}) {
      auto to = torch::empty_like(like);
      EXPECT_TRUE(scaled_copy(to, from, 0.5));
      EXPECT_TRUE(torch::equal(to, images * 0.5));
    }
  const auto wide = numbers({1}, torch::kFloat).expand({7});
  auto to = torch::empty({7});
  EXPECT_TRUE(scaled_copy(to, wide, 2));
  EXPECT_TRUE(torch::equal(to, wide * 2));
}

TEST(ScaledCopy, FindsOneElementThatIsNotFiniteWhereverItIs) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16})
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")})
      for (std::int64_t place = 0; place < 37; ++place) {
        const auto from = numbers({37}, dtype);
        EXPECT_TRUE(all_finite(from));
        from[place] = bad;
        EXPECT_FALSE(all_finite(from));
        EXPECT_FALSE(scaled_copy(torch::empty_like(from), from, 0.5));
      }
  const auto largest = torch::full({40}, std::numeric_limits<float>::max());
  EXPECT_TRUE(all_finite(largest));
}

}  // namespace
}  // namespace lockstep::parallel::finite_check_test
