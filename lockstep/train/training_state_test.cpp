// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/training_state.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "lockstep/optim/mixed_precision.h"
#include "tests/fault_of.h"

namespace lockstep::train::training_state_test {
namespace {

using test::fault_of;

// saved() and load() act like a checkpoint: one copies the state, the other loads the requested
// tensors as a whole.
std::vector<StateDict> saved(const TrainingState& state) {
  std::vector<StateDict> parts;
  for (const auto& [name, part] : state.parts()) {
    parts.push_back(part->state_dict());
    for (auto& [unused, tensor] : parts.back().tensors) tensor.data = tensor.data.clone();
  }
  return parts;
}

void load(const TrainingState& state, const std::vector<StateDict>& saved) {
  ASSERT_EQ(state.parts().size(), saved.size());
  for (std::size_t i = 0; i < saved.size(); ++i) {
    StateDict meta{.tensors = {}, .values = saved[i].values};
    for (const auto& [name, tensor] : saved[i].tensors)
      meta.tensors[name] = {.data = tensor.data.to(at::kMeta), .shape = tensor.shape};
    Stateful& part = *state.parts()[i].second;
    StateDict wanted{.tensors = {}, .values = saved[i].values};
    for (const auto& [name, range] : part.wanted(meta)) {
      EXPECT_EQ(range.end - range.begin, saved[i].tensors.at(name).data.numel());
      wanted.tensors[name] = saved[i].tensors.at(name);
    }
    part.load_state_dict(std::move(wanted));
  }
}

template <class T>
void comes_back(T value) {
  T variable = value;
  TrainingState state;
  state.add("it", variable);
  const auto kept = saved(state);
  variable = T{};
  load(state, kept);
  EXPECT_EQ(variable, value);
}

TEST(TrainingState, BringsTheProgramsVariablesBack) {
  comes_back(true);
  comes_back('x');
  comes_back<signed char>(-5);
  comes_back<unsigned char>(200);
  comes_back<short>(-300);
  comes_back<unsigned short>(60000);
  comes_back(-70000);
  comes_back(4000000000U);
  comes_back(std::numeric_limits<long>::min());
  comes_back(5UL);
  comes_back(std::numeric_limits<long long>::max());
  comes_back(6ULL);
  comes_back(0.1F);
  comes_back(std::numeric_limits<float>::infinity());
  comes_back(1e300);
  comes_back(std::string("grüß"));
}

TEST(TrainingState, RefusesAVariableThatCannotHoldWhatWasSaved) {
  const auto refusal = [](auto was, auto is) {
    TrainingState one;
    one.add("best", was);
    TrainingState other;
    other.add("best", is);
    const auto before = is;
    std::string text;
    EXPECT_EQ(fault_of([&] { load(other, saved(one)); }, &text), Fault::misuse);
    EXPECT_NE(text.find("'best'"), std::string::npos) << text;
    EXPECT_EQ(is, before);
  };
  refusal(256, std::uint8_t{1});
  refusal(-1, 1U);
  refusal(std::int64_t{1} << 40, 1);
  refusal(1e300, 1.0F);
  refusal(1, true);
  refusal(1, 1.0);
  refusal(std::string("1"), 1);
  refusal(std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1});
}

TEST(TrainingState, CopiesTheValuesOfATensor) {
  at::Tensor mean = at::arange(6).reshape({2, 3}).to(at::kFloat);
  const at::Tensor same_memory = mean;
  TrainingState state;
  state.add("mean", mean);
  const auto kept = saved(state);
  mean.zero_();
  load(state, kept);
  EXPECT_TRUE(same_memory.equal(at::arange(6).reshape({2, 3}).to(at::kFloat)));

  const auto refusal = [&](at::Tensor other) {
    TrainingState to;
    to.add("mean", other);
    std::string text;
    EXPECT_EQ(fault_of([&] { load(to, kept); }, &text), Fault::misuse);
    EXPECT_NE(text.find("'mean'"), std::string::npos) << text;
  };
  refusal(at::zeros({3, 2}));
  refusal(at::zeros({2, 3}, at::kDouble));
  refusal({});
}

TEST(TrainingState, RefusesNamesThatAreNone) {
  TrainingState state;
  int value = 0;
  for (const std::string name : {"", "a/b", "..", "a b", "é"})
    EXPECT_EQ(fault_of([&] { state.add(name, value); }), Fault::misuse) << name;
  state.add("Step_1-a", value);
  EXPECT_EQ(fault_of([&] { state.add("Step_1-a", value); }), Fault::misuse);
  EXPECT_EQ(state.parts().size(), 1U);
}

// A training of one process, with all of its parts in the state.
struct Training {
  torch::nn::Linear net{4, 2};
  torch::optim::Adam adam{net->parameters(), 0.01};
  torch::optim::StepLR schedule{adam, 3, 0.5};
  DistributedSampler sampler{50, 1, 0, {.seed = 3}};
  GradScaler scaler{ProcessGroup::self(), {.init_scale = 8, .growth_interval = 3}};
  std::int64_t steps = 0;
  TrainingState state;

  Training() {
    state.add("model", *net);
    state.add("optimizer", adam, *net);
    state.add("schedule", schedule);
    state.add("sampler", sampler);
    state.add("scaler", scaler);
    state.add("generators", RandomGenerators(ProcessGroup::self()));
    state.add("steps", steps);
  }

  // Trains with noise from the generator. Returns the parameters afterwards.
  at::Tensor train(std::int64_t until) {
    const at::Tensor data = at::linspace(-1, 1, 200).reshape({50, 4});
    while (steps < until) {
      sampler.set_epoch(sampler.epoch());
      sampler.reset();
      while (const auto batch = sampler.next(7)) {
        if (steps == until) break;
        adam.zero_grad();
        const std::vector<std::int64_t> rows(batch->begin(), batch->end());
        const at::Tensor input = data.index_select(0, at::tensor(rows));
        scaler.scale((net(input) + at::randn({input.size(0), 2})).pow(2).mean()).backward();
        scaler.step(adam);
        scaler.update();
        schedule.step();
        sampler.consume(batch->size());
        ++steps;
      }
      if (sampler.offset() == 50) sampler.set_epoch(sampler.epoch() + 1);
    }
    return at::cat({net->weight.flatten(), net->bias}).detach().clone();
  }
};

TEST(TrainingState, GoesOnAsIfATrainingHadNeverBeenInterrupted) {
  torch::manual_seed(1);
  const at::Tensor expected = Training().train(20);
  for (const std::int64_t interrupted : {1, 5, 7, 8, 12}) {
    torch::manual_seed(1);
    Training training;
    training.train(interrupted);
    const auto kept = saved(training.state);

    torch::manual_seed(999);
    Training resumed;
    load(resumed.state, kept);
    EXPECT_EQ(resumed.steps, interrupted);
    EXPECT_TRUE(resumed.train(20).equal(expected)) << interrupted;
    EXPECT_EQ(resumed.scaler.get_scale(), 512) << "20 steps double it six times";
  }
}

}  // namespace
}  // namespace lockstep::train::training_state_test
