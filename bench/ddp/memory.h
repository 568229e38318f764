// What bench.py reads of where memory goes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include "bench/ddp/workload.h"

// Makes one more forward and backward pass and a step, so that gradients are there, and prints on
// rank 0 what lockstep::memory_report() says, in bytes. Collective.
void report_memory(const Workload& work, torch::optim::Optimizer& optimizer);
