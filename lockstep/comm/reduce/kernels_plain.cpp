// SPDX-License-Identifier: Apache-2.0
#define LOCKSTEP_KERNELS plain
#include "lockstep/comm/reduce/loops.h"
