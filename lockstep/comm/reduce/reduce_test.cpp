// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/reduce/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/comm/reduce/kernels.h"

namespace lockstep {
namespace {

using Choose = ReduceFunction (*)(DType, ReduceOp);

std::vector<Choose> choices() {
  std::vector<Choose> all{kernels::plain::reduce_function};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) all.push_back(kernels::avx2::reduce_function);
  if (__builtin_cpu_supports("avx512bw")) all.push_back(kernels::avx512::reduce_function);
#endif
  return all;
}

constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min,
                                ReduceOp::max};

template <class T>
T expected(const std::vector<std::vector<T>>& inputs, std::size_t i, ReduceOp op) {
  T value = inputs[0][i];
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    const T next = inputs[rank][i];
    if (op == ReduceOp::sum || op == ReduceOp::average) value = value + next;
    if (op == ReduceOp::product) value = value * next;
    if (op == ReduceOp::min) value = std::min(value, next);
    if (op == ReduceOp::max) value = std::max(value, next);
  }
  return op == ReduceOp::average ? value * (T(1) / static_cast<T>(inputs.size())) : value;
}

template <class T>
void compare_with_a_serial_loop(DType dtype, Choose choose, ReduceOp op, int ranks,
                                std::size_t count) {
  const ReduceFunction reduce = choose(dtype, op);
  ASSERT_NE(reduce, nullptr);
  std::mt19937 random(7);
  std::vector<std::vector<T>> inputs(static_cast<std::size_t>(ranks), std::vector<T>(count));
  for (auto& input : inputs)
    for (T& x : input) x = static_cast<T>(static_cast<int>(random() % 2001) - 1000) / T(8);
  auto outputs = inputs;
  std::vector<std::byte*> parts;
  for (auto& output : outputs) parts.push_back(reinterpret_cast<std::byte*>(output.data()));

  reduce(parts.data(), parts.data(), ranks, count);

  for (std::size_t i = 0; i < count; ++i)
    for (const auto& output : outputs) ASSERT_EQ(output[i], expected(inputs, i, op)) << i;
}

TEST(Reduce, EveryInstructionSetEqualsASerialLoop) {
  for (const Choose choose : choices())
    for (const ReduceOp op : all_ops)
      for (const int ranks : {1, 2, 3, 5})
        for (const std::size_t count : {0, 1, 15, 16, 17, 1023, 1024, 1025, 4099}) {
          compare_with_a_serial_loop<float>(DType::float32, choose, op, ranks, count);
          compare_with_a_serial_loop<double>(DType::float64, choose, op, ranks, count);
          if (op != ReduceOp::average)
            compare_with_a_serial_loop<std::int64_t>(DType::int64, choose, op, ranks, count);
        }
}

std::uint16_t bfloat16(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}

std::uint16_t sum_of_bfloat16(Choose choose, std::vector<std::uint16_t> values) {
  std::vector<std::byte*> parts;
  for (auto& value : values) parts.push_back(reinterpret_cast<std::byte*>(&value));
  choose(DType::bfloat16, ReduceOp::sum)(parts.data(), parts.data(),
                                         static_cast<int>(values.size()), 1);
  return values[0];
}

TEST(Reduce, SumsOfBfloat16AreRoundedOnceAndToEven) {
  for (const Choose choose : choices()) {
    // 256 has a spacing of 2: each 1 alone would be lost, three of them are not.
    EXPECT_EQ(sum_of_bfloat16(choose, {bfloat16(256), bfloat16(1), bfloat16(1), bfloat16(1)}),
              bfloat16(260));
    EXPECT_EQ(sum_of_bfloat16(choose, {bfloat16(256), bfloat16(1)}), bfloat16(256));
    EXPECT_EQ(sum_of_bfloat16(choose, {bfloat16(258), bfloat16(1)}), bfloat16(260));
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(sum_of_bfloat16(choose, {bfloat16(infinity), bfloat16(1)}), bfloat16(infinity));
    EXPECT_EQ(sum_of_bfloat16(choose, {bfloat16(infinity), bfloat16(-infinity)}), 0x7fc0);
  }
}

TEST(Reduce, ANanOfAnyRankIsTheMinimumAndTheMaximum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Choose choose : choices())
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max})
      for (const auto& pair : {std::pair{nan, 1.0F}, std::pair{1.0F, nan}}) {
        float a = pair.first;
        float b = pair.second;
        std::byte* parts[] = {reinterpret_cast<std::byte*>(&a), reinterpret_cast<std::byte*>(&b)};
        choose(DType::float32, op)(parts, parts, 2, 1);
        EXPECT_TRUE(std::isnan(a) && std::isnan(b));
      }
}

TEST(Reduce, IntegersHaveNoAverageAndBytesNoReduction) {
  EXPECT_EQ(reduce_function(DType::int64, ReduceOp::average), nullptr);
  for (const ReduceOp op : all_ops) EXPECT_EQ(reduce_function(DType::uint8, op), nullptr);
}

}  // namespace
}  // namespace lockstep
