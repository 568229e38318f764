# SPDX-License-Identifier: Apache-2.0
"""Scenarios run under Lockstep and under PyTorch's DistributedDataParallel alike."""

import ddp_buffers
import ddp_gradients
import ddp_script
import ddp_sparse
import ddp_unused
import ddp_zero

SCENARIOS = (*ddp_gradients.SCENARIOS, *ddp_unused.SCENARIOS, *ddp_buffers.SCENARIOS,
             *ddp_zero.SCENARIOS, *ddp_script.SCENARIOS, *ddp_sparse.SCENARIOS)
