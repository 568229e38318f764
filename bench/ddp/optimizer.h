// Compared optimizers: all of them Adam, fused.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/comm/process_group.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/ddp/options.h"
#include "bench/ddp/workload.h"

// "adam", which each rank steps itself; "shared", with shared weights; "zero1" and "zero2".
std::vector<std::string> optimizer_names();

// Collective if ranks share state; "adam" without `world`.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Workload& work, const Options& options,
    const std::optional<lockstep::ProcessGroup>& world);
