// LibTorch's vectorised sin(), exp() and others on the CPU, which are oneMKL's.
//
// oneMKL 2024.2 chooses its kernels in the first call. On Intel processors, a concurrent call may
// use kernels of lower precision (https://github.com/pytorch/pytorch/issues/188792).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/api.h"

namespace lockstep {

// Makes the first call once; concurrent callers wait for it. Thread safety: full.
LOCKSTEP_API void settle_vector_math();

}  // namespace lockstep
