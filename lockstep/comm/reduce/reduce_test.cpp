// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

namespace lockstep::comm::reduce_test {
namespace {

using kernels::Choose;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

// --- A serial loop, written another way than the kernels -----------------------------------------

template <class T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return std::isnan(x);
  else
    return false;
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::min) return a < b || is_nan(a) ? a : b;
  if (op == ReduceOp::max) return a > b || is_nan(a) ? a : b;
  if constexpr (std::is_floating_point_v<T>) {
    return op == ReduceOp::product ? a * b : a + b;
  } else {
    using Unsigned = std::make_unsigned_t<T>;
    const std::uint64_t x = static_cast<Unsigned>(a), y = static_cast<Unsigned>(b);
    if (op == ReduceOp::sum || op == ReduceOp::average) return static_cast<T>(x + y);
    if (op == ReduceOp::product) return static_cast<T>(x * y);
    if (op == ReduceOp::band) return static_cast<T>(x & y);
    return static_cast<T>(op == ReduceOp::bor ? x | y : x ^ y);
  }
}

// Counts sources away from the number's size, and keeps its sign.
template <class T>
T quotient(T sum, T sources) {
  using Size = std::make_unsigned_t<T>;
  const bool negative = std::is_signed_v<T> && sum < 0;
  const Size size =
      negative ? static_cast<Size>(Size{0} - static_cast<Size>(sum)) : static_cast<Size>(sum);
  const auto whole = static_cast<Size>(size / static_cast<Size>(sources));
  return static_cast<T>(negative ? static_cast<Size>(Size{0} - whole) : whole);
}

// How a test makes, reads and writes elements.
template <class T>
struct Number {
  using Stored = T;
  using Value = T;
  static T decode(T x) { return x; }
  static T encode(T x) { return x; }
};

struct Boolean {
  using Stored = std::uint8_t;
  using Value = std::uint8_t;
  static std::uint8_t decode(std::uint8_t x) { return x != 0 ? 1 : 0; }
  static std::uint8_t encode(std::uint8_t x) { return x != 0 ? 1 : 0; }
};

template <int exponent_bits, int digits>
struct Small {  // IEEE 754, 16 bits.
  using Stored = std::uint16_t;
  using Value = float;
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int infinity = ((1 << exponent_bits) - 1) << digits;
  static constexpr int quiet = infinity | 1 << (digits - 1);

  static double decode_exactly(std::uint16_t x) {
    const int exponent = (x & 0x7fff) >> digits, rest = x & ((1 << digits) - 1);
    const double sign = (x & 0x8000) != 0 ? -1 : 1;
    if ((x & 0x7fff) > infinity) return std::numeric_limits<double>::quiet_NaN();
    if ((x & 0x7fff) == infinity) return sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(rest, 1 - bias - digits);
    return sign * std::ldexp((1 << digits) + rest, exponent - bias - digits);
  }
  static float decode(std::uint16_t x) { return static_cast<float>(decode_exactly(x)); }

  static std::uint16_t encode(double x) {  // nearbyint() rounds ties to even.
    const int sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return static_cast<std::uint16_t>(sign | quiet);
    if (std::isinf(x)) return static_cast<std::uint16_t>(sign | infinity);
    const int exponent = x == 0 ? 1 - bias : std::max(std::ilogb(x), 1 - bias);
    const double steps = std::nearbyint(std::ldexp(std::abs(x), digits - exponent));
    // A carry out of the digits correctly goes into the exponent.
    const auto bits = static_cast<int>(steps) + ((exponent + bias - 1) << digits);
    return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
  }
};
using Half = Small<5, 10>;
using Brain = Small<8, 7>;

template <class Element>
typename Element::Stored read(const std::byte* array, std::size_t i) {
  typename Element::Stored x;
  std::memcpy(&x, array + i * sizeof x, sizeof x);
  return x;
}

template <class Element>
Bytes expected(ReduceOp op, const std::vector<const std::byte*>& sources, std::size_t count) {
  using Value = typename Element::Value;
  Bytes result(count * sizeof(typename Element::Stored));
  for (std::size_t i = 0; i < count; ++i) {
    Value value = Element::decode(read<Element>(sources[0], i));
    for (std::size_t source = 1; source < sources.size(); ++source)
      value = combine(op, value, Value(Element::decode(read<Element>(sources[source], i))));
    if constexpr (std::is_floating_point_v<Value>) {
      if (op == ReduceOp::average) value *= Value(1) / static_cast<Value>(sources.size());
    } else if (op == ReduceOp::average) {
      value = static_cast<Value>(quotient(value, static_cast<Value>(sources.size())));
    }
    const typename Element::Stored stored = Element::encode(value);
    std::memcpy(result.data() + i * sizeof stored, &stored, sizeof stored);
  }
  return result;
}

// The first element that differs by more than a NaN's bits; count if none does.
template <class Element>
std::size_t first_difference(const std::byte* a, const std::byte* b, std::size_t count) {
  constexpr std::size_t size = sizeof(typename Element::Stored);
  const auto nan_at = [](const std::byte* array, std::size_t i) {
    return is_nan(Element::decode(read<Element>(array, i)));
  };
  for (std::size_t i = 0; i < count; ++i) {
    const bool same = std::equal(a + i * size, a + (i + 1) * size, b + i * size);
    if (!same && !(nan_at(a, i) && nan_at(b, i))) return i;
  }
  return count;
}

// Booleans get bytes other than 0 and 1; floats get some infinities, NaNs and subnormal
// numbers.
template <class Element>
void fill(std::byte* array, std::size_t count, Random& random) {
  for (std::size_t i = 0; i < count; ++i) {
    auto x = static_cast<typename Element::Stored>(random());
    if constexpr (std::is_same_v<Element, Boolean>) {
      if (random() % 2 == 0) x = 0;
    } else if constexpr (std::is_floating_point_v<typename Element::Value>) {
      const auto moderate = static_cast<typename Element::Value>(random() % 2001) / 8 - 125;
      x = Element::encode(moderate);
      const std::uint64_t any = random();
      if (random() % 8 == 0) std::memcpy(&x, &any, sizeof x);
    }
    std::memcpy(array + i * sizeof x, &x, sizeof x);
  }
}

struct Subject {
  DType dtype;
  bool floating;
  Bytes (*expected)(ReduceOp op, const std::vector<const std::byte*>& sources, std::size_t count);
  std::size_t (*first_difference)(const std::byte* a, const std::byte* b, std::size_t count);
  void (*fill)(std::byte* array, std::size_t count, Random& random);
};

template <class Element>
Subject subject(DType dtype) {
  return {dtype, std::is_floating_point_v<typename Element::Value>, expected<Element>,
          first_difference<Element>, fill<Element>};
}

const Subject subjects[] = {
    subject<Number<float>>(DType::float32),
    subject<Number<double>>(DType::float64),
    subject<Half>(DType::float16),
    subject<Brain>(DType::bfloat16),
    subject<Number<std::int8_t>>(DType::int8),
    subject<Number<std::uint8_t>>(DType::uint8),
    subject<Number<std::int16_t>>(DType::int16),
    subject<Number<std::uint16_t>>(DType::uint16),
    subject<Number<std::int32_t>>(DType::int32),
    subject<Number<std::uint32_t>>(DType::uint32),
    subject<Number<std::int64_t>>(DType::int64),
    subject<Number<std::uint64_t>>(DType::uint64),
    subject<Boolean>(DType::boolean),
};
static_assert(std::size(subjects) == dtype_count);

bool has_meaning(const Subject& subject, ReduceOp op) {
  const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  if (subject.floating) return !bitwise;
  return op != ReduceOp::average || subject.dtype != DType::boolean;
}

// --- The tests -----------------------------------------------------------------------------------

// Returns the choices of target arrays: a number below the count of sources names a source.
std::vector<std::vector<int>> ways_to_write(int sources) {
  std::vector<int> all;
  for (int source = 0; source < sources; ++source) all.push_back(source);
  return {{sources}, {sources - 1}, {sources, sources + 1}, {sources, 0}, all};
}

void compare_with_a_serial_loop(const Subject& subject, ReduceOp op, int source_count,
                                std::size_t count, std::size_t misalignment) {
  const std::size_t bytes = count * size_of(subject.dtype);
  const std::size_t stride = bytes + 64 + misalignment;
  Bytes before((static_cast<std::size_t>(source_count) + 2) * stride);
  std::vector<const std::byte*> sources;
  Random random(count);
  for (int source = 0; source < source_count; ++source) {
    std::byte* const array = before.data() + source * stride + misalignment;
    subject.fill(array, count, random);
    sources.push_back(array);
  }
  const Bytes result = subject.expected(op, sources, count);

  for (const Choose choose : kernels::runnable())
    for (const auto& way : ways_to_write(source_count)) {
      Bytes memory = before;
      const auto array = [&](int i) { return memory.data() + i * stride + misalignment; };
      for (int source = 0; source < source_count; ++source) sources[source] = array(source);
      std::vector<std::byte*> targets;
      for (const int target : way) targets.push_back(array(target));

      choose(subject.dtype, op)(sources.data(), source_count, targets.data(),
                                static_cast<int>(targets.size()), count);

      Bytes after = before;
      for (std::byte* target : targets) {
        ASSERT_EQ(subject.first_difference(target, result.data(), count), count);
        std::copy_n(target, bytes, after.begin() + (target - memory.data()));
      }
      ASSERT_EQ(memory, after) << "something else was written";
    }
}

TEST(Reduce, EveryInstructionSetEqualsASerialLoop) {
  for (const Subject& subject : subjects)
    for (int value = 0; value < reduce_op_count; ++value) {
      const auto op = static_cast<ReduceOp>(value);
      if (!has_meaning(subject, op)) continue;
      for (const int sources : {1, 2, 3, 5})
        for (const std::size_t count : {0, 1, 2, 3, 17, 77, 1023, 1024, 1025, 4099})
          for (const std::size_t misalignment : {0, 1}) {
            SCOPED_TRACE(testing::Message() << name(op) << " of " << name(subject.dtype) << ", "
                                            << sources << " sources of " << count);
            compare_with_a_serial_loop(subject, op, sources, count, misalignment);
            if (HasFatalFailure()) return;
          }
    }
}

TEST(Reduce, APairWithoutMeaningHasNoFunction) {
  for (const Choose choose : kernels::runnable())
    for (const Subject& subject : subjects)
      for (int value = 0; value < reduce_op_count; ++value) {
        const auto op = static_cast<ReduceOp>(value);
        EXPECT_EQ(choose(subject.dtype, op) != nullptr, has_meaning(subject, op))
            << name(op) << " of " << name(subject.dtype);
      }
}

template <class T>
std::vector<T> reduce(Choose choose, DType dtype, ReduceOp op,
                      const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs)
    sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> result(inputs[0].size());
  std::byte* const target = reinterpret_cast<std::byte*>(result.data());
  choose(dtype, op)(sources.data(), static_cast<int>(sources.size()), &target, 1, result.size());
  return result;
}

template <class T>
T reduce_one(Choose choose, DType dtype, ReduceOp op, const std::vector<T>& values) {
  std::vector<std::vector<T>> inputs;
  for (const T value : values) inputs.push_back({value});
  return reduce(choose, dtype, op, inputs)[0];
}

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

template <class Element>
void every_pattern_survives_conversion(DType dtype) {
  const std::vector<std::uint16_t> all = all_patterns();
  for (const Choose choose : kernels::runnable())
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min}) {
      const auto copy = reduce<std::uint16_t>(choose, dtype, op, {all});
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (std::isnan(Element::decode(all[i])))  // A signalling NaN becomes quiet.
          ASSERT_EQ(copy[i] & Element::quiet, Element::quiet) << i;
        else
          ASSERT_EQ(copy[i], all[i]);
      }
    }
}

TEST(Reduce, EveryFloat16AndBfloat16SurvivesConversion) {
  every_pattern_survives_conversion<Half>(DType::float16);
  every_pattern_survives_conversion<Brain>(DType::bfloat16);
}

// The sum and product of two such numbers, rounded to float32 first, equal the exact ones rounded
// once: float32 has more than twice their digits.
template <class Element>
void pairs_are_rounded_as_from_float64(DType dtype) {
  const std::vector<std::uint16_t> all = all_patterns();
  std::vector<std::uint16_t> other = all;
  std::shuffle(other.begin(), other.end(), Random(3));
  for (std::size_t i = 0; i < all.size(); i += 3)  // Close numbers, to test rounding in sums of two
                                                   // halves.
    other[i] = static_cast<std::uint16_t>(all[i] ^ (other[i] & 0x9fff));
  for (const Choose choose : kernels::runnable()) {
    const auto sums = reduce<std::uint16_t>(choose, dtype, ReduceOp::sum, {all, other});
    const auto products = reduce<std::uint16_t>(choose, dtype, ReduceOp::product, {all, other});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double a = Element::decode_exactly(all[i]), b = Element::decode_exactly(other[i]);
      if (std::isnan(a + b)) {
        ASSERT_EQ(sums[i] & Element::quiet, Element::quiet) << a << ' ' << b;
      } else {
        ASSERT_EQ(sums[i], Element::encode(a + b)) << a << " + " << b;
      }
      // Products below float32's normal numbers are rounded twice.
      if (std::isnan(a * b) || std::abs(a * b) < 1e-37) continue;
      ASSERT_EQ(products[i], Element::encode(a * b)) << a << " * " << b;
    }
  }
}

TEST(Reduce, PairsOfFloat16AndBfloat16AreRoundedAsFromFloat64) {
  pairs_are_rounded_as_from_float64<Half>(DType::float16);
  pairs_are_rounded_as_from_float64<Brain>(DType::bfloat16);
}

template <class Element>
std::uint16_t sum_of(Choose choose, DType dtype, const std::vector<double>& values) {
  std::vector<std::uint16_t> elements;
  for (const double value : values) elements.push_back(Element::encode(value));
  return reduce_one(choose, dtype, ReduceOp::sum, elements);
}

TEST(Reduce, SumsOfFloat16AndBfloat16AreRoundedOnceAndToEven) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Choose choose : kernels::runnable()) {
    const auto brains = [&](auto values) { return sum_of<Brain>(choose, DType::bfloat16, values); };
    const auto halves = [&](auto values) { return sum_of<Half>(choose, DType::float16, values); };
    using Values = std::vector<double>;
    // The spacing at 256 is 2: a single 1 would be lost, three of them are not.
    EXPECT_EQ(brains(Values{256, 1, 1, 1}), Brain::encode(260));
    EXPECT_EQ(brains(Values{256, 1}), Brain::encode(256));
    EXPECT_EQ(brains(Values{258, 1}), Brain::encode(260));
    EXPECT_EQ(brains(Values{infinity, 1}), Brain::encode(infinity));
    EXPECT_EQ(brains(Values{infinity, -infinity}) & Brain::quiet, Brain::quiet);
    // The same holds for 2048 in float16, whose largest number is 65504.
    EXPECT_EQ(halves(Values{2048, 1, 1, 1}), Half::encode(2052));
    EXPECT_EQ(halves(Values{2048, 1}), Half::encode(2048));
    EXPECT_EQ(halves(Values{2050, 1}), Half::encode(2052));
    EXPECT_EQ(halves(Values{65504, 15}), Half::encode(65504));
    EXPECT_EQ(halves(Values{65504, 16}), Half::encode(infinity));
    EXPECT_EQ(halves(Values{65504, 65504, -65504}), Half::encode(65504));
    EXPECT_EQ(halves(Values{infinity, -infinity}) & Half::quiet, Half::quiet);
  }
}

TEST(Reduce, ANanOfAnyRankIsTheMinimumAndTheMaximum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Choose choose : kernels::runnable())
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max})
      for (const auto& [a, b] : {std::pair{nan, 1.0F}, std::pair{1.0F, nan}}) {
        EXPECT_TRUE(std::isnan(reduce_one<float>(choose, DType::float32, op, {a, b})));
        EXPECT_TRUE(std::isnan(reduce_one<double>(choose, DType::float64, op, {a, b, 2})));
        EXPECT_TRUE(std::isnan(Half::decode(reduce_one<std::uint16_t>(
            choose, DType::float16, op, {Half::encode(a), Half::encode(b)}))));
        EXPECT_TRUE(std::isnan(Brain::decode(reduce_one<std::uint16_t>(
            choose, DType::bfloat16, op, {Brain::encode(a), Brain::encode(b)}))));
      }
}

TEST(Reduce, IntegersWrap) {
  for (const Choose choose : kernels::runnable()) {
    EXPECT_EQ(reduce_one<std::int8_t>(choose, DType::int8, ReduceOp::sum, {127, 1}), -128);
    EXPECT_EQ(reduce_one<std::uint16_t>(choose, DType::uint16, ReduceOp::product, {65535, 65535}),
              1);
    EXPECT_EQ(reduce_one<std::int64_t>(choose, DType::int64, ReduceOp::sum,
                                       {std::numeric_limits<std::int64_t>::max(), 1}),
              std::numeric_limits<std::int64_t>::min());
  }
}

}  // namespace
}  // namespace lockstep::comm::reduce_test
