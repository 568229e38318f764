// Which gradients are averaged where autograd has made them, and which in copies side by side.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep {

// From here on a reduction of memory that lies anywhere takes less than a copy into registered
// memory and a reduction there: what counts is how many bytes are read and written.
constexpr bool is_large_gradient(std::size_t bytes) { return bytes >= std::size_t{256} << 10; }

}  // namespace lockstep
