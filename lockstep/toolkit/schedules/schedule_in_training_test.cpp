// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "lockstep/toolkit/schedules/reduce_lr_on_plateau.h"
#include "lockstep/toolkit/schedules/schedules.h"
#include "lockstep/train/training_state.h"

namespace lockstep::train::schedule_in_training_test {
namespace {

// Saved only by its number of steps, it would continue with the option of the new object.
TEST(ScheduleInTraining, HasItsWholeStateThroughAReferenceToLibTorchsClass) {
  torch::nn::Linear net{4, 2};
  torch::optim::Adam adam{net->parameters(), 0.01};
  StepLR schedule(adam, {.step_size = 3});
  ReduceLROnPlateau plateau(adam);
  torch::optim::LRScheduler& base = schedule;
  TrainingState state;
  state.add("schedule", schedule);
  state.add("base", base);
  state.add("plateau", plateau);
  for (const auto& [name, part] : state.parts()) {
    const StateValues values = part->state_dict().values;
    EXPECT_TRUE(values.contains(name == "plateau" ? "patience" : "step_size")) << name;
    EXPECT_TRUE(values.contains("last_epoch")) << name;
  }
}

}  // namespace
}  // namespace lockstep::train::schedule_in_training_test
