// After Python's lr_scheduler.py: LRScheduler, SequentialLR and ChainedScheduler.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/schedules/lr_scheduler.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/optim/schedules/param_group_values.h"
#include "lockstep/optim/schedules/schedule_fields.h"

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

// --- LRScheduler ---------------------------------------------------------------------------------

LRScheduler::LRScheduler(Optimizer& optimizer)
    : torch::optim::LRScheduler(optimizer),
      initial_lrs_(optim::initial_rates(optimizer)),
      optimizer_(optimizer) {
  base_lrs_ = *initial_lrs_;
  last_lr_ = base_lrs_;
}

void LRScheduler::start() {
  optim::ScheduleFields fields(name_of(*this));
  list(fields);
  fields.require_valid();
  first_step();
}

// LibTorch's step() calls it, sets the rates that it returns, and then counts the step.
std::vector<double> LRScheduler::get_lrs() {
  const std::size_t groups = optimizer_.param_groups().size();
  require(groups == base_lrs_.size(), [&] {
    return name_of(*this) + ": the optimizer has " + std::to_string(groups) +
           " param groups, and had " + std::to_string(base_lrs_.size()) +
           " when the schedule was made";
  });
  ++last_epoch_;
  last_lr_ = rates();
  return last_lr_;
}

void LRScheduler::first_step() {
  step_count_ = 0;
  is_starting_ = true;
  step();
  is_starting_ = false;
}

void LRScheduler::restart() {
  last_epoch_ = 0;
  last_lr_ = first_rates();
  optim::set_rates(optimizer_, last_lr_);
}

void LRScheduler::list(optim::ScheduleFields& fields) {
  fields.add("base_lrs", base_lrs_);
  fields.add("last_epoch", last_epoch_);
  fields.add("_step_count", step_count_, 0);
  fields.add("_last_lr", last_lr_);
}

StateDict LRScheduler::state_dict() {
  optim::ScheduleFields fields(name_of(*this));
  list(fields);
  return {.tensors = {}, .values = fields.values()};
}

StateRequest LRScheduler::wanted(const StateDict& saved) {
  optim::ScheduleFields fields(name_of(*this));
  list(fields);
  fields.require_loadable(saved.values);
  return {};
}

void LRScheduler::load_state_dict(StateDict state) {
  optim::ScheduleFields fields(name_of(*this));
  list(fields);
  fields.load(state.values);
}

// --- CompositeLRScheduler ------------------------------------------------------------------------

CompositeLRScheduler::CompositeLRScheduler(const char* name, Optimizer& optimizer,
                                           std::vector<LRScheduler*> children)
    : LRScheduler(optimizer), children_(std::move(children)) {
  require_children(name, children_);
  for (std::size_t i = 0; i < children_.size(); ++i)
    require(&children_[i]->optimizer() == &optimizer, [&] {
      return std::string(name) + ": all schedules must belong to the same optimizer, but the " +
             name_of(*children_[i]) + " at index " + std::to_string(i) + " has another one";
    });
}

StateRequest CompositeLRScheduler::wanted(const StateDict& saved) {
  const std::string more = prefix_of(children_.size());
  const auto found = saved.values.lower_bound(more);
  require(found == saved.values.end() || !found->first.starts_with(more), [&] {
    return name_of(*this) + ": more schedules were saved than it has, which are " +
           std::to_string(children_.size());
  });
  return LRScheduler::wanted(saved);
}

void CompositeLRScheduler::list(optim::ScheduleFields& fields) {
  fields.add("_last_lr", last_lr_);
  for (std::size_t i = 0; i < children_.size(); ++i) {
    optim::ScheduleFields of_child(name_of(*children_[i]));
    children_[i]->list(of_child);
    fields.add_all(prefix_of(i), of_child);
  }
}

void CompositeLRScheduler::undo_start() {
  for (LRScheduler* const child : children_) child->undo_start();
}

// --- SequentialLR --------------------------------------------------------------------------------

SequentialLR::SequentialLR(Optimizer& optimizer, std::vector<LRScheduler*> schedulers,
                           std::vector<std::int64_t> milestones)
    : CompositeLRScheduler("SequentialLR", optimizer, std::move(schedulers)),
      milestones_(std::move(milestones)) {
  require(milestones_.size() + 1 == children_.size(), [&] {
    return "SequentialLR: there must be one schedule more than milestones, but there are " +
           std::to_string(children_.size()) + " schedules and " +
           std::to_string(milestones_.size()) + " milestones";
  });
  require(std::ranges::is_sorted(milestones_), "SequentialLR: milestones must rise");
  for (std::size_t i = 1; i < children_.size(); ++i)
    require(dynamic_cast<const CompositeLRScheduler*>(children_[i]) == nullptr, [&] {
      return "SequentialLR: the " + name_of(*children_[i]) + " at index " + std::to_string(i) +
             " cannot begin at a milestone: list its schedules here instead";
    });
  last_epoch_ = 0;
  optim::set_rates(optimizer, *initial_lrs_);
  for (LRScheduler* const child : children_) child->undo_start();
  LRScheduler& first = *children_[child_at(0)];
  first.first_step();
  last_lr_ = first.last_lr_;
}

std::size_t SequentialLR::child_at(std::int64_t step) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(milestones_, step) -
                                  milestones_.begin());
}

std::vector<double> SequentialLR::rates() {
  const std::size_t i = child_at(last_epoch_);
  LRScheduler& child = *children_[i];
  if (i > 0 && milestones_[i - 1] == last_epoch_)
    child.restart();
  else
    child.step();
  return child.last_lr_;
}

void SequentialLR::list(optim::ScheduleFields& fields) {
  fields.add("last_epoch", last_epoch_, 0);
  fields.add("_milestones", milestones_, optim::Count::fixed);
  CompositeLRScheduler::list(fields);
}

// --- ChainedScheduler ----------------------------------------------------------------------------

ChainedScheduler::ChainedScheduler(std::vector<LRScheduler*> schedulers)
    : CompositeLRScheduler("ChainedScheduler", optimizer_of("ChainedScheduler", schedulers),
                           schedulers) {
  last_lr_ = get_current_lrs();
}

std::vector<double> ChainedScheduler::rates() {
  for (LRScheduler* const child : children_) child->step();
  return get_current_lrs();
}

}  // namespace lockstep
