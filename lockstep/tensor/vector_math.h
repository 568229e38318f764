// LibTorch's vectorised sin(), exp(), tanh() and others on the CPU, which are oneMKL's.
//
// oneMKL 2024.2 chooses its kernels in the first call. On Intel processors, a concurrent call may
// use kernels of lower precision (https://github.com/pytorch/pytorch/issues/188792).

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lockstep {

// Makes the first call, if there was none; other threads that call this function wait for it.
// Thread safety: any thread may call it.
void settle_vector_math();

}  // namespace lockstep
