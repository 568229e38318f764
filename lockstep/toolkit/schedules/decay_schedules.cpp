// Follows Python's lr_scheduler.py and swa_utils.py operation by operation, for the same bits.
// Compiled without contraction of products and sums.

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/schedules/schedule_fields.h"
#include "lockstep/toolkit/schedules/schedules.h"

namespace lockstep {
namespace {

using std::numbers::pi;
using torch::optim::Optimizer;

std::vector<double> times(std::vector<double> rates, double factor) {
  for (double& rate : rates) rate *= factor;
  return rates;
}

std::vector<LRFactor> require_factors(std::vector<LRFactor> factors, const Optimizer& optimizer) {
  const std::size_t groups = optimizer.param_groups().size();
  require(factors.size() == groups, [&] {
    return "LambdaLR, MultiplicativeLR: there are " + std::to_string(factors.size()) +
           " functions, and the optimizer has " + std::to_string(groups) + " param groups";
  });
  for (const LRFactor& factor : factors)
    require(factor != nullptr, "LambdaLR, MultiplicativeLR: a function is empty");
  return factors;
}

std::vector<LRFactor> for_all(const LRFactor& factor, const Optimizer& optimizer) {
  return std::vector<LRFactor>(optimizer.param_groups().size(), factor);
}

std::vector<double> products(std::vector<double> rates, const std::vector<LRFactor>& factors,
                             std::int64_t epoch) {
  for (std::size_t i = 0; i < rates.size(); ++i) rates[i] *= factors[i](epoch);
  return rates;
}

}  // namespace

LambdaLR::LambdaLR(Optimizer& optimizer, LRFactor lr_lambda)
    : LambdaLR(optimizer, for_all(lr_lambda, optimizer)) {}

LambdaLR::LambdaLR(Optimizer& optimizer, std::vector<LRFactor> lr_lambdas)
    : LRScheduler(optimizer), lr_lambdas_(require_factors(std::move(lr_lambdas), optimizer)) {
  start();
}

std::vector<double> LambdaLR::rates() { return products(base_lrs(), lr_lambdas_, last_epoch()); }

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, LRFactor lr_lambda)
    : MultiplicativeLR(optimizer, for_all(lr_lambda, optimizer)) {}

MultiplicativeLR::MultiplicativeLR(Optimizer& optimizer, std::vector<LRFactor> lr_lambdas)
    : LRScheduler(optimizer), lr_lambdas_(require_factors(std::move(lr_lambdas), optimizer)) {
  start();
}

std::vector<double> MultiplicativeLR::rates() {
  if (is_starting()) return get_current_lrs();
  return products(get_current_lrs(), lr_lambdas_, last_epoch());
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  start();
}

std::vector<double> StepLR::rates() {
  const bool falls = last_epoch() != 0 && last_epoch() % options_.step_size == 0;
  return falls ? times(get_current_lrs(), options_.gamma) : get_current_lrs();
}

std::vector<double> StepLR::first_rates() { return base_lrs(); }

void StepLR::list(schedules::ScheduleFields& fields) {
  fields.add("step_size", options_.step_size, 1);
  fields.add("gamma", options_.gamma);
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, MultiStepLROptions options)
    : LRScheduler(optimizer), options_(std::move(options)) {
  std::ranges::sort(options_.milestones);
  start();
}

std::vector<double> MultiStepLR::rates() {
  const auto times_here = std::ranges::count(options_.milestones, last_epoch());
  if (times_here == 0) return get_current_lrs();
  return times(get_current_lrs(), std::pow(options_.gamma, static_cast<double>(times_here)));
}

std::vector<double> MultiStepLR::first_rates() {
  const auto passed =
      std::ranges::upper_bound(options_.milestones, 0) - options_.milestones.begin();
  return times(base_lrs(), std::pow(options_.gamma, static_cast<double>(passed)));
}

void MultiStepLR::list(schedules::ScheduleFields& fields) {
  fields.add("milestones", options_.milestones, schedules::Count::any);
  fields.add("gamma", options_.gamma);
}

ConstantLR::ConstantLR(Optimizer& optimizer, const ConstantLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  start();
}

std::vector<double> ConstantLR::rates() {
  if (last_epoch() == 0) return times(get_current_lrs(), options_.factor);
  if (last_epoch() != options_.total_iters) return get_current_lrs();
  return times(get_current_lrs(), 1.0 / options_.factor);
}

std::vector<double> ConstantLR::first_rates() { return times(base_lrs(), options_.factor); }

void ConstantLR::list(schedules::ScheduleFields& fields) {
  fields.add("factor", options_.factor, {.least = 0, .most = 1, .without_least = true});
  fields.add("total_iters", options_.total_iters, 1);
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  start();
}

std::vector<double> LinearLR::rates() {
  const auto& [start_factor, end_factor, total_iters] = options_;
  if (last_epoch() == 0) return times(get_current_lrs(), start_factor);
  if (last_epoch() > total_iters) return get_current_lrs();
  const double change = end_factor - start_factor;
  return times(get_current_lrs(), 1.0 + change / (static_cast<double>(total_iters) * start_factor +
                                                  static_cast<double>(last_epoch() - 1) * change));
}

std::vector<double> LinearLR::first_rates() { return times(base_lrs(), options_.start_factor); }

void LinearLR::list(schedules::ScheduleFields& fields) {
  fields.add("start_factor", options_.start_factor, {.least = 0, .most = 1, .without_least = true});
  fields.add("end_factor", options_.end_factor, {.least = 0, .most = 1});
  fields.add("total_iters", options_.total_iters, 1);
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  start();
}

std::vector<double> ExponentialLR::rates() {
  return is_starting() ? get_current_lrs() : times(get_current_lrs(), options_.gamma);
}

std::vector<double> ExponentialLR::first_rates() { return base_lrs(); }

void ExponentialLR::list(schedules::ScheduleFields& fields) {
  fields.add("gamma", options_.gamma, {.least = 0, .without_least = true});
}

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  start();
}

std::vector<double> PolynomialLR::rates() {
  const auto& [total_iters, power] = options_;
  if (is_starting() || last_epoch() > total_iters) return get_current_lrs();
  const auto step = static_cast<double>(last_epoch()), total = static_cast<double>(total_iters);
  return times(get_current_lrs(),
               std::pow((1.0 - step / total) / (1.0 - (step - 1) / total), power));
}

std::vector<double> PolynomialLR::first_rates() { return base_lrs(); }

void PolynomialLR::list(schedules::ScheduleFields& fields) {
  fields.add("total_iters", options_.total_iters, 1);
  fields.add("power", options_.power, {.least = 0});
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : LRScheduler(optimizer), options_(options) {
  start();
}

std::vector<double> CosineAnnealingLR::rates() {
  std::vector<double> rates = get_current_lrs();
  if (is_starting()) return rates;
  const auto& [T_max, eta_min] = options_;
  const auto step = static_cast<double>(last_epoch()), half = static_cast<double>(T_max);
  const bool is_lowest = (last_epoch() - 1 - T_max) % (2 * T_max) == 0;
  for (std::size_t i = 0; i < rates.size(); ++i)
    rates[i] = is_lowest ? rates[i] + (base_lrs()[i] - eta_min) * (1 - std::cos(pi / half)) / 2
                         : (1 + std::cos(pi * step / half)) /
                                   (1 + std::cos(pi * (step - 1) / half)) * (rates[i] - eta_min) +
                               eta_min;
  return rates;
}

std::vector<double> CosineAnnealingLR::first_rates() {
  std::vector<double> rates = base_lrs();
  for (double& rate : rates)
    rate = options_.eta_min + (rate - options_.eta_min) * (1 + std::cos(0.0)) / 2;
  return rates;
}

void CosineAnnealingLR::list(schedules::ScheduleFields& fields) {
  fields.add("T_max", options_.T_max, 1);
  fields.add("eta_min", options_.eta_min);
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(
    Optimizer& optimizer, const CosineAnnealingWarmRestartsOptions& options)
    : LRScheduler(optimizer), options_(options), T_i_(options.T_0) {
  start();
}

std::vector<double> CosineAnnealingWarmRestarts::rates() {
  if (last_epoch() == 0) {
    T_cur_ = 0;
    T_i_ = options_.T_0;
  } else if (++T_cur_ >= T_i_) {
    T_cur_ %= T_i_;
    T_i_ *= options_.T_mult;
  }
  return first_rates();
}

std::vector<double> CosineAnnealingWarmRestarts::first_rates() {
  std::vector<double> rates = base_lrs();
  const double share = std::cos(pi * static_cast<double>(T_cur_) / static_cast<double>(T_i_));
  for (double& rate : rates) rate = options_.eta_min + (rate - options_.eta_min) * (1 + share) / 2;
  return rates;
}

void CosineAnnealingWarmRestarts::list(schedules::ScheduleFields& fields) {
  fields.add("T_0", options_.T_0, 1);
  fields.add("T_i", T_i_, 1);
  fields.add("T_mult", options_.T_mult, 1);
  fields.add("eta_min", options_.eta_min);
  fields.add("T_cur", T_cur_);
}

SWALR::SWALR(Optimizer& optimizer, const SWALROptions& options)
    : LRScheduler(optimizer),
      swa_lrs_(options.swa_lr.of(optimizer, "SWALR: swa_lr")),
      anneal_epochs_(options.anneal_epochs),
      anneal_strategy_(options.anneal_strategy) {
  start();
}

// Python counts a step before it computes its rates.
std::vector<double> SWALR::rates() { return rates_at(std::int64_t{step_count_}); }

std::vector<double> SWALR::first_rates() { return rates_at(std::int64_t{step_count_} - 1); }

std::vector<double> SWALR::rates_at(std::int64_t step) const {
  if (anneal_epochs_ == 0) step = std::max<std::int64_t>(1, step);
  const double before = share_at(step - 1), now = share_at(step);
  std::vector<double> rates = get_current_lrs();
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const double from =
        before == 1 ? swa_lrs_[i] : (rates[i] - before * swa_lrs_[i]) / (1 - before);
    rates[i] = swa_lrs_[i] * now + from * (1 - now);
  }
  return rates;
}

double SWALR::share_at(std::int64_t step) const {
  const double share = std::clamp(
      static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, anneal_epochs_)),
      0.0, 1.0);
  return anneal_strategy_ == AnnealStrategy::linear ? share : (1 - std::cos(pi * share)) / 2;
}

void SWALR::list(schedules::ScheduleFields& fields) {
  fields.add("anneal_epochs", anneal_epochs_, 0);
  fields.add_choice("_anneal_strategy", anneal_strategy_, {"cos", "linear"});
  fields.begin_own();
  fields.add("swa_lr", swa_lrs_);
}

}  // namespace lockstep
