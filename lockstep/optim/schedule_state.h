// The state of a learning rate schedule. Learning rates themselves are the optimizer's.
//
// Errors, of wanted(): misuse for values that were not saved or are not such a state's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace lockstep {

// How many steps it has made, "step_count", is all that LibTorch's have; what a type of your own
// has besides is not here.
// Lifetime: `schedule` outlives it.
LOCKSTEP_API std::unique_ptr<Stateful> schedule_state(torch::optim::LRScheduler& schedule);

// "best", "num_bad_epochs", "cooldown_counter" and "last_epoch".
LOCKSTEP_API std::unique_ptr<Stateful> schedule_state(
    torch::optim::ReduceLROnPlateauScheduler& schedule);

}  // namespace lockstep
