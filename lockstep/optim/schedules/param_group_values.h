// Values of param groups that schedules read and set: learning rates and momenta.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace lockstep::optim {

// The current rates of the optimizer, one for each param group.
std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);

void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);

// Returns the optimizer's rates at the first call for it. A param group that was added later has
// its rate at the next call.
//
// Python stores them in the param groups, which cannot hold them in C++. Here a process-wide table
// maps an optimizer's address to them, as long as one of its schedules holds them.
// Thread safety: full, for different optimizers.
std::shared_ptr<std::vector<double>> initial_rates(const torch::optim::Optimizer& optimizer);

// Whether the optimizer has schedules.
bool has_initial_rates(const torch::optim::Optimizer& optimizer);

// Sets the option `momentum` of each param group, or the first of `betas`.
void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<double>& momenta);

// Whether all param groups have one of these options.
bool have_momenta(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
