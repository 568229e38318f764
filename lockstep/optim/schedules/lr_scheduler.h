// Learning rate schedules: their base class, and schedules that are made of others. schedules.h and
// cyclic_schedules.h have the single ones.
//
//   lockstep::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
//   lockstep::LinearLR warm_up(adam, {.start_factor = 1e-3, .total_iters = 500});
//   lockstep::CosineAnnealingLR cosine(adam, {.T_max = steps - 500});
//   lockstep::SequentialLR schedule(adam, {&warm_up, &cosine}, {500});
//   ...
//     adam.step();
//     schedule.step();
//   ...
//   state.add("schedule", schedule);  // A TrainingState saves the two children, too.
//
// Rates and momenta are those of Python's torch.optim.lr_scheduler, bit for bit; names are
// Python's, too. Either can resume from the other's state. Two things follow from this. A schedule
// sets the rates already when it is made, so make schedules before a checkpoint is loaded. And most
// schedules multiply the rate that they find in the optimizer: a rate that the program sets by hand
// stays in effect.
//
// The schedules of one optimizer share the rates that its param groups had before the first of them
// was made. Python keeps these in the groups, as "initial_lr"; here they live as long as one of the
// schedules. A group that was added later has the rate that the next schedule finds.
//
// Any optimizer will do, also sharded and shared ones. It and its number of param groups are fixed.
// Lifetime: the optimizer outlives its schedules, and children outlive what is made of them. All
// schedules of an optimizer must be gone before another one is made in its place, as by
// std::optional::emplace(): those of the new one would begin at the old one's initial rates.
// Thread safety: none; one training loop uses them. Schedules of different optimizers may be made
// in different threads.
// Errors: misuse, naming it, for an option that is out of range; and in step(), for a param group
// that was added to the optimizer after the schedule was made. A step that fails, also in a
// function of the program, is not counted and may be tried again.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep::optim {

class ScheduleFields;

}  // namespace lockstep::optim

namespace lockstep {

// step() is that of torch::optim::LRScheduler, so a schedule may be stepped through a reference to
// either class.
class LOCKSTEP_API LRScheduler : public torch::optim::LRScheduler, public Stateful {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  // The rates that the last step has set, one for each param group.
  const std::vector<double>& get_last_lr() const { return last_lr_; }

  // Steps since the schedule began; 0 when it is new. A child of a SequentialLR begins at its
  // milestone, and has -1 before. A SequentialLR that is the first child of another one is one step
  // ahead, as in Python. Python's ChainedScheduler has none: after its state was loaded, this goes
  // on from the present value.
  std::int64_t last_epoch() const { return last_epoch_; }

  torch::optim::Optimizer& optimizer() const { return optimizer_; }

  // Python's state_dict() without functions: hyperparameters and progress. A loaded hyperparameter
  // replaces that of the constructor. Rates and momenta themselves belong to the optimizer's state.
  StateDict state_dict() override;

  // Ignores values that a schedule of this type does not have.
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 protected:
  explicit LRScheduler(torch::optim::Optimizer& optimizer);

  // Checks the options and makes the first step. Constructors call it at their end.
  void start();

  // Returns the rates of step last_epoch(), which may follow from the present ones.
  virtual std::vector<double> rates() = 0;

  // The rates of step 0 if another schedule has come before. They follow from the initial rates
  // where Python has a closed form, and otherwise from the last ones of that schedule.
  virtual std::vector<double> first_rates() { return rates(); }

  // Lists the members that make the state, except those of all schedules.
  virtual void list(optim::ScheduleFields& /*fields*/) {}

  // Takes back the constructor's step.
  virtual void undo_start() { --last_epoch_; }

  bool is_starting() const { return is_starting_; }

  // The rates to which those of the steps refer.
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  void set_base_lrs(std::vector<double> rates) { base_lrs_ = std::move(rates); }

  // Sets the base rates, also those of schedules of the optimizer that are made later.
  void set_initial_lrs(const std::vector<double>& rates);

 private:
  friend class ChainedScheduler;
  friend class CompositeLRScheduler;
  friend class SequentialLR;

  std::vector<double> get_lrs() final;
  void first_step();
  void restart();
  void move_to(std::int64_t epoch, std::vector<double> (LRScheduler::*rates_there)());
  optim::ScheduleFields fields();
  virtual void list_progress(optim::ScheduleFields& fields);

  torch::optim::Optimizer& optimizer_;
  bool is_starting_ = false;
  std::vector<double> base_lrs_;
  std::int64_t last_epoch_ = -1;
  std::vector<double> last_lr_;
  const std::shared_ptr<std::vector<double>> initial_lrs_;  // Shared by the optimizer's schedules.
};

// A schedule that steps others. Their states are part of its own.
class LOCKSTEP_API CompositeLRScheduler : public LRScheduler {
 protected:
  // `name` begins messages.
  // Errors: misuse for no children, a null pointer, and children of another optimizer.
  CompositeLRScheduler(const char* name, torch::optim::Optimizer& optimizer,
                       std::vector<LRScheduler*> children);

  void undo_start() override;
  const std::vector<LRScheduler*>& children() const { return children_; }

 private:
  void list_progress(optim::ScheduleFields& fields) final;

  const std::vector<LRScheduler*> children_;
};

// Steps one child after the other: child i + 1 begins at step milestones[i], from the initial rate.
// A MultiplicativeLR and a SWALR begin at the last rate of the child before, as in Python. After it
// is made, step this schedule only.
//
// A ReduceLROnPlateau cannot be a child, because it needs a metric: this does not compile. Step it
// beside a schedule that leaves the rate alone once it is through, such as LinearLR.
// Errors: misuse unless there is one child more than milestones, in rising order, which Python does
// not require; and for a SequentialLR or ChainedScheduler as a later child, which Python refuses at
// the milestone.
class LOCKSTEP_API SequentialLR : public CompositeLRScheduler {
 public:
  SequentialLR(torch::optim::Optimizer& optimizer, std::vector<LRScheduler*> schedulers,
               std::vector<std::int64_t> milestones);

 private:
  std::vector<double> rates() override;
  void list(optim::ScheduleFields& fields) override;
  std::size_t child_at(std::int64_t step) const;

  std::vector<std::int64_t> milestones_;
};

// Steps all children in each step, one after the other: factors multiply. If a step fails in one of
// them, those before it have made it.
class LOCKSTEP_API ChainedScheduler : public CompositeLRScheduler {
 public:
  explicit ChainedScheduler(std::vector<LRScheduler*> schedulers);

 private:
  std::vector<double> rates() override;
  void list(optim::ScheduleFields& fields) override;
  void undo_start() override;
};

}  // namespace lockstep
