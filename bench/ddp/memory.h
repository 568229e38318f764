// Memory figures for bench.py.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include "bench/ddp/workload.h"

// Collective. Makes one more pass and step, so that gradients exist. Then rank 0 prints
// lockstep::memory_report().
void report_memory(const Workload& work, torch::optim::Optimizer& optimizer);
