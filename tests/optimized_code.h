// Whether tests may measure the time of this code.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::test {

// GCC shows its sanitizers by macros, Clang by features.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
constexpr bool is_optimized_code = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
constexpr bool is_optimized_code = false;
#else
constexpr bool is_optimized_code = true;
#endif
#else
constexpr bool is_optimized_code = true;
#endif

}  // namespace lockstep::test
