// tests/python/schedules_test.py compares rates and states with Python's.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/schedules/schedules.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/toolkit/schedules/cyclic_schedules.h"
#include "lockstep/toolkit/schedules/lr_scheduler.h"
#include "lockstep/toolkit/schedules/reduce_lr_on_plateau.h"
#include "lockstep/toolkit/schedules/scaled_learning_rate.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::schedules::schedules_test {
namespace {

using test::fault_of;
using torch::optim::AdamOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

std::vector<at::Tensor> weights() { return {torch::zeros({1}, torch::requires_grad())}; }

SGD sgd_of(const std::vector<double>& rates) {
  std::vector<OptimizerParamGroup> groups;
  for (const double rate : rates)
    groups.emplace_back(weights(), std::make_unique<SGDOptions>(rate));
  return SGD(groups, SGDOptions(1));
}

double rate_of(const torch::optim::Optimizer& optimizer, std::size_t group = 0) {
  return optimizer.param_groups()[group].options().get_lr();
}

template <class Schedule>
std::vector<double> rates_of_steps(Schedule& schedule, int steps) {
  std::vector<double> rates;
  for (int step = 0; step < steps; ++step) {
    schedule.step();
    rates.push_back(schedule.get_last_lr().front());
  }
  return rates;
}

std::string refusal_of(const std::function<void()>& call) {
  std::string text;
  EXPECT_EQ(fault_of(call, &text), Fault::misuse);
  return text;
}

void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

// --- Steps ---------------------------------------------------------------------------------------

TEST(Schedules, AReferenceToLibTorchsClassStepsAsTheScheduleItself) {
  SGD sgd = sgd_of({0.1}), other = sgd_of({0.1});
  LinearLR first(sgd, {.total_iters = 3}), its_first(other, {.total_iters = 3});
  CosineAnnealingLR second(sgd, {.T_max = 7}), its_second(other, {.T_max = 7});
  SequentialLR schedule(sgd, {&first, &second}, {3});
  SequentialLR its_schedule(other, {&its_first, &its_second}, {3});
  torch::optim::LRScheduler& base = its_schedule;
  for (int step = 0; step < 20; ++step) {
    schedule.step();
    base.step();
    EXPECT_EQ(rate_of(other), rate_of(sgd)) << "in step " << step;
  }
  EXPECT_EQ(its_schedule.state_dict().values, schedule.state_dict().values);
}

TEST(Schedules, ARateThatTheProgramSetsStaysInEffect) {
  SGD sgd = sgd_of({1.0, 1.0});
  StepLR schedule(sgd, {.step_size = 3, .gamma = 0.5});
  sgd.param_groups()[1].options().set_lr(8.0);
  for (int step = 0; step < 6; ++step) schedule.step();
  EXPECT_EQ(rate_of(sgd, 0), 0.25);
  EXPECT_EQ(rate_of(sgd, 1), 2.0);
  EXPECT_EQ(schedule.get_last_lr(), (std::vector{0.25, 2.0}));
}

TEST(Schedules, SchedulesOfOneOptimizerBeginAtTheRatesBeforeTheFirst) {
  SGD sgd = sgd_of({0.5});
  std::optional<ConstantLR> first(std::in_place, sgd, ConstantLROptions{.factor = 0.25});
  EXPECT_EQ(rate_of(sgd), 0.125);
  LambdaLR second(sgd, [](std::int64_t) { return 1.0; });
  EXPECT_EQ(rate_of(sgd), 0.5);
}

TEST(Schedules, InitialRatesAreForgottenWithTheLastSchedule) {
  SGD sgd = sgd_of({0.5});
  { const ConstantLR schedule(sgd, {.factor = 0.25}); }
  const LambdaLR schedule(sgd, [](std::int64_t) { return 1.0; });
  EXPECT_EQ(rate_of(sgd), 0.125);
}

TEST(Schedules, LastEpochCountsTheStepsOfSchedulesMadeOfOthersToo) {
  SGD sgd = sgd_of({0.5});
  LinearLR first(sgd), second(sgd), third(sgd);
  ChainedScheduler chain({&first, &second});
  EXPECT_EQ(chain.last_epoch(), 0);
  for (int step = 0; step < 3; ++step) chain.step();
  EXPECT_EQ(chain.last_epoch(), 3);

  SGD other = sgd_of({0.5});
  LinearLR its_first(other), its_second(other), its_third(other);
  ChainedScheduler its_chain({&its_first, &its_second});
  SequentialLR sequence(other, {&its_chain, &its_third}, {2});
  EXPECT_EQ(its_chain.last_epoch(), 0);
  EXPECT_EQ(its_third.last_epoch(), -1);
  for (int step = 0; step < 3; ++step) sequence.step();
  EXPECT_EQ(sequence.last_epoch(), 3);
  EXPECT_EQ(its_chain.last_epoch(), 1);
  EXPECT_EQ(its_third.last_epoch(), 1);

  test::load(its_chain, chain.state_dict());
  EXPECT_EQ(its_chain.last_epoch(), 3);
}

TEST(Schedules, AStepThatFailsIsNotCountedAndMayBeTriedAgain) {
  SGD sgd = sgd_of({1.0});
  bool fails = false;
  const auto factor = [&fails](std::int64_t epoch) {
    if (fails) throw std::runtime_error("no factor");
    return static_cast<double>(1 + epoch);
  };
  ConstantLR first(sgd);
  LambdaLR second(sgd, factor);
  SequentialLR schedule(sgd, {&first, &second}, {2});
  const auto fail = [&] {
    const StateDict before = schedule.state_dict();
    const double rate = rate_of(sgd);
    fails = true;
    EXPECT_THROW(schedule.step(), std::runtime_error);
    fails = false;
    EXPECT_EQ(schedule.state_dict().values, before.values);
    EXPECT_EQ(rate_of(sgd), rate);
  };
  schedule.step();
  fail();  // At the milestone.
  schedule.step();
  EXPECT_EQ(rate_of(sgd), 1.0);
  fail();
  schedule.step();
  EXPECT_EQ(rate_of(sgd), 2.0);
}

TEST(Schedules, MomentumCyclesInOptionsOfEveryType) {
  struct Options : torch::optim::OptimizerCloneableOptions<Options> {
    double rate = 0.1, momentum = 0.5;
    double get_lr() const override { return rate; }
    void set_lr(const double lr) override { rate = lr; }
    void serialize(torch::serialize::OutputArchive& archive) const override {
      archive.write("lr", c10::IValue(rate));
      archive.write("momentum", c10::IValue(momentum));
    }
    void serialize(torch::serialize::InputArchive& archive) override {
      c10::IValue value;
      archive.read("lr", value);
      rate = value.toDouble();
      archive.read("momentum", value);
      momentum = value.toDouble();
    }
  };
  struct Own : torch::optim::Optimizer {
    Own() : Optimizer({OptimizerParamGroup(weights())}, std::make_unique<Options>()) {}
    torch::Tensor step(LossClosure) override { return {}; }
  };
  Own own;
  SGD sgd = sgd_of({0.1});
  CyclicLR schedule(own, {.base_lr = 0.1, .max_lr = 1.0, .step_size_up = 4});
  CyclicLR its_schedule(sgd, {.base_lr = 0.1, .max_lr = 1.0, .step_size_up = 4});
  for (int step = 0; step < 11; ++step) {
    schedule.step();
    its_schedule.step();
    EXPECT_EQ(static_cast<const Options&>(own.param_groups()[0].options()).momentum,
              static_cast<const SGDOptions&>(sgd.param_groups()[0].options()).momentum());
    EXPECT_EQ(rate_of(own), rate_of(sgd));
  }
}

// --- ReduceLROnPlateau ---------------------------------------------------------------------------

TEST(Schedules, RanksReduceTheirRatesTogetherAtTheMeanOfTheirMetrics) {
  // Rank 0 alone would never reduce its rate, rank 1 always.
  const auto metric_of = [](int rank, int epoch) {
    return rank == 0 ? 1.0 / (1 + epoch) : 1.0 + 0.01 * (epoch % 7);
  };
  SGD alone = sgd_of({1.0});
  ReduceLROnPlateau expected(alone, {.factor = 0.5, .patience = 2});
  for (int epoch = 0; epoch < 60; ++epoch)
    expected.step((metric_of(0, epoch) + metric_of(1, epoch)) / 2);
  EXPECT_LT(rate_of(alone), 0.1);
  run_in_process(2, [&](ProcessGroup& world) {
    SGD sgd = sgd_of({1.0});
    ReduceLROnPlateau plateau(sgd, {.factor = 0.5, .patience = 2});
    for (int epoch = 0; epoch < 60; ++epoch) plateau.step(metric_of(world.rank(), epoch), world);
    EXPECT_EQ(rate_of(sgd), rate_of(alone));
    EXPECT_EQ(plateau.state_dict().values, expected.state_dict().values);
  });
}

TEST(Schedules, APlateauAcceptsANewParamGroupUnlessLimitsAreListed) {
  SGD sgd = sgd_of({1.0});
  ReduceLROnPlateau one(sgd, {.factor = 0.5, .patience = 0});
  ReduceLROnPlateau listed(sgd, {.factor = 0.5, .patience = 0, .min_lr = {0.1}});
  sgd.add_param_group(OptimizerParamGroup(weights(), std::make_unique<SGDOptions>(4.0)));
  for (int epoch = 0; epoch < 2; ++epoch) one.step(1.0);
  EXPECT_EQ(rate_of(sgd, 1), 2.0);
  listed.step(1.0);
  expect_in("2 param groups", refusal_of([&] { listed.step(1.0); }));
}

TEST(Schedules, APlateauWithANewParamGroupIsResumed) {
  SGD sgd = sgd_of({1.0}), other = sgd_of({1.0}), without = sgd_of({1.0});
  const ReduceLROnPlateauOptions options{.factor = 0.5, .patience = 0, .min_lr = 0.3};
  ReduceLROnPlateau plateau(sgd, options);
  ReduceLROnPlateau resumed(other, {.factor = 0.1, .min_lr = 0.9}), refuses(without, options);
  const auto add_group_to = [](SGD& optimizer) {
    optimizer.add_param_group(OptimizerParamGroup(weights(), std::make_unique<SGDOptions>(4.0)));
  };
  add_group_to(sgd);
  add_group_to(other);
  test::load(resumed, plateau.state_dict());
  for (int epoch = 0; epoch < 2; ++epoch) plateau.step(1.0);
  test::load(resumed, plateau.state_dict());
  EXPECT_EQ(resumed.state_dict().values, plateau.state_dict().values);
  for (int epoch = 0; epoch < 20; ++epoch) resumed.step(1.0);
  EXPECT_EQ(rate_of(other, 0), 0.3);
  EXPECT_EQ(rate_of(other, 1), 0.3);
  expect_in("min_lrs has 2 numbers instead of 1",
            refusal_of([&] { refuses.wanted(plateau.state_dict()); }));
}

// A plateau needs a metric.
static_assert(!std::is_convertible_v<ReduceLROnPlateau*, LRScheduler*>);
static_assert(!std::is_convertible_v<ReduceLROnPlateau*, torch::optim::LRScheduler*>);

// --- States --------------------------------------------------------------------------------------

// Saves in step 7, loads into new objects with other options.
template <class Make>
void expect_to_resume(Make make) {
  Adam adam(weights(), AdamOptions(0.5)), other(weights(), AdamOptions(0.5));
  auto schedule = make(adam, 1.0);
  for (int step = 0; step < 7; ++step) schedule->step();
  const StateDict saved = schedule->state_dict();
  auto resumed = make(other, 0.5);
  test::load(*resumed, saved);
  EXPECT_EQ(resumed->state_dict().values, saved.values);
  other.param_groups()[0].set_options(adam.param_groups()[0].options().clone());
  for (int step = 7; step < 30; ++step) {
    schedule->step();
    resumed->step();
    EXPECT_EQ(rate_of(other), rate_of(adam)) << "in step " << step;
    EXPECT_EQ(static_cast<AdamOptions&>(other.param_groups()[0].options()).betas(),
              static_cast<AdamOptions&>(adam.param_groups()[0].options()).betas());
  }
}

TEST(Schedules, ASavedStateHasTheOptionsToo) {
  expect_to_resume([](Adam& adam, double factor) {
    return std::make_unique<OneCycleLR>(adam, OneCycleLROptions{.max_lr = factor,
                                                                .total_steps = 30,
                                                                .pct_start = 0.4 * factor,
                                                                .base_momentum = 0.8 * factor});
  });
  expect_to_resume([](Adam& adam, double factor) {
    return std::make_unique<SWALR>(adam, SWALROptions{.swa_lr = 0.01 * factor});
  });
  expect_to_resume([](Adam& adam, double factor) {
    return std::make_unique<MultiStepLR>(
        adam, factor == 1 ? MultiStepLROptions{.milestones = {5, 20, 9, 20}, .gamma = 0.5}
                          : MultiStepLROptions{.milestones = {1}});
  });
}

TEST(Schedules, ASavedCycleBringsItsMomentumAlong) {
  const auto momenta_of = [](bool cycles_before_the_resume, bool cycles_after_it, auto make) {
    SGD sgd = sgd_of({0.1}), other = sgd_of({0.1});
    const auto before = make(sgd, cycles_before_the_resume, 0.5);
    for (int step = 0; step < 3; ++step) before->step();
    const auto after = make(other, cycles_after_it, 0.7);
    test::load(*after, before->state_dict());
    other.param_groups()[0].set_options(sgd.param_groups()[0].options().clone());
    std::vector<double> momenta;
    for (int step = 3; step < 10; ++step) {
      before->step();
      after->step();
      for (const SGD* each : {&sgd, &other})
        momenta.push_back(
            static_cast<const SGDOptions&>(each->param_groups()[0].options()).momentum());
    }
    return momenta;
  };
  const auto expect_equal_pairs = [](const std::vector<double>& momenta, bool cycles) {
    for (std::size_t i = 0; i < momenta.size(); i += 2) EXPECT_EQ(momenta[i], momenta[i + 1]);
    EXPECT_EQ(momenta.front() != momenta[4], cycles);
  };
  const auto one_cycle = [](SGD& sgd, bool cycles, double base) {
    return std::make_unique<OneCycleLR>(sgd, OneCycleLROptions{.max_lr = 1,
                                                               .total_steps = 10,
                                                               .cycle_momentum = cycles,
                                                               .base_momentum = 0.5,
                                                               .max_momentum = 0.5 + base});
  };
  const auto cyclic = [](SGD& sgd, bool cycles, double base) {
    return std::make_unique<CyclicLR>(sgd, CyclicLROptions{.base_lr = 0.1,
                                                           .max_lr = 1,
                                                           .step_size_up = 4,
                                                           .cycle_momentum = cycles,
                                                           .base_momentum = base});
  };
  for (const bool cycles : {true, false}) {
    expect_equal_pairs(momenta_of(cycles, !cycles, one_cycle), cycles);
    expect_equal_pairs(momenta_of(cycles, !cycles, cyclic), cycles);
  }
}

struct Composed {
  explicit Composed(torch::optim::Optimizer& optimizer, std::int64_t T_max = 20)
      : warm_up(optimizer, {.total_iters = 5}),
        cosine(optimizer, {.T_max = T_max}),
        slow_down(optimizer, {.gamma = 0.9}),
        sequence(optimizer, {&warm_up, &cosine}, {5}),
        chain({&sequence, &slow_down}) {}

  LinearLR warm_up;
  CosineAnnealingLR cosine;
  ExponentialLR slow_down;
  SequentialLR sequence;
  ChainedScheduler chain;
};

TEST(Schedules, SchedulesMadeOfOthersHaveTheirStates) {
  SGD sgd = sgd_of({0.5, 0.1}), other = sgd_of({0.5, 0.1});
  Composed schedule(sgd), resumed(other, 7);
  for (int step = 0; step < 9; ++step) schedule.chain.step();
  const StateDict saved = schedule.chain.state_dict();
  EXPECT_EQ(saved.values.at("_schedulers.0._schedulers.1.T_max"), StateValue(std::int64_t{20}));
  EXPECT_EQ(saved.values.at("_schedulers.0._milestones"), StateValue(std::vector{5.0}));
  test::load(resumed.chain, saved);
  for (std::size_t i = 0; i < 2; ++i) other.param_groups()[i].options().set_lr(rate_of(sgd, i));
  for (int step = 9; step < 40; ++step) {
    schedule.chain.step();
    resumed.chain.step();
    EXPECT_EQ(resumed.chain.get_last_lr(), schedule.chain.get_last_lr()) << "in step " << step;
  }
}

TEST(Schedules, RefuseAnotherSchedulesState) {
  SGD sgd = sgd_of({0.1}), two_groups = sgd_of({0.1, 0.1});
  StepLR schedule(sgd, {.step_size = 3});
  const StateDict good = schedule.state_dict();
  const auto refusal_with = [&](const std::string& name, const StateValue& value) {
    StateDict bad = good;
    bad.values[name] = value;
    return refusal_of([&] { schedule.wanted(bad); });
  };
  expect_in("step_size was not saved",
            refusal_of([&] { schedule.wanted(ExponentialLR(sgd, {.gamma = 0.9}).state_dict()); }));
  expect_in("base_lrs has 2 numbers instead of 1", refusal_of([&] {
              schedule.wanted(StepLR(two_groups, {.step_size = 3}).state_dict());
            }));
  expect_in("step_size must be at least 1, and is 0", refusal_with("step_size", std::int64_t{0}));
  expect_in("gamma has another type", refusal_with("gamma", std::string("0.1")));
  schedule.wanted(good);

  Composed composed(sgd);
  EXPECT_EQ(fault_of([&] { composed.chain.wanted(composed.sequence.state_dict()); }),
            Fault::misuse);
  ChainedScheduler shorter({&composed.sequence});
  expect_in("more _schedulers were saved than there are, which are 1",
            refusal_of([&] { shorter.wanted(composed.chain.state_dict()); }));
  ChainedScheduler outer({&composed.chain}), outer_of_shorter({&shorter});
  expect_in("more _schedulers.0._schedulers were saved",
            refusal_of([&] { outer_of_shorter.wanted(outer.state_dict()); }));
}

TEST(Schedules, RefuseTheStateOfAnotherKindOfCycle) {
  SGD sgd = sgd_of({0.1});
  torch::optim::Adagrad adagrad(weights());
  OneCycleLR two(sgd, {.max_lr = 1, .total_steps = 10});
  OneCycleLR three(sgd, {.max_lr = 1, .total_steps = 10, .three_phase = true});
  expect_in("more _schedule_phases were saved than there are, which are 2",
            refusal_of([&] { two.wanted(three.state_dict()); }));
  expect_in("_schedule_phases.2.end_step was not saved",
            refusal_of([&] { three.wanted(two.state_dict()); }));
  OneCycleLR rates_alone(adagrad, {.max_lr = 1, .total_steps = 10, .cycle_momentum = false});
  expect_in("cycle_momentum is true, but the optimizer has no option momentum or betas",
            refusal_of([&] { rates_alone.wanted(two.state_dict()); }));
}

TEST(Schedules, RefuseSavedNumbersThatAreNoCounts) {
  SGD sgd = sgd_of({0.1});
  MultiStepLR schedule(sgd, {.milestones = {3}});
  const auto refusal_with = [&](const std::string& name, const StateValue& value) {
    StateDict bad = schedule.state_dict();
    bad.values[name] = value;
    return refusal_of([&] { schedule.wanted(bad); });
  };
  expect_in("_step_count must be", refusal_with("_step_count", std::int64_t{1} << 32));
  expect_in("milestones must be whole numbers", refusal_with("milestones", std::vector{2.5}));
  expect_in("milestones must be whole numbers", refusal_with("milestones", std::vector{1e300}));
  expect_in("milestones must rise", refusal_with("milestones", std::vector{3.0, 2.0}));
}

// --- Errors --------------------------------------------------------------------------------------

TEST(Schedules, RefuseOptionsThatAreOutOfRange) {
  SGD sgd = sgd_of({0.1, 0.2});
  expect_in("CosineAnnealingLR: T_max must be at least 1, and is 0",
            refusal_of([&] { CosineAnnealingLR(sgd, {.eta_min = 0.1}); }));
  expect_in("StepLR: step_size must be", refusal_of([&] { StepLR(sgd, {.gamma = 0.5}); }));
  expect_in("LinearLR: total_iters", refusal_of([&] { LinearLR(sgd, {.total_iters = 0}); }));
  expect_in("LinearLR: start_factor must be greater than 0 and at most 1, and is 0",
            refusal_of([&] { LinearLR(sgd, {.start_factor = 0}); }));
  expect_in("end_factor", refusal_of([&] { LinearLR(sgd, {.end_factor = 1.5}); }));
  expect_in("ConstantLR: factor", refusal_of([&] { ConstantLR(sgd, {.factor = 0}); }));
  expect_in("total_iters", refusal_of([&] { ConstantLR(sgd, {.total_iters = 0}); }));
  expect_in("total_iters", refusal_of([&] { PolynomialLR(sgd, {.total_iters = -1}); }));
  expect_in("power", refusal_of([&] { PolynomialLR(sgd, {.power = -1}); }));
  expect_in("ExponentialLR: gamma", refusal_of([&] { ExponentialLR(sgd, {}); }));
  expect_in("T_0", refusal_of([&] { CosineAnnealingWarmRestarts(sgd, {.T_mult = 2}); }));
  expect_in("T_mult",
            refusal_of([&] { CosineAnnealingWarmRestarts(sgd, {.T_0 = 5, .T_mult = 0}); }));
  expect_in("anneal_epochs", refusal_of([&] { SWALR(sgd, {.swa_lr = 1, .anneal_epochs = -1}); }));
  expect_in("ReduceLROnPlateau: factor must be less than 1, and is 1",
            refusal_of([&] { ReduceLROnPlateau(sgd, {.factor = 1}); }));
  expect_in("swa_lr has 3 numbers, and the optimizer has 2 param groups", refusal_of([&] {
              SWALR(sgd, {.swa_lr = {1, 2, 3}});
            }));
  expect_in("1 functions", refusal_of([&] {
              LambdaLR(sgd, std::vector<LRFactor>{[](std::int64_t) { return 1.0; }});
            }));
  expect_in("empty", refusal_of([&] { LambdaLR(sgd, LRFactor()); }));
  EXPECT_EQ(rate_of(sgd), 0.1) << "a refused schedule has changed the rate";
}

TEST(Schedules, RefuseCyclesThatCannotBe) {
  SGD sgd = sgd_of({0.1});
  torch::optim::Adagrad adagrad(weights());
  const auto one_cycle = [&](const OneCycleLROptions& options) {
    return refusal_of([&] { OneCycleLR(sgd, options); });
  };
  expect_in("give total_steps", one_cycle({.max_lr = 1, .epochs = 3}));
  expect_in("total_steps must be", one_cycle({.max_lr = 1, .total_steps = -1}));
  expect_in("pct_start", one_cycle({.max_lr = 1, .total_steps = 5, .pct_start = 1.5}));
  // Python would divide by 0.
  expect_in("phase 0 has no steps", one_cycle({.max_lr = 1, .total_steps = 10, .pct_start = 0.1}));
  expect_in("div_factor", one_cycle({.max_lr = 1, .total_steps = 5, .div_factor = 0}));
  expect_in("momentum or betas",
            refusal_of([&] { OneCycleLR(adagrad, {.max_lr = 1, .total_steps = 5}); }));
  expect_in("momentum or betas",
            refusal_of([&] { CyclicLR(adagrad, {.base_lr = 0.1, .max_lr = 1}); }));
  expect_in("step_size_up",
            refusal_of([&] { CyclicLR(sgd, {.base_lr = 0.1, .max_lr = 1, .step_size_up = 0}); }));
  CyclicLR rates_alone(adagrad, {.base_lr = 0.1, .max_lr = 1, .cycle_momentum = false});

  OneCycleLR schedule(sgd, {.max_lr = 1, .total_steps = 5});
  for (int step = 0; step < 5; ++step) schedule.step();
  for (int attempt = 0; attempt < 2; ++attempt)
    expect_in("step 6 of 5 was tried", refusal_of([&] { schedule.step(); }));
}

TEST(Schedules, ARefusedCycleChangesNothing) {
  SGD sgd = sgd_of({0.1});
  const LinearLR earlier(sgd, {.start_factor = 0.5});
  const auto options_of = [&] {
    const auto& options = static_cast<const SGDOptions&>(sgd.param_groups()[0].options());
    return std::vector{options.lr(), options.momentum()};
  };
  const std::vector<double> before = options_of();
  const auto refuse_cyclic = [&](const CyclicLROptions& options) {
    expect_in("2 numbers", refusal_of([&] { CyclicLR(sgd, options); }));
    EXPECT_EQ(options_of(), before);
  };
  refuse_cyclic({.base_lr = 0.3, .max_lr = {1, 1}});
  refuse_cyclic({.base_lr = {0.3, 0.3}, .max_lr = 1});
  refuse_cyclic({.base_lr = 0.3, .max_lr = 1, .base_momentum = {0.5, 0.5}});
  refuse_cyclic({.base_lr = 0.3, .max_lr = 1, .max_momentum = {0.5, 0.5}});
  refusal_of([&] { OneCycleLR(sgd, {.max_lr = 1, .total_steps = -1}); });
  refusal_of([&] { OneCycleLR(sgd, {.max_lr = 1, .total_steps = 10, .pct_start = 0.1}); });
  EXPECT_EQ(options_of(), before);
  const LambdaLR later(sgd, [](std::int64_t) { return 1.0; });
  EXPECT_EQ(rate_of(sgd), 0.1) << "a refused schedule has changed the initial rate";
}

TEST(Schedules, RefuseChildrenThatDoNotFit) {
  SGD sgd = sgd_of({0.1}), other = sgd_of({0.1});
  LinearLR a(sgd), b(sgd), of_other(other);
  expect_in("one schedule more than milestones, but there are 2 schedules and 2 milestones",
            refusal_of([&] {
              SequentialLR(sgd, {&a, &b}, {3, 5});
            }));
  expect_in("milestones must rise", refusal_of([&] { SequentialLR(sgd, {&a, &b, &a}, {5, 3}); }));
  expect_in("at least one", refusal_of([&] { SequentialLR(sgd, {}, {}); }));
  expect_in("at least one", refusal_of([&] { ChainedScheduler({}); }));
  expect_in("index 1 is a null pointer", refusal_of([&] { ChainedScheduler({&a, nullptr}); }));
  expect_in("LinearLR at index 1 has another one", refusal_of([&] {
              SequentialLR(sgd, {&a, &of_other}, {3});
            }));
  expect_in("at index 0 has another one", refusal_of([&] { SequentialLR(other, {&a}, {}); }));
  expect_in("has another one", refusal_of([&] { ChainedScheduler({&a, &of_other}); }));
  ChainedScheduler chain({&a});
  expect_in("at index 1 cannot begin at a milestone", refusal_of([&] {
              SequentialLR(sgd, {&b, &chain}, {3});
            }));
}

TEST(Schedules, ALaterParamGroupRequiresANewSchedule) {
  SGD sgd = sgd_of({0.1});
  StepLR schedule(sgd, {.step_size = 3});
  sgd.param_groups()[0].options().set_lr(0.05);
  sgd.add_param_group(OptimizerParamGroup(weights(), std::make_unique<SGDOptions>(0.4)));
  expect_in("2 param groups, and had 1", refusal_of([&] { schedule.step(); }));
  LambdaLR later(sgd, [](std::int64_t) { return 0.5; });
  EXPECT_EQ(later.get_last_lr(), (std::vector{0.05, 0.2}));
}

// --- ScaledLearningRate --------------------------------------------------------------------------

TEST(ScaledLearningRate, WarmsUpFromTheBaseRateToKTimesIt) {
  SGD sgd = sgd_of({0.1, 0.5}), linear = sgd_of({0.4, 2.0});
  ScaledLearningRate schedule(sgd, {.base_batch = 256, .global_batch = 1024, .warmup_steps = 10});
  LinearLR expected(linear, {.start_factor = 0.25, .total_iters = 10});
  EXPECT_EQ(schedule.factor(), 4);
  EXPECT_EQ(rate_of(sgd, 0), 0.1);
  EXPECT_EQ(rate_of(sgd, 1), 0.5);
  for (int step = 1; step < 20; ++step) {
    schedule.step();
    expected.step();
    EXPECT_EQ(schedule.get_last_lr(), expected.get_last_lr());
    EXPECT_NEAR(rate_of(sgd), 0.1 * (1 + 3 * std::min(step, 10) / 10.0), 1e-12);
  }
}

TEST(ScaledLearningRate, HasRulesAndWarmsUpOnlyToALargerRate) {
  const auto rates_with = [](const ScaledLearningRateOptions& options) {
    SGD sgd = sgd_of({0.1});
    ScaledLearningRate schedule(sgd, options);
    return rates_of_steps(schedule, 3);
  };
  using Rates = std::vector<double>;
  EXPECT_EQ(rates_with({.base_batch = 1, .global_batch = 4}), Rates(3, 0.4));
  EXPECT_EQ(rates_with({.base_batch = 1, .global_batch = 4, .rule = RateRule::sqrt}),
            Rates(3, 0.2));
  EXPECT_EQ(rates_with({.global_batch = 4, .rule = RateRule::none, .warmup_steps = 3}),
            Rates(3, 0.1));
  EXPECT_EQ(rates_with({.base_batch = 4, .global_batch = 2, .warmup_steps = 3}), Rates(3, 0.05));
}

TEST(ScaledLearningRate, IsFollowedByAScheduleFromTheScaledRate) {
  SGD sgd = sgd_of({0.1});
  ScaledLearningRate warm_up(sgd, {.base_batch = 1, .global_batch = 8, .warmup_steps = 4});
  CosineAnnealingLR cosine(sgd, {.T_max = 10});
  SequentialLR schedule(sgd, {&warm_up, &cosine}, {warm_up.warmup_steps()});
  EXPECT_EQ(rate_of(sgd), 0.1);
  const std::vector<double> rates = rates_of_steps(schedule, 14);
  EXPECT_EQ(rates[3], 0.8);
  EXPECT_NEAR(rates[8], 0.4, 1e-15);
  EXPECT_NEAR(rates[13], 0, 1e-15);
}

TEST(ScaledLearningRate, WarnsOfACheckpointWithAnotherGlobalBatch) {
  std::vector<std::string> log;
  set_log_sink([&](LogLevel, std::string_view message) { log.emplace_back(message); });
  const auto load = [&](std::int64_t saved_batch, const ScaledLearningRateOptions& options) {
    SGD sgd = sgd_of({0.1}), other = sgd_of({0.1});
    ScaledLearningRate before(sgd, {.base_batch = 64, .global_batch = saved_batch});
    ScaledLearningRate after(other, options);
    SequentialLR saved(sgd, {&before}, {}), loaded(other, {&after}, {});
    test::load(loaded, saved.state_dict());
    EXPECT_EQ(after.state_dict().values.at("global_batch"), StateValue(saved_batch));
    EXPECT_EQ(after.factor(), before.factor());
  };
  load(512, {.base_batch = 64, .global_batch = 512});
  EXPECT_TRUE(log.empty());
  load(512, {.base_batch = 64, .global_batch = 1024});
  load(512, {.base_batch = 64, .global_batch = 128, .rule = RateRule::sqrt});
  load(512, {.global_batch = 1024, .rule = RateRule::none});
  set_log_sink({});
  ASSERT_EQ(log.size(), 3U);
  expect_in("rate is that of a global batch of 512, and now it is 1024", log[0]);
  expect_in("the linear rule would multiply it by 2", log[0]);
  expect_in("the square root rule would multiply it by 0.5", log[1]);
  expect_in("(RateRule::linear) would multiply it by 2", log[2]);
}

TEST(ScaledLearningRate, WarnsInEachResumeWithABatchToWhichTheRateDoesNotBelong) {
  std::vector<std::string> log;
  set_log_sink([&](LogLevel, std::string_view message) { log.emplace_back(message); });
  StateDict state;
  const auto warnings_with = [&](std::int64_t global_batch) {
    SGD sgd = sgd_of({0.1});
    ScaledLearningRate schedule(sgd, {.base_batch = 64, .global_batch = global_batch});
    log.clear();
    if (!state.values.empty()) test::load(schedule, state);
    state = schedule.state_dict();
    return log.size();
  };
  EXPECT_EQ(warnings_with(512), 0U);
  EXPECT_EQ(warnings_with(1024), 1U);
  EXPECT_EQ(warnings_with(1024), 1U);
  EXPECT_EQ(warnings_with(512), 0U);
  set_log_sink({});
}

TEST(ScaledLearningRate, RefusesWhatItCannotScale) {
  SGD sgd = sgd_of({0.1});
  const auto refusal_with = [&](const ScaledLearningRateOptions& options) {
    return refusal_of([&] { ScaledLearningRate(sgd, options); });
  };
  expect_in("needs base_batch", refusal_with({.global_batch = 64}));
  expect_in("global_batch", refusal_with({.base_batch = 64}));
  expect_in("warmup_steps",
            refusal_with({.base_batch = 64, .global_batch = 64, .warmup_steps = -1}));
  const LinearLR earlier(sgd);
  expect_in("before other schedules", refusal_with({.base_batch = 64, .global_batch = 128}));
}

}  // namespace
}  // namespace lockstep::schedules::schedules_test
