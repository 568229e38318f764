// LibTorch's vectorised sin(), exp(), tanh() and others on the CPU, which are oneMKL's.
//
// oneMKL 2024.2 chooses its kernels in the first call. Before it stores the number of the kernels,
// it stores the number of the processor in the same place. On Intel processors, a concurrent call
// then uses kernels of lower precision; later calls do not
// (https://github.com/pytorch/pytorch/issues/188792).

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

// Makes the first call, if there was none. Other threads that call this function wait for it.
// Thread safety: any thread.
void settle_vector_math();

}  // namespace lockstep
