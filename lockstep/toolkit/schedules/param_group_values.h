// Learning rates and momenta of param groups.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace lockstep::schedules {

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);

void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);

// The optimizer's rates at the first call; for later param groups, at the next call. A process-wide
// table keeps them by the optimizer's address while a schedule holds them. Thread safety: full, for
// different optimizers.
std::shared_ptr<std::vector<double>> initial_rates(const torch::optim::Optimizer& optimizer);

bool has_initial_rates(const torch::optim::Optimizer& optimizer);

// Sets `momentum` of each param group, or the first of `betas`.
void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<double>& momenta);

// Whether all param groups have `momentum` or `betas`.
bool have_momenta(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::schedules
