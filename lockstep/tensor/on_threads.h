// Loops on ATen's threads (torch::set_num_threads()).
//
// at::parallel_for() is serial in code compiled without LibTorch's own OpenMP.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace lockstep {

// Calls body(0) to body(count - 1), in any order and on several threads.
void on_threads(std::int64_t count, c10::function_ref<void(std::int64_t)> body);

}  // namespace lockstep
