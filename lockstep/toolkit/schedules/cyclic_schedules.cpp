// Follows Python's lr_scheduler.py operation by operation, for the same bits. Compiled without
// contraction of products and sums.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/schedules/cyclic_schedules.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/schedules/param_group_values.h"
#include "lockstep/toolkit/schedules/schedule_fields.h"

namespace lockstep {
namespace {

using std::numbers::pi;
using torch::optim::Optimizer;

std::string obstacle_of(const Optimizer& optimizer) {
  if (schedules::have_momenta(optimizer)) return "";
  return " is true, but the optimizer has no option momentum or betas";
}

MomentumRange momenta_of(const Optimizer& optimizer, const CyclicLROptions& options) {
  return {.base = options.base_momentum.of(optimizer, "CyclicLR: base_momentum"),
          .max = options.max_momentum.of(optimizer, "CyclicLR: max_momentum")};
}

// Checks all options before setting the lowest rates.
Optimizer& prepared(Optimizer& optimizer, const CyclicLROptions& options) {
  require(options.step_size_up >= 1, "CyclicLR: step_size_up must be at least 1");
  require(options.step_size_down.value_or(0) >= 0, "CyclicLR: step_size_down must be at least 0");
  const std::string obstacle = options.cycle_momentum ? obstacle_of(optimizer) : "";
  require(obstacle.empty(), [&] { return "CyclicLR: cycle_momentum" + obstacle; });
  options.max_lr.of(optimizer, "CyclicLR: max_lr");
  momenta_of(optimizer, options);
  schedules::set_rates(optimizer, options.base_lr.of(optimizer, "CyclicLR: base_lr"));
  return optimizer;
}

double steps_of_cycle(const CyclicLROptions& options) {
  return static_cast<double>(options.step_size_up) +
         static_cast<double>(options.step_size_down.value_or(options.step_size_up));
}

}  // namespace

CyclicLR::CyclicLR(Optimizer& optimizer, const CyclicLROptions& options)
    : LRScheduler(prepared(optimizer, options)),
      max_lrs_(options.max_lr.of(optimizer, "CyclicLR: max_lr")),
      total_size_(steps_of_cycle(options)),
      step_ratio_(static_cast<double>(options.step_size_up) / total_size_),
      mode_(options.mode),
      gamma_(options.gamma),
      scale_fn_(options.scale_fn),
      scale_mode_(options.scale_mode),
      cycle_momentum_(options.cycle_momentum),
      momentum_(momenta_of(optimizer, options)) {
  if (!scale_fn_)
    scale_mode_ = mode_ == CyclicMode::exp_range ? CyclicScale::iterations : CyclicScale::cycle;
  start();
  set_base_lrs(options.base_lr.of(optimizer, "CyclicLR: base_lr"));
}

double CyclicLR::height(double cycle) const {
  const double x = scale_mode_ == CyclicScale::cycle ? cycle : static_cast<double>(last_epoch());
  if (scale_fn_) return scale_fn_(x);
  if (mode_ == CyclicMode::triangular) return 1.0;
  return mode_ == CyclicMode::triangular2 ? 1 / std::pow(2.0, x - 1) : std::pow(gamma_, x);
}

std::vector<double> CyclicLR::rates() {
  const double cycles = static_cast<double>(last_epoch()) / total_size_;
  const double cycle = std::floor(1 + cycles);
  const double x = 1.0 + cycles - cycle;
  const double share = x <= step_ratio_ ? x / step_ratio_ : (x - 1) / (step_ratio_ - 1);
  const double scale = height(cycle);

  std::vector<double> rates;
  for (std::size_t i = 0; i < max_lrs_.size(); ++i)
    rates.push_back(base_lrs()[i] + (max_lrs_[i] - base_lrs()[i]) * share * scale);
  if (!cycle_momentum_) return rates;
  std::vector<double> momenta;
  for (std::size_t i = 0; i < max_lrs_.size(); ++i)
    momenta.push_back(momentum_.max[i] - (momentum_.max[i] - momentum_.base[i]) * share * scale);
  schedules::set_momenta(optimizer(), momenta);
  return rates;
}

void CyclicLR::list(schedules::ScheduleFields& fields) {
  fields.add("max_lrs", max_lrs_);
  fields.add("total_size", total_size_, {.least = 1});
  fields.add("step_ratio", step_ratio_, {.least = 0, .most = 1, .without_least = true});
  fields.add_choice("mode", mode_, {"triangular", "triangular2", "exp_range"});
  fields.add("gamma", gamma_);
  fields.add_choice("scale_mode", scale_mode_, {"cycle", "iterations"});
  fields.add("cycle_momentum", cycle_momentum_, obstacle_of(optimizer()));
  fields.begin_own();  // Python saves these only if in use.
  fields.add("base_momentums", momentum_.base);
  fields.add("max_momentums", momentum_.max);
}

namespace {

enum Corner : std::uint8_t { initial_lr, max_lr, min_lr };

struct Phase {
  Corner from;
  Corner to;
};

constexpr std::array<Phase, 2> two_phases{{{initial_lr, max_lr}, {max_lr, min_lr}}};
constexpr std::array<Phase, 3> three_phases{
    {{initial_lr, max_lr}, {max_lr, initial_lr}, {initial_lr, min_lr}}};

std::int64_t steps_of(const OneCycleLROptions& options) {
  if (options.total_steps != 0) return options.total_steps;
  require(options.epochs > 0 && options.steps_per_epoch > 0,
          "OneCycleLR: give total_steps, or both epochs and steps_per_epoch, of at least 1");
  return options.epochs * options.steps_per_epoch;
}

Optimizer& checked(Optimizer& optimizer, const OneCycleLROptions& options) {
  require(options.pct_start >= 0 && options.pct_start <= 1,
          "OneCycleLR: pct_start must be at least 0 and at most 1");
  require(options.div_factor > 0 && options.final_div_factor > 0,
          "OneCycleLR: div_factor and final_div_factor must be greater than 0");
  return optimizer;
}

std::vector<double> end_steps_of(const OneCycleLROptions& options, std::int64_t total_steps) {
  const auto total = static_cast<double>(total_steps);
  std::vector<double> ends{options.pct_start * total - 1};
  if (options.three_phase) ends.push_back(2 * options.pct_start * total - 2);
  ends.push_back(total - 1);
  return ends;
}

std::vector<double> quotients(std::vector<double> numbers, double divisor) {
  for (double& number : numbers) number /= divisor;
  return numbers;
}

}  // namespace

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : LRScheduler(checked(optimizer, options)),
      total_steps_(steps_of(options)),
      end_steps_(end_steps_of(options, total_steps_)),
      anneal_strategy_(options.anneal_strategy),
      cycle_momentum_(options.cycle_momentum),
      momentum_{.base = options.base_momentum.of(optimizer, "OneCycleLR: base_momentum"),
                .max = options.max_momentum.of(optimizer, "OneCycleLR: max_momentum")} {
  corners_[max_lr] = options.max_lr.of(optimizer, "OneCycleLR: max_lr");
  corners_[initial_lr] = quotients(corners_[max_lr], options.div_factor);
  corners_[min_lr] = quotients(corners_[initial_lr], options.final_div_factor);
  start();
  set_initial_lrs(corners_[initial_lr]);  // Last: a refused schedule must not change others.
}

double OneCycleLR::annealed(double from, double to, double share) const {
  if (anneal_strategy_ == AnnealStrategy::linear) return (to - from) * share + from;
  return to + (from - to) / 2.0 * (std::cos(pi * share) + 1);
}

std::vector<double> OneCycleLR::rates() {
  require(last_epoch() <= total_steps_, [&] {
    return "OneCycleLR: step " + std::to_string(last_epoch()) + " of " +
           std::to_string(total_steps_) + " was tried: total_steps is too small";
  });
  std::size_t phase = 0;
  double begin = 0;
  while (phase + 1 < end_steps_.size() && static_cast<double>(last_epoch()) > end_steps_[phase])
    begin = end_steps_[phase++];
  const double length = end_steps_[phase] - begin;
  require(length != 0, [&] {
    return "OneCycleLR: phase " + std::to_string(phase) + " has no steps: change pct_start";
  });
  const double share = (static_cast<double>(last_epoch()) - begin) / length;
  const auto [from, to] = end_steps_.size() == 2 ? two_phases[phase] : three_phases[phase];

  std::vector<double> rates;
  for (std::size_t i = 0; i < corners_[from].size(); ++i)
    rates.push_back(annealed(corners_[from][i], corners_[to][i], share));
  if (!cycle_momentum_) return rates;
  const auto& momenta_from = from == max_lr ? momentum_.base : momentum_.max;
  const auto& momenta_to = to == max_lr ? momentum_.base : momentum_.max;
  std::vector<double> momenta;
  for (std::size_t i = 0; i < corners_[from].size(); ++i)
    momenta.push_back(annealed(momenta_from[i], momenta_to[i], share));
  schedules::set_momenta(optimizer(), momenta);
  return rates;
}

// Python saves the last values in the param groups.
void OneCycleLR::list(schedules::ScheduleFields& fields) {
  fields.add("total_steps", total_steps_, 1);
  for (std::size_t phase = 0; phase < end_steps_.size(); ++phase) {
    std::string name = "_schedule_phases.";
    fields.add((name += std::to_string(phase)) += ".end_step", end_steps_[phase]);
  }
  fields.add_list("_schedule_phases", end_steps_.size());
  fields.add_choice("_anneal_func_type", anneal_strategy_, {"cos", "linear"});
  fields.add("cycle_momentum", cycle_momentum_, obstacle_of(optimizer()));
  fields.begin_own();
  fields.add("initial_lr", corners_[initial_lr]);
  fields.add("max_lr", corners_[max_lr]);
  fields.add("min_lr", corners_[min_lr]);
  fields.add("base_momentum", momentum_.base);
  fields.add("max_momentum", momentum_.max);
}

}  // namespace lockstep
