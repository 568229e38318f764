// The state of a learning rate schedule, without the rates, which belong to the optimizer's state.
// Errors: loading throws misuse for missing or foreign values.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// Saves the number of steps, "step_count": the whole state of LibTorch's schedules, but not of your
// own type. Lifetime: `schedule` outlives the result.
LOCKSTEP_API std::unique_ptr<Stateful> state_of(torch::optim::LRScheduler& schedule);
[[deprecated("use state_of()")]] inline std::unique_ptr<Stateful> schedule_state(
    torch::optim::LRScheduler& schedule) {
  return state_of(schedule);
}

// Saves "best", "num_bad_epochs", "cooldown_counter" and "last_epoch".
LOCKSTEP_API std::unique_ptr<Stateful> state_of(torch::optim::ReduceLROnPlateauScheduler& schedule);
[[deprecated("use state_of()")]] inline std::unique_ptr<Stateful> schedule_state(
    torch::optim::ReduceLROnPlateauScheduler& schedule) {
  return state_of(schedule);
}

}  // namespace lockstep
