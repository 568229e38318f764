// The reductions as plain loops that the compiler vectorises. Each kernels_*.cpp defines
// LOCKSTEP_KERNELS, the namespace, includes this once and is built with the flags of one
// instruction set. No inline function of another header may be called here: the linker keeps one
// copy of such a function for the whole library, and it might be the one with AVX-512 in it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "lockstep/comm/reduce/kernels.h"

// Arrays are the same or apart, so no element depends on another one.
#if defined(__clang__)
#define LOCKSTEP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace lockstep::kernels::LOCKSTEP_KERNELS {
namespace {

// How elements of a type are stored, and the type in which they are summed.
template <class T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static Sum load(Stored x) { return x; }
  static Stored store(Sum x) { return x; }
};

struct Integer {
  using Stored = std::uint64_t;  // Unsigned, so that an overflow wraps as it does in LibTorch.
  using Sum = std::uint64_t;
  static Sum load(Stored x) { return x; }
  static Stored store(Sum x) { return x; }
};

struct Brain {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static Stored store(Sum x) {  // To nearest, ties to even; any NaN becomes the quiet one.
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return static_cast<Stored>(x != x ? 0x7fc0 : rounded);
  }
};

struct Add {
  template <class T>
  static T combine(T a, T b) {
    return a + b;
  }
};
struct Multiply {
  template <class T>
  static T combine(T a, T b) {
    return a * b;
  }
};
// Of a number and a NaN these give the NaN, as torch.minimum() and torch.maximum() do.
struct Min {
  template <class T>
  static T combine(T a, T b) {
    return a < b || a != a ? a : b;
  }
  static std::uint64_t combine(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) ? a : b;
  }
};
struct Max {
  template <class T>
  static T combine(T a, T b) {
    return a > b || a != a ? a : b;
  }
  static std::uint64_t combine(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::int64_t>(a) > static_cast<std::int64_t>(b) ? a : b;
  }
};

template <class Type, class Op, bool average>
void reduce_two(const std::byte* const* sources, std::byte* const* targets, std::size_t count) {
  using Stored = typename Type::Stored;
  const auto* a = reinterpret_cast<const Stored*>(sources[0]);
  const auto* b = reinterpret_cast<const Stored*>(sources[1]);
  auto* x = reinterpret_cast<Stored*>(targets[0]);
  auto* y = reinterpret_cast<Stored*>(targets[1]);
  LOCKSTEP_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    auto sum = Op::combine(Type::load(a[i]), Type::load(b[i]));
    if constexpr (average) sum *= static_cast<typename Type::Sum>(0.5);
    const Stored result = Type::store(sum);
    x[i] = result;
    y[i] = result;
  }
}

template <class Type, class Op, bool average>
void reduce(const std::byte* const* sources, std::byte* const* targets, int ranks,
            std::size_t count) {
  using Stored = typename Type::Stored;
  using Sum = typename Type::Sum;
  if (ranks == 2) return reduce_two<Type, Op, average>(sources, targets, count);

  constexpr std::size_t block = 1024;  // Of which the sums stay in the first-level cache.
  Sum sums[block];
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t size = count - begin < block ? count - begin : block;
    const auto* first = reinterpret_cast<const Stored*>(sources[0]) + begin;
    for (std::size_t i = 0; i < size; ++i) sums[i] = Type::load(first[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const auto* next = reinterpret_cast<const Stored*>(sources[rank]) + begin;
      for (std::size_t i = 0; i < size; ++i) sums[i] = Op::combine(sums[i], Type::load(next[i]));
    }
    if constexpr (average) {
      const Sum scale = static_cast<Sum>(1) / static_cast<Sum>(ranks);
      for (std::size_t i = 0; i < size; ++i) sums[i] *= scale;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      auto* target = reinterpret_cast<Stored*>(targets[rank]) + begin;
      for (std::size_t i = 0; i < size; ++i) target[i] = Type::store(sums[i]);
    }
  }
}

template <class Type, bool floating>
ReduceFunction function_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce<Type, Add, false>;
    case ReduceOp::average:
      if constexpr (floating) return reduce<Type, Add, true>;
      return nullptr;
    case ReduceOp::product:
      return reduce<Type, Multiply, false>;
    case ReduceOp::min:
      return reduce<Type, Min, false>;
    case ReduceOp::max:
      return reduce<Type, Max, false>;
  }
  return nullptr;
}

}  // namespace

ReduceFunction reduce_function(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::float32:
      return function_for<Plain<float>, true>(op);
    case DType::float64:
      return function_for<Plain<double>, true>(op);
    case DType::int64:
      return function_for<Integer, false>(op);
    case DType::bfloat16:
      return function_for<Brain, true>(op);
    case DType::uint8:
      return nullptr;
  }
  return nullptr;
}

}  // namespace lockstep::kernels::LOCKSTEP_KERNELS
