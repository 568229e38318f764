// Distinguishes large gradients, which are averaged in place, from small ones, which are copied
// side by side first.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

// From this size on, reducing memory in place takes less time than copying into registered memory
// and reducing there. The cost is the number of bytes read and written.
constexpr bool is_large_gradient(std::size_t bytes) { return bytes >= std::size_t{256} << 10; }

}  // namespace lockstep
