// Storage of each element type, and the type in which it is combined. A part of loops.h, whose
// first comment applies here too.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace lockstep::comm::kernels::LOCKSTEP_KERNELS {
namespace {

// No conversion. Only operations that need the order use a signed type; others wrap.
template <class T>
struct Number {
  using Stored = T;
  using Sum = T;
  static Sum load(Stored x) { return x; }
  static Stored store(Sum x) { return x; }
};

struct Boolean {
  using Stored = std::uint8_t;
  using Sum = std::uint8_t;
  static Sum load(Stored x) { return x != 0; }
  static Stored store(Sum x) { return x; }
};

struct BFloat16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static Sum load(Stored x) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16);
  }
  static Stored store(Sum x) {  // Rounds to nearest, ties to even; any NaN becomes the quiet one.
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return static_cast<Stored>(x != x ? 0x7fc0 : rounded);
  }
};

// Gives the same bits as hardware conversions. No float32 here is subnormal, because
// torch::set_flush_denormal() would make it zero.
struct Float16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static constexpr std::uint32_t rebias = (127 - 15) << 23;  // Difference of exponent biases.

  static Sum load(Stored x) {
    const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000) << 16;
    const std::uint32_t magnitude = x & 0x7fff;
    // The last digit has the value 2^-24 in subnormal float16, and in float32 from 0.5 on.
    const float subnormal = __builtin_bit_cast(float, 0x3f000000 | magnitude) - 0.5F;
    std::uint32_t bits = (magnitude << 13) + rebias;
    bits = magnitude < 0x7c00 ? bits : bits + rebias;  // Infinity, NaN: exponents of all ones.
    bits = magnitude < 0x0400 ? __builtin_bit_cast(std::uint32_t, subnormal) : bits;
    return __builtin_bit_cast(float, sign | bits);
  }

  static Stored store(
      Sum x) {  // Rounds to nearest, ties to even; a NaN keeps its digits and becomes quiet.
    const auto all = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t sign = (all >> 16) & 0x8000;
    const std::uint32_t magnitude = all & 0x7fffffff;
    const float subnormal = __builtin_bit_cast(float, magnitude) + 0.5F;  // The addition rounds it.
    std::uint32_t bits = (magnitude - rebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    bits =
        magnitude < 0x38800000 ? __builtin_bit_cast(std::uint32_t, subnormal) - 0x3f000000 : bits;
    bits = magnitude < 0x477ff000 ? bits : 0x7c00;  // 65520, half-way above the largest.
    bits = magnitude > 0x7f800000 ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : bits;
    return static_cast<Stored>(sign | bits);
  }

  // Converts one vector: compilers do not vectorize these conversions.
#if defined(__AVX512F__)  // With all-ones masks: without masks g++ 12 warns of its own header.
  static constexpr std::size_t vector = 16;
  static void load_vector(const std::byte* from, float* to) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    _mm512_storeu_ps(to, _mm512_maskz_cvtph_ps(0xffff, halves));
  }
  static void store_vector(std::byte* to, const float* from) {
    const __m256i halves =
        _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
#elif defined(__F16C__)
  static constexpr std::size_t vector = 8;
  static void load_vector(const std::byte* from, float* to) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    _mm256_storeu_ps(to, _mm256_cvtph_ps(halves));
  }
  static void store_vector(std::byte* to, const float* from) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }
#endif
};

template <class Type>
concept ConvertsVectors = requires { Type::vector; };

}  // namespace
}  // namespace lockstep::comm::kernels::LOCKSTEP_KERNELS
