// Follows Python's lr_scheduler.py: LRScheduler, SequentialLR and ChainedScheduler.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/schedules/lr_scheduler.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/schedules/param_group_values.h"
#include "lockstep/toolkit/schedules/schedule_fields.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

std::string name_of(const LRScheduler& schedule) { return c10::demangle(typeid(schedule).name()); }

void require_children(const char* name, const std::vector<LRScheduler*>& children) {
  require(!children.empty(),
          [&] { return std::string(name) + ": at least one schedule is needed"; });
  for (std::size_t i = 0; i < children.size(); ++i)
    require(children[i] != nullptr, [&] {
      return std::string(name) + ": the schedule at index " + std::to_string(i) +
             " is a null pointer";
    });
}

Optimizer& optimizer_of(const char* name, const std::vector<LRScheduler*>& children) {
  require_children(name, children);
  return children.front()->optimizer();
}

std::string prefix_of(std::size_t child) {
  std::string prefix = "_schedulers.";
  return prefix += std::to_string(child) + '.';
}

}  // namespace

LRScheduler::LRScheduler(Optimizer& optimizer)
    : torch::optim::LRScheduler(optimizer),
      optimizer_(optimizer),
      initial_lrs_(schedules::initial_rates(optimizer)) {
  base_lrs_ = *initial_lrs_;
  last_lr_ = base_lrs_;
}

void LRScheduler::set_initial_lrs(const std::vector<double>& rates) {
  base_lrs_ = *initial_lrs_ = rates;
}

void LRScheduler::start() {
  fields().require_valid();
  first_step();
}

// LibTorch's step() calls it, sets the rates, then counts the step.
std::vector<double> LRScheduler::get_lrs() {
  const std::size_t groups = optimizer_.param_groups().size();
  require(groups == base_lrs_.size(), [&] {
    return name_of(*this) + ": the optimizer has " + std::to_string(groups) +
           " param groups, and had " + std::to_string(base_lrs_.size()) +
           " when the schedule was made";
  });
  move_to(last_epoch_ + 1, &LRScheduler::rates);
  return last_lr_;
}

// A function of the program, or a child, may throw.
void LRScheduler::move_to(std::int64_t epoch, std::vector<double> (LRScheduler::*rates_there)()) {
  const std::int64_t before = std::exchange(last_epoch_, epoch);
  try {
    last_lr_ = (this->*rates_there)();
  } catch (...) {
    last_epoch_ = before;
    throw;
  }
}

void LRScheduler::first_step() {
  step_count_ = 0;
  is_starting_ = true;
  step();
  is_starting_ = false;
}

void LRScheduler::restart() {
  move_to(0, &LRScheduler::first_rates);
  schedules::set_rates(optimizer_, last_lr_);
}

schedules::ScheduleFields LRScheduler::fields() {
  schedules::ScheduleFields fields(name_of(*this));
  list_progress(fields);
  list(fields);
  return fields;
}

void LRScheduler::list_progress(schedules::ScheduleFields& fields) {
  fields.add("base_lrs", base_lrs_);
  fields.add("last_epoch", last_epoch_);
  fields.add("_step_count", step_count_, 0);
  fields.add("_last_lr", last_lr_);
}

StateDict LRScheduler::state_dict() { return {.tensors = {}, .values = fields().values()}; }

StateRequest LRScheduler::wanted(const StateDict& saved) {
  fields().require_loadable(saved.values);
  return {};
}

void LRScheduler::load_state_dict(StateDict state) { fields().load(state.values); }

CompositeLRScheduler::CompositeLRScheduler(const char* name, Optimizer& optimizer,
                                           std::vector<LRScheduler*> children)
    : LRScheduler(optimizer), children_(std::move(children)) {
  require_children(name, children_);
  for (std::size_t i = 0; i < children_.size(); ++i)
    require(&children_[i]->optimizer() == &optimizer, [&] {
      return std::string(name) + ": all schedules must belong to the same optimizer, but the " +
             name_of(*children_[i]) + " at index " + std::to_string(i) + " has another one";
    });
  last_epoch_ = 0;
  last_lr_ = get_current_lrs();
}

// Python's composite schedules lack base rates and a count of steps.
void CompositeLRScheduler::list_progress(schedules::ScheduleFields& fields) {
  fields.add("_last_lr", last_lr_);
  fields.add_list("_schedulers", children_.size());
  for (std::size_t i = 0; i < children_.size(); ++i)
    fields.add_all(prefix_of(i), children_[i]->fields());
}

void CompositeLRScheduler::undo_start() {
  for (LRScheduler* const child : children_) child->undo_start();
}

SequentialLR::SequentialLR(Optimizer& optimizer, std::vector<LRScheduler*> schedulers,
                           std::vector<std::int64_t> milestones)
    : CompositeLRScheduler("SequentialLR", optimizer, std::move(schedulers)),
      milestones_(std::move(milestones)) {
  require(milestones_.size() + 1 == children().size(), [&] {
    return "SequentialLR: there must be one schedule more than milestones, but there are " +
           std::to_string(children().size()) + " schedules and " +
           std::to_string(milestones_.size()) + " milestones";
  });
  require(std::ranges::is_sorted(milestones_), "SequentialLR: milestones must rise");
  for (std::size_t i = 1; i < children().size(); ++i)
    require(dynamic_cast<const CompositeLRScheduler*>(children()[i]) == nullptr, [&] {
      return "SequentialLR: the " + name_of(*children()[i]) + " at index " + std::to_string(i) +
             " cannot begin at a milestone: list its schedules here instead";
    });
  schedules::set_rates(optimizer, *initial_lrs_);
  for (LRScheduler* const child : children()) child->undo_start();
  LRScheduler& first = *children()[child_at(0)];
  first.first_step();
  last_lr_ = first.last_lr_;
}

std::size_t SequentialLR::child_at(std::int64_t step) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(milestones_, step) -
                                  milestones_.begin());
}

std::vector<double> SequentialLR::rates() {
  const std::size_t i = child_at(last_epoch_);
  LRScheduler& child = *children()[i];
  if (i > 0 && milestones_[i - 1] == last_epoch_)
    child.restart();
  else
    child.step();
  return child.last_lr_;
}

void SequentialLR::list(schedules::ScheduleFields& fields) {
  fields.add("last_epoch", last_epoch_, 0);
  fields.add("_milestones", milestones_, schedules::Count::fixed);
}

ChainedScheduler::ChainedScheduler(std::vector<LRScheduler*> schedulers)
    : CompositeLRScheduler("ChainedScheduler", optimizer_of("ChainedScheduler", schedulers),
                           schedulers) {}

std::vector<double> ChainedScheduler::rates() {
  for (LRScheduler* const child : children()) child->step();
  return get_current_lrs();
}

void ChainedScheduler::list(schedules::ScheduleFields& fields) {
  fields.begin_own();
  fields.add("last_epoch", last_epoch_);
}

void ChainedScheduler::undo_start() {
  CompositeLRScheduler::undo_start();
  LRScheduler::undo_start();
}

}  // namespace lockstep
