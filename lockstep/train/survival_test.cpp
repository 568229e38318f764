// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/survival.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/elastic_options.h"
#include "tests/soon.h"

namespace lockstep::survival_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::elastic_options;
using test::fault_of;
using test::Rank;
using test::Ranks;

constexpr std::int64_t samples = 960;
constexpr std::int64_t batch = 4;  // Per rank.

torch::nn::Sequential make_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::BatchNorm1d(32),
                               torch::nn::Dropout(0.2), torch::nn::Linear(32, 1));
}

// A training that notes, in a file, which samples each step uses in which group.
struct Training {
  Training(const Rank& rank, const ElasticOptions& options, const std::string& name = "")
      : notes(rank.scratch / ("notes." + std::to_string(rank.rank) + name)),
        survival(
            [this](ProcessGroup& world, TrainingState& state) {
              ddp.emplace(net.ptr(), world);
              sampler.emplace(static_cast<std::size_t>(samples), world);
              state.add("model", *ddp);
              state.add("optimizer", adam, *net);
              state.add("sampler", *sampler);
              is_drawing = false;
            },
            options) {}

  std::vector<std::size_t> draw() {
    if (!is_drawing) sampler->reset();
    is_drawing = true;
    auto indices = sampler->next(batch);
    if (!indices) {
      sampler->set_epoch(sampler->epoch() + 1);
      sampler->reset();
      indices = sampler->next(batch);
    }
    for (const std::size_t index : *indices)
      notes << sampler->epoch() << " " << survival.steps() << " " << survival.changes() << " "
            << index << std::endl;
    return *indices;
  }

  void backward(const std::vector<std::size_t>& indices) {
    net->zero_grad();
    std::vector<at::Tensor> rows;
    for (const std::size_t index : indices)
      rows.push_back(
          at::sin(at::arange(8, at::kFloat) * (0.1 + static_cast<double>(index) * 0.37)));
    const at::Tensor data = at::stack(rows);
    ((*ddp)(data)-data.sum(1, true)).square().mean().backward();
  }

  using Act = std::function<void()>;

  bool step(
      const Act& in_compute = [] {}, const Act& in_apply = [] {}) {
    std::vector<std::size_t> drawn;
    return survival.step(
        [&] {
          drawn = draw();
          in_compute();
          backward(drawn);
        },
        [&] {
          in_apply();
          adam.step();
          sampler->consume(drawn.size());
        });
  }

  void expect_equal_weights() {
    for (const at::Tensor& tensor : net->parameters()) {
      const at::Tensor all = all_gather(tensor.detach(), survival.world());
      for (int rank = 0; rank < survival.world().size(); ++rank)
        EXPECT_TRUE(all[rank].equal(tensor)) << "rank " << rank;
    }
  }

  torch::nn::Sequential net = make_net();
  torch::optim::Adam adam{net->parameters(), torch::optim::AdamOptions(0.01)};
  std::optional<DistributedDataParallel<torch::nn::SequentialImpl>> ddp;
  std::optional<DistributedSampler> sampler;
  bool is_drawing = false;
  std::ofstream notes;
  Survival survival;
};

// How often each sample of epoch 0 counted. A step that was repeated counts in its last group.
std::map<std::size_t, int> used_samples(const std::filesystem::path& folder) {
  std::map<std::int64_t, std::map<int, std::vector<std::size_t>>> steps;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("notes.")) continue;
    std::ifstream notes(entry.path());
    std::int64_t epoch = 0;
    std::int64_t step = 0;
    int group = 0;
    for (std::size_t index = 0; notes >> epoch >> step >> group >> index;)
      if (epoch == 0) steps[step][group].push_back(index);
  }
  std::map<std::size_t, int> used;
  for (const auto& [step, groups] : steps)
    for (const std::size_t index : groups.rbegin()->second) ++used[index];
  return used;
}

void expect_each_sample_once(const std::filesystem::path& folder) {
  const auto used = used_samples(folder);
  EXPECT_EQ(used.size(), static_cast<std::size_t>(samples));
  for (const auto& [index, times] : used) EXPECT_EQ(times, 1) << index;
}

void expect_success_but_of(const std::vector<int>& lost, const std::vector<test::Exit>& exits) {
  for (const test::Exit& exit : exits) {
    const bool is_lost = std::find(lost.begin(), lost.end(), exit.rank) != lost.end();
    EXPECT_TRUE(is_lost || exit.code == 0) << "rank " << exit.rank << ", code " << exit.code
                                           << ", signal " << exit.signal << ": " << exit.output;
  }
}

std::filesystem::path folder_in(const std::filesystem::path& parent, const char* name) {
  std::filesystem::create_directories(parent / name);
  return parent / name;
}

// --- Deaths --------------------------------------------------------------------------------------

constexpr std::int64_t steps = 125;  // Longer than an epoch, also on two ranks.
constexpr std::int64_t died_in = 7;

void expect_equal_tensors(const std::vector<at::Tensor>& one,
                          const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i])) << i;
}

// Two trainings of three ranks, whose rank 1 `ends`: process 1 of the first, process 3 of the
// second.
struct TwoTrainings {
  Rank left;
  Rank died;
  bool ends;
};

TwoTrainings two_trainings(const Rank& process) {
  const int place = process.rank == 3 ? 1 : process.rank;
  return {{place, 3, folder_in(process.scratch, "left")},
          {place, 3, folder_in(process.scratch, "died")},
          place == 1};
}

// Process 3 begins the second training together with the others, whose first one may take long.
void await_second_training(const Rank& process) {
  const std::filesystem::path begins = process.scratch / "second";
  if (process.rank == 0) std::ofstream(begins).flush();
  await_file(begins);
}

// Trains until `last` steps are complete, or leaves in order in step `leaves_in`. Returns whether
// this rank has stayed.
template <class AnyTraining>
bool stays(AnyTraining& training, std::int64_t last, std::int64_t leaves_in) {
  while (training.survival.steps() < last) {
    const bool leaves = training.survival.steps() == leaves_in - 1;
    EXPECT_EQ(training.step([&] {
      if (leaves) ::raise(SIGTERM);
    }),
              !leaves);
    if (leaves) return false;
  }
  return true;
}

// Process 1 leaves the first training in order after step 6. Process 3, which is rank 1 of the
// second training, dies before it has contributed to step 7.
const Ranks dies("a rank dies in a step", [](const Rank& process) {
  const auto [rank_left, rank, ends] = two_trainings(process);
  std::optional<Training> left;
  if (process.rank != 3) {
    left.emplace(rank_left, elastic_options(rank_left));
    if (!stays(*left, steps, ends ? died_in : steps + 1)) return;
    EXPECT_EQ(left->survival.world().size(), 2);
    left->expect_equal_weights();
  }
  await_second_training(process);
  Training died(rank, elastic_options(rank));
  while (died.survival.steps() < steps)
    EXPECT_TRUE(died.step([&] {
      if (ends && died.survival.steps() == died_in) ::raise(SIGKILL);
    }));
  EXPECT_EQ(died.survival.world().size(), 2);
  EXPECT_EQ(died.survival.changes(), 1);
  EXPECT_EQ(died.survival.scale(), 2.0 / 3);
  died.expect_equal_weights();
  expect_equal_tensors(died.net->parameters(), left->net->parameters());
  expect_equal_tensors(died.net->buffers(), left->net->buffers());
  if (rank.rank == 0) expect_each_sample_once(rank.scratch);
});

TEST(Survival, ADeathHasTheEffectOfLeavingInOrder) { expect_success_but_of({3}, dies.run(4)); }

// Rank 0 dies when all have prepared the step: the others complete it without repeating it.
const Ranks dies_late("a rank dies after the gradients are complete", [](const Rank& rank) {
  Training training(rank, elastic_options(rank));
  int computed = 0;
  while (training.survival.steps() < 20)
    training.step([&] { ++computed; },
                  [&] {
                    if (rank.rank == 0 && training.survival.steps() == died_in) ::raise(SIGKILL);
                  });
  EXPECT_EQ(computed, 21);  // Step 8 was interrupted.
  EXPECT_EQ(training.survival.changes(), 1);
  training.expect_equal_weights();
});

TEST(Survival, AStepIsNotRepeatedIfAllHaveItsGradients) {
  expect_success_but_of({0}, dies_late.run(3));
}

const Ranks die_one_by_one("all ranks but one die", [](const Rank& rank) {
  Training training(rank, elastic_options(rank));
  while (training.survival.steps() < 300) {
    const bool ends = rank.rank > 0 && training.survival.steps() == 5 * rank.rank;
    training.step([&] {
      if (ends) ::raise(SIGKILL);
    });
  }
  EXPECT_EQ(training.survival.world().size(), 1);
  expect_each_sample_once(rank.scratch);
});

TEST(Survival, ContinuesOnOneRank) { expect_success_but_of({1, 2, 3}, die_one_by_one.run(4)); }

// --- A process that joins ------------------------------------------------------------------------

// Process 3 comes in place of rank 1, which dies.
const Ranks joins("a process joins the training", [](const Rank& process) {
  const bool is_new = process.rank == 3;
  const Rank rank{is_new ? 1 : process.rank, 3, process.scratch};
  if (is_new) await_file(rank.scratch / "died");

  Training training(rank, elastic_options(rank, is_new ? 1 : 0), is_new ? "new" : "");
  if (is_new) {
    EXPECT_GE(training.survival.steps(), died_in);
    EXPECT_EQ(training.survival.world().rank(), 2);
    EXPECT_FALSE(training.adam.state().empty());
  }
  const std::int64_t last = 400;
  while (training.survival.steps() < last || training.survival.world().size() < 3) {
    if (rank.rank == 1 && !is_new && training.survival.steps() == died_in) {
      std::ofstream(rank.scratch / "died");
      ::raise(SIGKILL);
    }
    training.step();
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_EQ(training.survival.world().size(), 3);
  EXPECT_GE(training.survival.changes(), 1);
  training.expect_equal_weights();
  if (rank.rank == 0) expect_each_sample_once(rank.scratch);
});

TEST(Survival, AProcessThatJoinsHasTheStateOfTheOthers) {
  expect_success_but_of({1}, joins.run(4));
}

// --- Parts of the state --------------------------------------------------------------------------

constexpr std::int64_t saved_every = 5;

// Each rank has a part of weights and optimizer.
struct ShardedTraining {
  explicit ShardedTraining(const Rank& rank)
      : survival([this](ProcessGroup& world, TrainingState& state) { set_up(world, state); },
                 SurvivalCheckpoints{rank.scratch / "checkpoints", saved_every},
                 elastic_options(rank)) {}

  void set_up(ProcessGroup& world, TrainingState& state) {
    adam.reset();
    sharded.reset();
    torch::manual_seed(3);
    net = torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::Linear(32, 1));
    sharded.emplace(net.ptr(), world);
    adam.emplace(*sharded, net->parameters(), torch::optim::AdamOptions(0.01));
    state.add("model", *sharded);
    state.add("optimizer", *adam, *net);
  }

  // Returns whether this rank stays. The arguments: what happens in this step.
  bool step(
      const std::function<void()>& in_compute, const std::function<void()>& in_apply = [] {}) {
    return survival.step(
        [&] {
          in_compute();
          adam->zero_grad();
          const auto number = static_cast<double>(10 * survival.steps() + survival.world().rank());
          const at::Tensor data = at::sin(at::arange(64, at::kFloat) * (0.1 + number));
          (*sharded)(data.view({8, 8})).square().mean().backward();
        },
        [&] {
          in_apply();
          adam->step();
        });
  }

  torch::nn::Sequential net = nullptr;
  std::optional<FullyShardedDataParallel<torch::nn::SequentialImpl>> sharded;
  std::optional<FullyShardedOptimizer<Adam>> adam;
  Survival survival;
};

// Process 1 leaves the first training in order after step 5. Process 3, which is rank 1 of the
// second training, dies in step 8: the others continue from the checkpoint of step 5.
template <bool dies_in_apply>
void lose_a_part(const Rank& process) {
  const auto [rank_left, rank, ends] = two_trainings(process);
  constexpr std::int64_t last = 20;
  std::optional<ShardedTraining> left;
  if (process.rank != 3) {
    left.emplace(rank_left);
    if (!stays(*left, last, ends ? saved_every : last + 1)) return;
  }
  await_second_training(process);
  ShardedTraining died(rank);
  std::vector<std::int64_t> completed;
  const auto die = [&] {
    if (ends && died.survival.steps() == saved_every + 2) ::raise(SIGKILL);
  };
  while (died.survival.steps() < last) {
    EXPECT_TRUE(dies_in_apply ? died.step([] {}, die) : died.step(die));
    completed.push_back(died.survival.steps());
  }
  EXPECT_EQ(std::count(completed.begin(), completed.end(), saved_every + 1), 2);
  EXPECT_EQ(completed.size(), static_cast<std::size_t>(last + 2));
  EXPECT_EQ(died.survival.world().size(), 2);
  died.survival.world().barrier();  // All have stepped their parts.
  expect_equal_tensors(died.net->parameters(), left->net->parameters());
}

const Ranks lose_a_part_in_compute("a rank with a part of the state dies", lose_a_part<false>);
const Ranks lose_a_part_in_apply("such a rank dies in apply", lose_a_part<true>);

TEST(Survival, WithCheckpointsALostPartHasTheEffectOfLeavingInOrder) {
  expect_success_but_of({3}, lose_a_part_in_compute.run(4));
}

TEST(Survival, WithCheckpointsApplyMayCommunicate) {
  expect_success_but_of({3}, lose_a_part_in_apply.run(4));
}

// --- What cannot continue ------------------------------------------------------------------------

const Ranks is_sharded("a state that exists once", [](const Rank& rank) {
  auto net = torch::nn::Linear(8, 8);
  std::optional<FullyShardedDataParallel<torch::nn::LinearImpl>> sharded;
  std::string text;
  EXPECT_EQ(fault_of(
                [&] {
                  Survival survival(
                      [&](ProcessGroup& world, TrainingState& state) {
                        sharded.emplace(net.ptr(), world);
                        state.add("model", *sharded);
                      },
                      elastic_options(rank));
                },
                &text),
            Fault::unsupported);
  EXPECT_NE(text.find("'model'"), text.npos) << text;
  EXPECT_NE(text.find("Checkpointer"), text.npos) << text;
});

TEST(Survival, AStateThatExistsOnceIsRefusedBeforeTheTraining) {
  EXPECT_TRUE(all_succeeded(is_sharded.run(2)));
}

const Ranks throws("compute throws", [](const Rank& rank) {
  Training training(rank, elastic_options(rank));
  EXPECT_EQ(fault_of([&] { training.step([] { throw Error(Fault::misuse, "wrong"); }); }),
            Fault::misuse);
});

TEST(Survival, OtherErrorsOfTheProgramEndTheTraining) { EXPECT_TRUE(all_succeeded(throws.run(1))); }

}  // namespace
}  // namespace lockstep::survival_test
