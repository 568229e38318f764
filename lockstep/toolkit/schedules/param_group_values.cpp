// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/schedules/param_group_values.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <tuple>

#include "lockstep/optim/optimizer_options.h"
#include "lockstep/tensor/state_types.h"

namespace lockstep::schedules {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

struct Table {
  std::mutex mutex;
  std::map<const Optimizer*, std::weak_ptr<std::vector<double>>> rates;
};

Table& table() {
  static Table table;
  return table;
}

template <class... Types, class Set>
bool set_as(OptimizerOptions& options, Set set) {
  const auto set_if = [&]<class Type>(Type* typed) {
    if (typed != nullptr) set(*typed);
    return typed != nullptr;
  };
  return (set_if(dynamic_cast<Types*>(&options)) || ...);
}

void set_momentum(OptimizerOptions& options, double momentum) {
  if (set_as<torch::optim::SGDOptions, torch::optim::RMSpropOptions>(
          options, [&](auto& typed) { typed.momentum(momentum); }))
    return;
  if (set_as<torch::optim::AdamOptions, torch::optim::AdamWOptions>(options, [&](auto& typed) {
        typed.betas({momentum, std::get<1>(typed.betas())});
      }))
    return;
  StateValues values = state_values_of(options);  // Slower, and for every type.
  const auto betas = values.find("betas");
  if (betas != values.end())
    std::get<std::vector<double>>(betas->second).at(0) = momentum;
  else
    values.at("momentum") = momentum;
  set_state_values(options, values);
}

bool has_momentum(const OptimizerOptions& options) {
  const StateValues values = state_values_of(options);
  return values.contains("momentum") || values.contains("betas");
}

}  // namespace

std::vector<double> rates_of(const Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_rates(Optimizer& optimizer, const std::vector<double>& rates) {
  for (std::size_t i = 0; i < rates.size(); ++i)
    optimizer.param_groups()[i].options().set_lr(rates[i]);
}

std::shared_ptr<std::vector<double>> initial_rates(const Optimizer& optimizer) {
  auto& [mutex, all] = table();
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<std::vector<double>>& entry = all[&optimizer];
  std::shared_ptr<std::vector<double>> rates = entry.lock();
  if (!rates) entry = rates = std::make_shared<std::vector<double>>();
  const std::vector<double> present = rates_of(optimizer);
  if (present.size() > rates->size())
    rates->insert(rates->end(), present.begin() + std::ssize(*rates), present.end());
  return rates;
}

bool has_initial_rates(const Optimizer& optimizer) {
  auto& [mutex, all] = table();
  const std::lock_guard lock(mutex);
  const auto found = all.find(&optimizer);
  return found != all.end() && !found->second.expired();
}

void set_momenta(Optimizer& optimizer, const std::vector<double>& momenta) {
  for (std::size_t i = 0; i < momenta.size(); ++i)
    set_momentum(optimizer.param_groups()[i].options(), momenta[i]);
}

bool have_momenta(const Optimizer& optimizer) {
  return std::ranges::all_of(optimizer.param_groups(),
                             [](const auto& group) { return has_momentum(group.options()); });
}

}  // namespace lockstep::schedules
