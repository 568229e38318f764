// Follows Python's lr_scheduler.py: ReduceLROnPlateau.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/schedules/reduce_lr_on_plateau.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/toolkit/schedules/param_group_values.h"
#include "lockstep/toolkit/schedules/schedule_fields.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : optimizer_(optimizer),
      options_(options),
      min_lrs_(options.min_lr.of(optimizer, "ReduceLROnPlateau: min_lr")),
      best_(options.mode == PlateauMode::min ? infinity : -infinity),
      last_lr_(schedules::rates_of(optimizer)) {
  fields().require_valid();
}

void ReduceLROnPlateau::step(double metric) {
  ++last_epoch_;
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ > options_.patience) {
    reduce();
    cooldown_counter_ = options_.cooldown;
    num_bad_epochs_ = 0;
  }
  last_lr_ = schedules::rates_of(optimizer_);
}

void ReduceLROnPlateau::step(double metric, const ProcessGroup& group) {
  double sum = 0;
  for (const double each : all_gather_value(metric, group, {.label = "metric of a plateau"}))
    sum += each;
  step(sum / group.size());
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const double threshold = options_.threshold;
  const bool is_relative = options_.threshold_mode == ThresholdMode::rel;
  if (options_.mode == PlateauMode::min)
    return metric < (is_relative ? best_ * (1.0 - threshold) : best_ - threshold);
  return metric > (is_relative ? best_ * (threshold + 1.0) : best_ + threshold);
}

void ReduceLROnPlateau::reduce() {
  const std::size_t groups = optimizer_.param_groups().size();
  if (groups != min_lrs_.size() && options_.min_lr.is_list())
    min_lrs_ = options_.min_lr.of(optimizer_, "ReduceLROnPlateau: min_lr");
  min_lrs_.resize(groups, min_lrs_.front());
  std::vector<double> rates = schedules::rates_of(optimizer_);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const double reduced = std::max(rates[i] * options_.factor, min_lrs_[i]);
    if (rates[i] - reduced > options_.eps) rates[i] = reduced;
  }
  schedules::set_rates(optimizer_, rates);
}

schedules::ScheduleFields ReduceLROnPlateau::fields() {
  schedules::ScheduleFields fields("ReduceLROnPlateau");
  fields.add_choice("mode", options_.mode, {"min", "max"});
  fields.add("factor", options_.factor, {.most = 1, .without_most = true});
  fields.add("patience", options_.patience, 0);
  fields.add("threshold", options_.threshold);
  fields.add_choice("threshold_mode", options_.threshold_mode, {"rel", "abs"});
  fields.add("cooldown", options_.cooldown, 0);
  fields.add("min_lrs", min_lrs_, optimizer_.param_groups().size());
  fields.add("eps", options_.eps);
  fields.add("best", best_);
  fields.add("num_bad_epochs", num_bad_epochs_, 0);
  fields.add("cooldown_counter", cooldown_counter_, 0);
  fields.add("last_epoch", last_epoch_, 0);
  fields.add("_last_lr", last_lr_, optimizer_.param_groups().size());
  return fields;
}

StateDict ReduceLROnPlateau::state_dict() { return {.tensors = {}, .values = fields().values()}; }

StateRequest ReduceLROnPlateau::wanted(const StateDict& saved) {
  fields().require_loadable(saved.values);
  return {};
}

void ReduceLROnPlateau::load_state_dict(StateDict state) { fields().load(state.values); }

}  // namespace lockstep
