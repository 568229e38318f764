// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/schedule_state.h"

#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::optim::schedule_state_test {
namespace {

using test::fault_of;
using torch::optim::ReduceLROnPlateauScheduler;
using torch::optim::SGD;
using torch::optim::StepLR;

std::vector<at::Tensor> weights() { return {torch::zeros({1}, torch::requires_grad())}; }

double rate_of(const SGD& sgd) { return sgd.param_groups()[0].options().get_lr(); }

TEST(ScheduleState, AScheduleGoesOnWhereItWas) {
  SGD sgd(weights(), 1.0);
  StepLR schedule(sgd, 3, 0.5);
  for (int step = 0; step < 4; ++step) schedule.step();
  const StateDict saved = state_of(schedule)->state_dict();
  EXPECT_EQ(saved.values.at("step_count"), StateValue(std::int64_t{4}));

  SGD other(weights(), rate_of(sgd));  // The optimizer's state holds the rate.
  StepLR goes_on(other, 3, 0.5);
  test::load(*state_of(goes_on), saved);
  for (int step = 4; step < 13; ++step) {
    schedule.step();
    goes_on.step();
    EXPECT_EQ(rate_of(other), rate_of(sgd)) << "in step " << step;
  }
  EXPECT_EQ(rate_of(sgd), 0.0625);
}

TEST(ScheduleState, ARateOnAPlateauIsReducedWhenItWouldHaveBeen) {
  const auto loss = [](int epoch) {
    return epoch < 3 ? 1.0F / static_cast<float>(epoch + 1) : 0.5F;
  };
  SGD sgd(weights(), 1.0);
  ReduceLROnPlateauScheduler schedule(sgd, ReduceLROnPlateauScheduler::min, 0.5, 3);
  for (int epoch = 0; epoch < 5; ++epoch) schedule.step(loss(epoch));
  const StateDict saved = state_of(schedule)->state_dict();
  EXPECT_EQ(saved.values.at("num_bad_epochs"), StateValue(std::int64_t{2}));
  EXPECT_EQ(saved.values.at("last_epoch"), StateValue(std::int64_t{5}));

  SGD other(weights(), rate_of(sgd));
  ReduceLROnPlateauScheduler goes_on(other, ReduceLROnPlateauScheduler::min, 0.5, 3);
  test::load(*state_of(goes_on), saved);
  for (int epoch = 5; epoch < 20; ++epoch) {
    schedule.step(loss(epoch));
    goes_on.step(loss(epoch));
    EXPECT_EQ(rate_of(other), rate_of(sgd)) << "in epoch " << epoch;
  }
  EXPECT_LT(rate_of(sgd), 0.2);
}

TEST(ScheduleState, RoundTripsBeforeTheFirstStep) {
  SGD sgd(weights(), 1.0);
  ReduceLROnPlateauScheduler schedule(sgd);
  const StateDict saved = state_of(schedule)->state_dict();
  EXPECT_EQ(saved.values.at("best"), StateValue(double{std::numeric_limits<float>::max()}));
  test::load(*state_of(schedule), saved);
  EXPECT_EQ(state_of(schedule)->state_dict().values, saved.values);
}

TEST(ScheduleState, RefusesWhatIsNoStateOfASchedule) {
  SGD sgd(weights(), 1.0);
  StepLR schedule(sgd, 3, 0.5);
  const auto refusal_of = [&](const StateValues& values) {
    std::string text;
    EXPECT_EQ(
        fault_of([&] { state_of(schedule)->wanted({.tensors = {}, .values = values}); }, &text),
        Fault::misuse);
    return text;
  };
  EXPECT_NE(refusal_of({}).find("step_count"), std::string::npos);
  EXPECT_NE(refusal_of({{"step_count", 2.0}}).find("step_count"), std::string::npos);
  EXPECT_NE(refusal_of({{"step_count", std::int64_t{-1}}}).find("-1"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::optim::schedule_state_test
