// Scenarios run under Lockstep and under PyTorch's DistributedDataParallel alike.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "tests/python/ddp_rig.h"

// Names equal those of the functions in ddp_gradients.py, ddp_unused.py, ddp_buffers.py,
// ddp_zero.py, ddp_script.py and ddp_sparse.py.
using Scenarios = std::vector<std::pair<const char*, void (*)(Rig&)>>;

Scenarios gradient_scenarios();
Scenarios unused_scenarios();
Scenarios buffer_scenarios();
Scenarios zero_scenarios();
Scenarios script_scenarios();
Scenarios sparse_scenarios();
