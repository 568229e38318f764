// LibTorch's vectorised sin(), exp(), tanh() and others on the CPU, which are oneMKL's.
//
// oneMKL 2024.2 chooses its kernels in the first call, and writes the number of the processor where
// other threads look for that of the kernels, before it replaces it. A call that comes in between
// computes with kernels of lower precision, on Intel's processors, and no later one does
// (https://github.com/pytorch/pytorch/issues/188792).

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

// Makes the first call, if there was none, while no other thread that calls this goes on.
// Thread safety: any thread.
void settle_vector_math();

}  // namespace lockstep
