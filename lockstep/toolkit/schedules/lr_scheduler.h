// The base class of learning rate schedules, and combinations. Programs:
// docs/guide/learning-rates.md.
//
//   lockstep::LinearLR warm_up(adam, {.start_factor = 1e-3, .total_iters = 500});
//   lockstep::CosineAnnealingLR cosine(adam, {.T_max = steps - 500});
//   lockstep::SequentialLR schedule(adam, {&warm_up, &cosine}, {500});
//   schedule.step();  // After each adam.step().
//
// Rates and momenta equal those of Python's torch.optim.lr_scheduler, bit for bit. Options and
// state entries have Python's names. Each language can resume from the other's state. Create
// schedules before loading a checkpoint.
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

namespace lockstep::schedules {

class ScheduleFields;

}  // namespace lockstep::schedules

namespace lockstep {

// For any optimizer whose number of param groups is fixed. torch::optim::LRScheduler& can step it.
//
// The schedules of an optimizer share its initial rates: the rates before the first schedule, kept
// while a schedule exists. A later param group has the rate that the next schedule finds.
//
// Errors: misuse for an option out of range. step(): misuse for a param group that was added after
// the schedule was created. A failed step, also in a function of the program, is not counted. It
// may be repeated, except in a ChainedScheduler.
class LOCKSTEP_API LRScheduler : public torch::optim::LRScheduler, public Stateful {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  const std::vector<double>& get_last_lr() const { return last_lr_; }

  // Steps since the schedule began; 0 initially. A child of a SequentialLR has -1 before its
  // milestone. A SequentialLR as first child of another is one step ahead, as in Python. A state of
  // Python's ChainedScheduler lacks this value; loading keeps the present one.
  std::int64_t last_epoch() const { return last_epoch_; }

  torch::optim::Optimizer& optimizer() const { return optimizer_; }

  // Python's state_dict() without functions: progress, and hyperparameters, which replace the
  // constructor's. Rates and momenta belong to the optimizer's state.
  StateDict state_dict() override;

  // Ignores unknown values. Errors: misuse for missing or invalid ones, and for more children.
  StateRequest wanted(const StateDict& saved) override;
  void load_state_dict(StateDict state) override;

 protected:
  explicit LRScheduler(torch::optim::Optimizer& optimizer);

  // Checks the options and makes the first step. Call it last in a constructor.
  void start();

  // The rates of step last_epoch(). May depend on the present rates.
  virtual std::vector<double> rates() = 0;

  // The rates of step 0 if another schedule ran before. SequentialLR describes where
  // they begin.
  virtual std::vector<double> first_rates() { return rates(); }

  virtual void list(schedules::ScheduleFields& /*fields*/) {}

  virtual void undo_start() { --last_epoch_; }

  bool is_starting() const { return is_starting_; }

  const std::vector<double>& base_lrs() const { return base_lrs_; }
  void set_base_lrs(std::vector<double> rates) { base_lrs_ = std::move(rates); }

  // Sets the base rates of this and later schedules of the optimizer.
  void set_initial_lrs(const std::vector<double>& rates);

 private:
  friend class ChainedScheduler;
  friend class CompositeLRScheduler;
  friend class SequentialLR;

  std::vector<double> get_lrs() final;
  void first_step();
  void restart();
  void move_to(std::int64_t epoch, std::vector<double> (LRScheduler::*rates_there)());
  schedules::ScheduleFields fields();
  virtual void list_progress(schedules::ScheduleFields& fields);

  torch::optim::Optimizer& optimizer_;
  bool is_starting_ = false;
  std::vector<double> base_lrs_;
  std::int64_t last_epoch_ = -1;
  std::vector<double> last_lr_;
  const std::shared_ptr<std::vector<double>> initial_lrs_;  // Shared by schedules.
};

// Steps its children. Its state includes theirs.
class LOCKSTEP_API CompositeLRScheduler : public LRScheduler {
 protected:
  // `name` begins messages. Errors: misuse for no children, a null pointer, and children of another
  // optimizer.
  CompositeLRScheduler(const char* name, torch::optim::Optimizer& optimizer,
                       std::vector<LRScheduler*> children);

  void undo_start() override;
  const std::vector<LRScheduler*>& children() const { return children_; }

 private:
  void list_progress(schedules::ScheduleFields& fields) final;

  const std::vector<LRScheduler*> children_;
};

// Steps one child after the other: child i + 1 begins at step milestones[i], from the initial rate.
// A MultiplicativeLR and a SWALR begin at the previous child's last rate, as in Python. Step only
// this schedule afterwards. A ReduceLROnPlateau needs a metric and cannot be a child.
//
// Errors: misuse unless milestones are sorted and one fewer than children. Misuse for a later child
// that is a SequentialLR or ChainedScheduler, which Python refuses at the milestone.
class LOCKSTEP_API SequentialLR : public CompositeLRScheduler {
 public:
  SequentialLR(torch::optim::Optimizer& optimizer, std::vector<LRScheduler*> schedulers,
               std::vector<std::int64_t> milestones);

 private:
  std::vector<double> rates() override;
  void list(schedules::ScheduleFields& fields) override;
  std::size_t child_at(std::int64_t step) const;

  std::vector<std::int64_t> milestones_;
};

// Steps all children in each step: factors multiply. A failed step of a child leaves the earlier
// children stepped.
class LOCKSTEP_API ChainedScheduler : public CompositeLRScheduler {
 public:
  explicit ChainedScheduler(std::vector<LRScheduler*> schedulers);

 private:
  std::vector<double> rates() override;
  void list(schedules::ScheduleFields& fields) override;
  void undo_start() override;
};

}  // namespace lockstep
