// Learning rate schedules: the base class, and combinations of schedules. The single schedules are
// in schedules.h and cyclic_schedules.h; programs are in docs/guide/learning-rates.md.
//
//   lockstep::LinearLR warm_up(adam, {.start_factor = 1e-3, .total_iters = 500});
//   lockstep::CosineAnnealingLR cosine(adam, {.T_max = steps - 500});
//   lockstep::SequentialLR schedule(adam, {&warm_up, &cosine}, {500});
//   schedule.step();  // After each adam.step().
//
// Names, rates and momenta are those of Python's torch.optim.lr_scheduler, bit for bit. Either can
// resume from the other's state. The constructor sets rates, so create schedules before loading a
// checkpoint.
//
// Lifetime: the optimizer outlives its schedules, and children outlive their parents. Destroy all
// schedules of an optimizer before creating another optimizer at its address.
// Thread safety: none. Different threads may create schedules of different optimizers.

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

// For any optimizer whose number of param groups is fixed. It may also be stepped through a
// reference to torch::optim::LRScheduler.
//
// The schedules of an optimizer share its initial rates: those before the first schedule. They are
// kept as long as one of the schedules exists. A group that was added later has the rate that the
// next schedule finds.
//
// Errors: misuse, naming it, for an option that is out of range. step(): misuse for a param group
// that was added after the schedule was created. A step that fails, also in a function of the
// program, is not counted and may be repeated.
class LOCKSTEP_API LRScheduler : public torch::optim::LRScheduler, public Stateful {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  const std::vector<double>& get_last_lr() const { return last_lr_; }

  // Steps since the schedule began; 0 initially. A child of a SequentialLR has -1 before its
  // milestone. A SequentialLR as first child of another is one step ahead, as in Python. Python's
  // ChainedScheduler does not save it: loading its state keeps the present value.
  std::int64_t last_epoch() const { return last_epoch_; }

  torch::optim::Optimizer& optimizer() const { return optimizer_; }

  // Python's state_dict() without functions: hyperparameters, which replace the constructor's, and
  // progress. Rates and momenta belong to the optimizer's state.
  StateDict state_dict() override;

  // Ignores values that a schedule of this type does not have.
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 protected:
  explicit LRScheduler(torch::optim::Optimizer& optimizer);

  // Checks the options and makes the first step. Call it at the end of a constructor.
  void start();

  // Returns the rates of step last_epoch(), which may depend on the present ones.
  virtual std::vector<double> rates() = 0;

  // The rates of step 0 if another schedule ran before. They derive from the initial rates where
  // Python has a closed form, and otherwise from the last rates of that schedule.
  virtual std::vector<double> first_rates() { return rates(); }

  virtual void list(optim::ScheduleFields& /*fields*/) {}

  virtual void undo_start() { --last_epoch_; }

  bool is_starting() const { return is_starting_; }

  const std::vector<double>& base_lrs() const { return base_lrs_; }
  void set_base_lrs(std::vector<double> rates) { base_lrs_ = std::move(rates); }

  // Sets the base rates, also for schedules of the optimizer that are created later.
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

// A schedule that steps its children. Their states are part of its state.
class LOCKSTEP_API CompositeLRScheduler : public LRScheduler {
 protected:
  // `name` begins messages. Errors: misuse for no children, a null pointer, and children of another
  // optimizer.
  CompositeLRScheduler(const char* name, torch::optim::Optimizer& optimizer,
                       std::vector<LRScheduler*> children);

  void undo_start() override;
  const std::vector<LRScheduler*>& children() const { return children_; }

 private:
  void list_progress(optim::ScheduleFields& fields) final;

  const std::vector<LRScheduler*> children_;
};

// Steps one child after the other: child i + 1 begins at step milestones[i], from the initial rate.
// A MultiplicativeLR and a SWALR begin at the previous child's last rate, as in Python. Afterwards
// step only this schedule. A ReduceLROnPlateau needs a metric and cannot be a child.
//
// Errors: misuse unless there is one child more than milestones, in rising order. Also for a
// SequentialLR or ChainedScheduler as a later child, which Python refuses at the milestone.
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

// Steps all children in each step: factors multiply. If a child's step fails, the earlier children
// have made theirs.
class LOCKSTEP_API ChainedScheduler : public CompositeLRScheduler {
 public:
  explicit ChainedScheduler(std::vector<LRScheduler*> schedulers);

 private:
  std::vector<double> rates() override;
  void list(optim::ScheduleFields& fields) override;
  void undo_start() override;
};

}  // namespace lockstep
