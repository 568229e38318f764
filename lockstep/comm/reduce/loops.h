// The reductions as plain loops that the compiler vectorizes. kernels_*.cpp and reduce.cpp define
// the namespace LOCKSTEP_KERNELS, include this once, and are built for one instruction set each.
// Never call another header's inline function here: the linker keeps a single one for the whole
// library, which might contain AVX-512. Intrinsics and builtins are safe.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "lockstep/comm/reduce/elements.h"
#include "lockstep/comm/reduce/reduce.h"

// Arrays are identical or disjoint, so no element depends on another one.
#if defined(__clang__)
#define LOCKSTEP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace lockstep::comm::kernels::LOCKSTEP_KERNELS {
namespace {

// --- How two elements are combined ---------------------------------------------------------------

struct Add {
  template <class T>
  static T combine(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Average : Add {};  // finish() follows the last combination.

// Sums wrap, like unsigned numbers. The quotient is truncated towards zero, as in NCCL.
template <class T>
struct IntegerAverage : Add {
  using Quotient = std::conditional_t<(sizeof(T) < sizeof(int)), int, T>;  // Holds any rank count.
  static std::make_unsigned_t<T> divide(std::make_unsigned_t<T> sum, int sources) {
    return static_cast<std::make_unsigned_t<T>>(static_cast<Quotient>(static_cast<T>(sum)) /
                                                static_cast<Quotient>(sources));
  }
};

template <class Op>
constexpr bool divides_integers = false;
template <class T>
constexpr bool divides_integers<IntegerAverage<T>> = true;

struct Multiply {
  template <class T>
  static T combine(T a, T b) {
    return a * b;
  }
  // In int, which the language chooses, the product could overflow.
  static std::uint16_t combine(std::uint16_t a, std::uint16_t b) {
    return static_cast<std::uint16_t>(1U * a * b);
  }
  static std::uint8_t combine(std::uint8_t a, std::uint8_t b) {
    return static_cast<std::uint8_t>(a * b);
  }
};
template <class T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return __builtin_isnan(x) != 0;
  else
    return false;
}

// For a number and a NaN, these return the NaN, like torch::minimum() and torch::maximum().
struct Min {
  template <class T>
  static T combine(T a, T b) {
    return a < b || is_nan(a) ? a : b;
  }
};
struct Max {
  template <class T>
  static T combine(T a, T b) {
    return a > b || is_nan(a) ? a : b;
  }
};
struct And {
  template <class T>
  static T combine(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T combine(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T combine(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// --- Arrays, which need not be aligned -----------------------------------------------------------

template <class Type>
typename Type::Sum load(const std::byte* array, std::size_t i) {
  typename Type::Stored stored;
  __builtin_memcpy(&stored, array + i * sizeof stored, sizeof stored);
  return Type::load(stored);
}

template <class Type>
void store(std::byte* array, std::size_t i, typename Type::Sum x) {
  const typename Type::Stored stored = Type::store(x);
  __builtin_memcpy(array + i * sizeof stored, &stored, sizeof stored);
}

// --- Blocks of accumulators ----------------------------------------------------------------------
// Each loop is a function: g++ 12 does not vectorise it inside reduce().

// Bytes of one block's accumulators; they stay in the first-level cache.
constexpr std::size_t block_bytes = 4096;

template <class Type>
[[gnu::noinline]] void load_all(const std::byte* from, typename Type::Sum* to, std::size_t size) {
  std::size_t i = 0;
  if constexpr (ConvertsVectors<Type>)
    for (; i + Type::vector <= size; i += Type::vector)
      Type::load_vector(from + i * sizeof(typename Type::Stored), to + i);
  LOCKSTEP_INDEPENDENT
  for (; i < size; ++i) to[i] = load<Type>(from, i);
}

template <class Type>
[[gnu::noinline]] void store_all(std::byte* to, const typename Type::Sum* from, std::size_t size) {
  std::size_t i = 0;
  if constexpr (ConvertsVectors<Type>)
    for (; i + Type::vector <= size; i += Type::vector)
      Type::store_vector(to + i * sizeof(typename Type::Stored), from + i);
  LOCKSTEP_INDEPENDENT
  for (; i < size; ++i) store<Type>(to, i, from[i]);
}

template <class Type, class Op>
[[gnu::noinline]] void accumulate(typename Type::Sum* sums, const std::byte* source,
                                  std::size_t size) {
  if constexpr (ConvertsVectors<Type>) {
    alignas(64) typename Type::Sum next[block_bytes / sizeof(typename Type::Sum)];
    load_all<Type>(source, next, size);
    LOCKSTEP_INDEPENDENT
    for (std::size_t i = 0; i < size; ++i) sums[i] = Op::combine(sums[i], next[i]);
  } else {
    LOCKSTEP_INDEPENDENT
    for (std::size_t i = 0; i < size; ++i) sums[i] = Op::combine(sums[i], load<Type>(source, i));
  }
}

// Only averages need this step.
template <class Op, class Sum>
[[gnu::noinline]] void finish(Sum* sums, int sources, std::size_t size) {
  if constexpr (std::is_same_v<Op, Average>) {
    const Sum factor = static_cast<Sum>(1) / static_cast<Sum>(sources);
    LOCKSTEP_INDEPENDENT
    for (std::size_t i = 0; i < size; ++i) sums[i] *= factor;
  } else if constexpr (divides_integers<Op>) {
    for (std::size_t i = 0; i < size; ++i) sums[i] = Op::divide(sums[i], sources);
  }
}

// For two sources. With one target, x and y are the same.
template <class Type, class Op, int targets>
void reduce_two(const std::byte* a, const std::byte* b, std::byte* x, std::byte* y,
                std::size_t count) {
  LOCKSTEP_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    auto sum = Op::combine(load<Type>(a, i), load<Type>(b, i));
    if constexpr (std::is_same_v<Op, Average>) sum *= static_cast<typename Type::Sum>(0.5);
    if constexpr (divides_integers<Op>) sum = Op::divide(sum, 2);
    store<Type>(x, i, sum);
    if constexpr (targets == 2) store<Type>(y, i, sum);
  }
}

template <class Type, class Op>
void reduce(const std::byte* const* sources, int source_count, std::byte* const* targets,
            int target_count, std::size_t count) {
  using Sum = typename Type::Sum;
  if constexpr (!ConvertsVectors<Type>) {
    if (source_count == 2 && target_count == 1)
      return reduce_two<Type, Op, 1>(sources[0], sources[1], targets[0], targets[0], count);
    if (source_count == 2 && target_count == 2)
      return reduce_two<Type, Op, 2>(sources[0], sources[1], targets[0], targets[1], count);
  }
  if (target_count == 0) return;

  constexpr std::size_t block = block_bytes / sizeof(Sum);
  alignas(64) Sum sums[block];
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t size = count - begin < block ? count - begin : block;
    const std::size_t offset = begin * sizeof(typename Type::Stored);
    load_all<Type>(sources[0] + offset, sums, size);
    for (int source = 1; source < source_count; ++source)
      accumulate<Type, Op>(sums, sources[source] + offset, size);
    finish<Op>(sums, source_count, size);
    store_all<Type>(targets[0] + offset, sums, size);
    for (int target = 1; target < target_count; ++target)
      __builtin_memcpy(targets[target] + offset, targets[0] + offset,
                       size * sizeof(typename Type::Stored));
  }
}

template <class Type>
ReduceFunction of_floats(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce<Type, Add>;
    case ReduceOp::average:
      return reduce<Type, Average>;
    case ReduceOp::product:
      return reduce<Type, Multiply>;
    case ReduceOp::min:
      return reduce<Type, Min>;
    case ReduceOp::max:
      return reduce<Type, Max>;
    default:
      return nullptr;
  }
}

template <class T>
ReduceFunction of_integers(ReduceOp op) {
  using Unsigned = Number<std::make_unsigned_t<T>>;
  switch (op) {
    case ReduceOp::sum:
      return reduce<Unsigned, Add>;
    case ReduceOp::average:
      return reduce<Unsigned, IntegerAverage<T>>;
    case ReduceOp::product:
      return reduce<Unsigned, Multiply>;
    case ReduceOp::min:
      return reduce<Number<T>, Min>;
    case ReduceOp::max:
      return reduce<Number<T>, Max>;
    case ReduceOp::band:
      return reduce<Unsigned, And>;
    case ReduceOp::bor:
      return reduce<Unsigned, Or>;
    case ReduceOp::bxor:
      return reduce<Unsigned, Xor>;
    default:
      return nullptr;
  }
}

ReduceFunction of_booleans(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return reduce<Boolean, Or>;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band:
      return reduce<Boolean, And>;
    case ReduceOp::bxor:
      return reduce<Boolean, Xor>;
    default:
      return nullptr;
  }
}

}  // namespace

ReduceFunction reduce_function(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::float32:
      return of_floats<Number<float>>(op);
    case DType::float64:
      return of_floats<Number<double>>(op);
    case DType::bfloat16:
      return of_floats<BFloat16>(op);
    case DType::float16:
      return of_floats<Float16>(op);
    case DType::int8:
      return of_integers<std::int8_t>(op);
    case DType::int16:
      return of_integers<std::int16_t>(op);
    case DType::int32:
      return of_integers<std::int32_t>(op);
    case DType::int64:
      return of_integers<std::int64_t>(op);
    case DType::uint8:
      return of_integers<std::uint8_t>(op);
    case DType::uint16:
      return of_integers<std::uint16_t>(op);
    case DType::uint32:
      return of_integers<std::uint32_t>(op);
    case DType::uint64:
      return of_integers<std::uint64_t>(op);
    case DType::boolean:
      return of_booleans(op);
  }
  return nullptr;
}

}  // namespace lockstep::comm::kernels::LOCKSTEP_KERNELS
