// SPDX-License-Identifier: Apache-2.0
#define LOCKSTEP_KERNELS avx512
#include "lockstep/comm/reduce/loops.h"
