// Whether tests may measure this code's time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
constexpr bool is_optimized_code = false;
#else
constexpr bool is_optimized_code = true;
#endif

}  // namespace lockstep::test
