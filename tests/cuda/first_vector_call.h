// Whether threads can meet in the first call of LibTorch's vector math, in which oneMKL chooses its
// kernels (lockstep/tensor/vector_math.h). A program with this is asked before oneMKL is.

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep::test {

// False where LibTorch has not this oneMKL.
bool has_vector_calls();

// From now on the first call lasts until another thread calls too, or 300 ms. Threads that call
// meanwhile compute with other kernels, as on Intel's processors if they meet.
void hold_up_first_vector_call();

enum class VectorCalls { none, alone, met };

// How the first one ended that was held up.
VectorCalls first_vector_call();

}  // namespace lockstep::test
