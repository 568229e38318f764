// Tests whether threads make the first call of LibTorch's vector math concurrently, in which oneMKL
// chooses its kernels (lockstep/tensor/vector_math.h). A program with this file intercepts that
// choice.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace lockstep::test {

// False if LibTorch does not have this oneMKL.
bool has_vector_calls();

// From now on, the first call lasts until another thread calls too, or `most`. Concurrent calls
// compute with other kernels, as on Intel's processors.
void hold_up_first_vector_call(std::chrono::milliseconds most = std::chrono::milliseconds(300));

enum class VectorCalls { none, alone, met };

// The outcome of the first delayed call.
VectorCalls first_vector_call();

}  // namespace lockstep::test
